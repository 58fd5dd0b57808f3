"""The topology of DD-PPO: its plan, its wiring, and its ranks under torchrun."""
