"""The runners, which execute the workers of a graph in processes or in turn."""
