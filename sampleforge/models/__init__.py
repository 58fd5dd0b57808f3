"""The neural networks: encoders, recurrent cores, actor-critic and Q-network."""
