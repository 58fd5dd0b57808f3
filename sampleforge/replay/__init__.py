"""The replay of Ape-X: shards, sum tree, rate limiter, readers of samples, saving."""
