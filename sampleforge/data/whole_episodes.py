"""The episodes of a dataset, each as a whole, also those that were recorded in several parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.data.dataset import StoredEpisode

_PER_STEP = (
    "rewards",
    "terminations",
    "truncations",
    "log_probs",
    "policy_version",
    "parameters",
    "independent",
)


def whole_episodes(parts: Iterable[StoredEpisode]) -> Iterator[StoredEpisode]:
    """Yield the episodes of which ``parts`` consist, in the order in which they end; those whose
    ends are missing come last, or when the same stream's next recording begins.

    A long episode is recorded in several parts if it does not fit the recorder's memory. If these
    were taken for episodes without an end, long episodes would be missing."""
    unfinished: dict[tuple[int, ...], list[StoredEpisode]] = {}
    for part in parts:
        if part.number is None:
            yield part
            continue
        before = unfinished.pop(part.number, [])
        if before and (part.begins or not _follows(before[-1], part)):
            yield _joined(before)
            before = []
        if part.ends or not (part.begins or before):
            yield _joined([*before, part])
        else:
            unfinished[part.number] = [*before, part]
    for left in unfinished.values():
        yield _joined(left)


def _follows(before: StoredEpisode, part: StoredEpisode) -> bool:
    """Return whether ``part`` begins with the observation that ``before`` ends with."""
    return all(
        np.array_equal(leaf[-1], part.observations[name][0])
        for name, leaf in before.observations.items()
    )


def _joined(parts: Sequence[StoredEpisode]) -> StoredEpisode:
    """Return one episode of consecutive parts."""
    if len(parts) == 1:
        return parts[0]
    last = parts[-1]
    observations = {
        name: np.concatenate([*(part.observations[name][:-1] for part in parts[:-1]), leaf])
        for name, leaf in last.observations.items()
    }
    actions = {n: np.concatenate([part.actions[n] for part in parts]) for n in last.actions}
    columns: dict[str, Any] = {
        name: _column([getattr(part, name) for part in parts]) for name in _PER_STEP
    }
    begin, end = parts[0].span, last.span
    span = None if begin is None or end is None else (begin[0], end[1])
    return dataclasses.replace(
        parts[0], observations=observations, actions=actions, span=span, **columns
    )


def _column(parts: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[Any] | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None
