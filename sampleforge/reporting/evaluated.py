"""What the evaluator has found: each evaluation in one report, the last one in the summary."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from sampleforge.shared.records import Evaluation

PREFIX = "eval_"
"""Of the scalars' names, before the field's of `Evaluation`."""


class EvaluationReports:
    """Hands out each evaluation once, as scalars. ``earlier``: the `last` of the run before."""

    def __init__(self, earlier: Mapping[str, float]) -> None:
        self.last: dict[str, float] = dict(earlier)
        self._waiting: deque[dict[str, float]] = deque()

    def take(self, evaluations: Iterable[Evaluation]) -> None:
        for evaluation in evaluations:
            self.last = {f"{PREFIX}{n}": v for n, v in evaluation._asdict().items()}
            self._waiting.append(self.last)

    @property
    def waits(self) -> bool:
        """Whether there is one that has not been reported."""
        return bool(self._waiting)

    def scalars(self) -> dict[str, float]:
        """The oldest that waits, for the report that is made now; nothing if there is none."""
        return self._waiting.popleft() if self._waiting else {}


def evaluated(values: Mapping[str, float], policy: str = "") -> dict[str, float]:
    """Return those of a report's values that are of an evaluation. ``policy``: what the names of
    the policy's metrics begin with, which is nothing in a run with one policy."""
    return {name: value for name, value in values.items() if name.startswith(policy + PREFIX)}


def evaluations(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the evaluations that a report holds: what the names of the policy's metrics begin with
    -> the values, under their full names."""
    marks = [name for name in values if name.endswith(f"{PREFIX}env_steps")]
    found = {name.removesuffix(f"{PREFIX}env_steps"): name for name in marks}
    return {policy: evaluated(values, policy) for policy in found}
