"""Tournaments: policies play each other."""
