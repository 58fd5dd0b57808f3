"""The topology of APPO: its plan and its wiring."""
