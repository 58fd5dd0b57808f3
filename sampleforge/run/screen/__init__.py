"""What a run prints while it goes on, and at its ends."""
