"""The place of env rows in a run: for factories that ask for it, for what differs by row, and for
the seeds, which differ by row, worker and part of a resumed run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Place(NamedTuple):
    """Where rows are: ``worker`` is the number of the actor, rank or evaluator that steps them,
    from 0, and ``first_row`` the number of the first one among all rows of that worker. There are
    ``workers`` of them. ``threads``: the number of threads in which the rows may step."""

    worker: int = 0
    first_row: int = 0
    workers: int = 1
    threads: int = 1

    def among_all(self, rows: int) -> tuple[npt.NDArray[np.int64], int]:
        """Return numbers of the ``rows`` rows of an env vector among those of all workers, int64
        [rows], and how many all are. The rows of a worker are at equal distances, so that each has
        some of the whole range. (Those of its splits have the same numbers.)"""
        return np.arange(rows) * self.workers + self.worker, rows * self.workers

    def arguments(
        self, factory: Callable[..., Any], row: int, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of ``factory`` for its ``row``-th row: those ``given`` by the user,
        and ``worker_index`` and ``vector_index`` (the row's number in its worker) as far as the
        factory has parameters of these names that the user has not given. A factory of this
        package that makes another one's environment has ``_place``."""
        place = self._replace(first_row=self.first_row + row)
        own = {"worker_index": self.worker, "vector_index": place.first_row, "_place": place}
        return {**{n: v for n, v in own.items() if takes(factory, n)}, **given}


SOMEWHERE = Place()
"""Of rows whose place does not matter."""


def takes(factory: Callable[..., Any], name: str) -> bool:
    """Return whether a factory has a parameter of this name."""
    return name in inspect.signature(factory).parameters


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
