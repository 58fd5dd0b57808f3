"""Random rewards with episode ends of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np


def random_rollout(seed: int, length: int = 20, rows: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    ends = rng.random((length, rows)) < 0.2
    valid = np.ones((length, rows), np.bool_)
    for t in range(1, length):
        ends[t] &= ~ends[t - 1]
        valid[t] = ~ends[t - 1]
    terminated = ends & (rng.random((length, rows)) < 0.5)
    reward = rng.standard_normal((length, rows)).astype(np.float32)
    truncated = ends & (~terminated | (rng.random((length, rows)) < 0.3))  # both at once, too
    return {"reward": reward, "terminated": terminated, "truncated": truncated, "valid": valid}
