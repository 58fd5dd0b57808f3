"""PQN: Q-learning from batches of rollouts, without a replay and without a target network (Gallici
et al. 2024, "Simplifying Deep Temporal Difference Learning", arXiv 2407.04811)."""
