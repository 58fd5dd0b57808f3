"""The topology of MARWIL: a learner of recorded data, without actors; plan and wiring."""
