"""Videos of episodes: the camera that films an environment, and the file that it writes."""

FILMED = 3
"""Default number of episodes of a video."""
