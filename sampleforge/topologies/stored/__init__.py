"""MARWIL: a learner that reads recorded data, and no actors."""
