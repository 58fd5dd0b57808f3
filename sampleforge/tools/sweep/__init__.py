"""Sweeps: settings that are searched by many runs."""
