"""Offline data in Minari's format: recording, reading, and feeding it to a replay."""
