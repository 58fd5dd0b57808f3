"""The place of env rows in a run: for factories that ask for it, and for what differs by row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Place(NamedTuple):
    """Where rows are: ``worker`` is the number of the actor, rank or evaluator that steps them,
    from 0, and ``first_row`` the number of the first one among all rows of that worker. There are
    ``workers`` of them."""

    worker: int = 0
    first_row: int = 0
    workers: int = 1

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
        factory has parameters of these names that the user has not given."""
        own = {"worker_index": self.worker, "vector_index": self.first_row + row}
        return {**{n: v for n, v in own.items() if takes(factory, n)}, **given}


def takes(factory: Callable[..., Any], name: str) -> bool:
    """Return whether a factory has a parameter of this name."""
    return name in inspect.signature(factory).parameters
