"""The exploration rate of each env row."""

from __future__ import annotations

import torch


def epsilon_ladder(rows: int, base: float, exponent: float) -> torch.Tensor:
    """Return Ape-X's fixed epsilon of each env row, float64 [rows].

    eps_i = base ** (1 + exponent * i / (rows - 1)) (arXiv 1803.00933, section 4); a single row has
    ``base``."""
    assert rows >= 1 and 0 <= base <= 1
    step = torch.arange(rows, dtype=torch.float64) / max(1, rows - 1)
    return torch.full((rows,), base, dtype=torch.float64) ** (1 + exponent * step)
