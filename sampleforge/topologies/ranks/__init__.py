"""The topology of DD-PPO: ranks, each of which acts and learns; plan, wiring, and a rank."""
