"""The comparison of settings over their seeds and environments: interval estimates of scores."""
