"""The version of SampleForge."""

__version__ = "0.1.0"
