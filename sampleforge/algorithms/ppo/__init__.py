"""PPO: its loss, term by term, and the passes of the network that it is learned with."""
