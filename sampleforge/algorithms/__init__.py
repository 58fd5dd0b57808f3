"""The algorithms as objects without processes: losses, learners and acting policies."""
