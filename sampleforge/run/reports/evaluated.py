"""The results of the evaluator as scalars: each evaluation in one report, the last one in the
summary."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sampleforge.shared.records import Evaluation

PREFIX = "eval_"
"""The beginning of the scalars' names; a field of `Evaluation`, or the name of a metric of the
user's own evaluation function, follows it."""


class EvaluationReports:
    """Returns each evaluation once, as scalars. ``earlier``: the value of `last` in the previous
    part of a resumed run."""

    def __init__(self, earlier: Mapping[str, float]) -> None:
        self.last: dict[str, float] = dict(earlier)
        self._waiting: deque[dict[str, float]] = deque()

    def take(self, evaluations: Iterable[Evaluation]) -> None:
        """Add evaluations to those that wait for a report."""
        for evaluation in evaluations:
            self.last = {f"{PREFIX}{n}": v for n, v in evaluation.scalars().items()}
            self._waiting.append(self.last)

    @property
    def waits(self) -> bool:
        """Whether an evaluation has not been reported yet."""
        return bool(self._waiting)

    def scalars(self) -> dict[str, float]:
        """Remove and return the oldest evaluation that waits; empty if there is none."""
        return self._waiting.popleft() if self._waiting else {}


def evaluated(values: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    """Return the values of a report that come from an evaluation. ``prefix``: the beginning of the
    names of the policy's metrics; empty in a run with one policy."""
    return {name: value for name, value in values.items() if name.startswith(prefix + PREFIX)}


def evaluations(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the evaluations in a report: beginning of the names of a policy's metrics -> the
    values of its evaluation, under their full names."""
    last = f"{PREFIX}env_steps"
    prefixes = [name.removesuffix(last) for name in values if name.endswith(last)]
    return {prefix: evaluated(values, prefix) for prefix in prefixes}
