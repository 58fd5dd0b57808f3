"""The seeds of env rows, all from one SeedSequence per run, and the numbers that tell the other
streams of random numbers of a run apart.

`POLICY_STREAM`, `FROZEN_STREAM` and `EVALUATOR_STREAM` replace the number of a split in
`row_seeds`. `DATASET_STREAM` and `POPULATION_STREAM` follow the seed of the run in the entropy of a
generator. `row_seeds` has its numbers in the spawn key, which is mixed in behind the whole entropy,
so that `EVALUATOR_STREAM` and `DATASET_STREAM` give different numbers although they are equal.
"""

from __future__ import annotations

import numpy as np

POLICY_STREAM = 1_000_000
"""Action sampling of an actor or a policy worker."""
FROZEN_STREAM = 2_000_000
"""Action sampling of the frozen policies."""
EVALUATOR_STREAM = 3_000_000
"""The evaluators beside the first."""
DATASET_STREAM = 3_000_000
"""The shuffle buffers of datasets."""
POPULATION_STREAM = 7_000_000
"""The decisions and the segments of a population."""


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
