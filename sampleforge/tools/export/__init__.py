"""Exported policies: files that act without SampleForge."""
