"""Soft actor-critic (SAC): continuous control from a replay."""
