"""The config of each algorithm on its topology, its pairing, and its defaults."""
