"""The topology of Ape-X, SAC, CrossQ and TD3: actors, a replay, learners; plan and wiring."""
