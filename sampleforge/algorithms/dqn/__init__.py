"""DQN: Q-learning from a replay."""
