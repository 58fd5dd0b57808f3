"""Soft actor-critic (SAC): continuous control from a replay; and CrossQ, its form with normalised
critics and without target networks."""
