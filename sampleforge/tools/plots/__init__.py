"""Figures, drawn from what run folders contain."""
