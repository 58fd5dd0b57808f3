"""The topologies: what workers a run of each algorithm has, and how they are connected."""
