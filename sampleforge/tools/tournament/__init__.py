"""Tournaments: policies that play each other, and their ratings."""
