"""Export of a trained policy to a file that runs without SampleForge, and playing such a file."""
