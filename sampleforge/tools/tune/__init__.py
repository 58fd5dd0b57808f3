"""The search of the fastest flags for an environment, or of those that learn most."""
