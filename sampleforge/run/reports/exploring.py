"""Mean returns of env rows by how much they explore."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import numpy as np

from sampleforge.shared.records import EpisodeRecord
from sampleforge.topologies.graph import Exploration

_GROUPS = 8


class ReturnsByExploration:
    """Mean returns over the last ``window`` episodes of several groups of env rows.

    The groups are all rows, the middle and the most exploring third of the rows, and up to 8 equal
    parts of the ladder of epsilons, each named by its largest epsilon. The third that explores
    least gives the run's own ``return_mean``."""

    def __init__(
        self, exploration: Exploration, window: int, earlier: Mapping[str, list[float]]
    ) -> None:
        """``earlier``: the `state` of the previous part of a resumed run."""
        self._third = exploration.third
        self._group = _groups(exploration.epsilon)
        names = {"return_mean_all", "return_mean_middle_third", "return_mean_exploring_third"}
        self._returns = {
            name: deque(earlier.get(name, []), window) for name in names.union(self._group.values())
        }

    def take(self, episode: EpisodeRecord) -> bool:
        """Add an episode. Return whether it counts for the run's own return, because its row
        belongs to the third that explores least."""
        row = episode.actor, episode.split, episode.row
        names = ["return_mean_all", self._group[row]]
        third = self._third[row]
        if third:
            names.append(f"return_mean_{'middle' if third == 1 else 'exploring'}_third")
        for name in names:
            self._returns[name].append(episode.ret)
        return third == 0

    def scalars(self) -> dict[str, float]:
        """Return the mean return of each group that has episodes, by its metric's name."""
        return {n: float(np.mean(returns)) for n, returns in self._returns.items() if returns}

    def state(self) -> dict[str, list[float]]:
        """Return the returns of each group, for ``earlier`` of a resumed run."""
        return {name: list(returns) for name, returns in self._returns.items()}


def _groups(
    epsilon: Mapping[tuple[int, int, int], float],
) -> dict[tuple[int, int, int], str]:
    """Return the metric's name of each row's part of the ladder."""
    ladder = sorted(set(epsilon.values()), reverse=True)
    size = math.ceil(len(ladder) / _GROUPS)
    largest = {each: ladder[i // size * size] for i, each in enumerate(ladder)}
    return {row: f"return_mean_epsilon_{largest[own]:.2g}" for row, own in epsilon.items()}
