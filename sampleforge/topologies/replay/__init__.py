"""The topology of Ape-X: its plan, its wiring and the saving of its replay."""
