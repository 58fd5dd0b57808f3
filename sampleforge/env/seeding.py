"""The seeds of env rows, all from one SeedSequence per run."""

from __future__ import annotations

import numpy as np


def row_seeds(
    seed: int, worker: int, split: int, rows: int, resumes: int = 0, life: int = 0
) -> list[int]:
    """Return one seed per env row, in [0, 2**31), for split ``split`` of actor ``worker``.

    The same arguments give the same seeds; another worker, split, ``resumes`` or ``life`` gives
    independent ones. ``resumes`` counts restarts of the run, ``life`` those of the worker, which
    must not play the same episodes again.
    """
    key = (worker, split, resumes, life) if life else (worker, split, resumes)
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    # 31 bits: ALE and others take a signed 32-bit seed.
    return [int(word) >> 1 for word in sequence.generate_state(rows, np.uint32)]


def next_seed(seed: int, count: int) -> int:
    """Return the seed of a row that is rebuilt for the ``count``-th time."""
    return row_seeds(seed, 0, 0, 1, resumes=count)[0]
