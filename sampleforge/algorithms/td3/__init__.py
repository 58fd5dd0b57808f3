"""TD3: continuous control from a replay, with a deterministic policy (Fujimoto et al. 2018, arXiv
1802.09477)."""
