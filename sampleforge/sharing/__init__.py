"""What is shared of a run: its model card."""
