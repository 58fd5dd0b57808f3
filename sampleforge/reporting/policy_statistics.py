"""The statistics of one policy: returns, lengths, policy lag, updates, evaluations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sampleforge.reporting.evaluated import EvaluationReports
from sampleforge.reporting.exploring import ReturnsByExploration
from sampleforge.runtime.config import RunConfig
from sampleforge.shared.counters import Counters
from sampleforge.shared.records import EpisodeRecord
from sampleforge.topologies.graph import PolicyGroup
from sampleforge.workers.metrics import CUSTOM

LAST_EPISODES = RunConfig.metrics_window
"""The default of --metrics-window."""


class PolicyStatistics:
    """Collects the finished episodes, the evaluations and the learner's metrics of one policy
    group. ``earlier``: the `state` of the run that is resumed, empty for a new one; ``window``: the
    number of last episodes whose means are reported."""

    def __init__(
        self,
        group: PolicyGroup,
        counters: Counters,
        earlier: Mapping[str, Any],
        window: int = LAST_EPISODES,
    ) -> None:
        self._window = window
        self.id = group.id
        self._exchange = group.exchange
        self._counters = counters
        self._learners = [node.counter_row for node in group.learners]
        self.episodes = int(earlier.get("episodes", 0))
        self.returns: deque[float] = deque(earlier.get("returns", []), window)
        self.lengths: deque[int] = deque(earlier.get("lengths", []), window)
        self.return_best: float | None = earlier.get("return_best")
        self._exploring: ReturnsByExploration | None = None
        if group.exploration is not None:
            before = earlier.get("exploring", {})
            self._exploring = ReturnsByExploration(group.exploration, window, before)
        self._lag: tuple[float, float] = tuple(earlier.get("policy_lag", (0.0, 0.0)))
        self._lag_batches: tuple[float, float] = tuple(
            earlier.get("policy_lag_batches", (0.0, 0.0))
        )
        self._updates = int(earlier.get("updates", 0))
        self._skipped = int(earlier.get("skipped_updates", 0))
        self._custom: dict[str, deque[float]] = {}
        self.evaluations = EvaluationReports(earlier.get("evaluation", {}))

    def take_episodes(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Take finished episodes. If env rows explore differently, only the returns of the third
        that explores least count as the policy's; those of the other rows are reported separately.
        """
        for episode in episodes:
            self.episodes += 1
            if self._exploring is None or self._exploring.take(episode):
                self.returns.append(episode.ret)
                self.lengths.append(episode.length)
        mean = self.return_mean
        if mean is not None and len(self.returns) == self._window:
            self.return_best = mean if self.return_best is None else max(self.return_best, mean)

    def take_custom_metrics(self, metrics: Mapping[str, float]) -> None:
        """Take the metrics that callbacks have added to an episode."""
        for name, value in metrics.items():
            self._custom.setdefault(name, deque(maxlen=self._window)).append(value)

    def _custom_scalars(self, learner: Mapping[str, float]) -> dict[str, float]:
        """Return mean, minimum and maximum of each of these metrics over the last episodes that
        have it. Raises ValueError for one that callbacks add to updates, too."""
        scalars = {}
        for name, values in self._custom.items():
            if f"{CUSTOM}{name}_mean" in learner:
                raise ValueError(
                    f"custom_metrics[{name!r}] is given by episodes and by updates of the learner; "
                    "rename one of the two"
                )
            scalars[f"{CUSTOM}{name}_mean"] = float(np.mean(values))
            scalars[f"{CUSTOM}{name}_min"] = float(np.min(values))
            scalars[f"{CUSTOM}{name}_max"] = float(np.max(values))
        return scalars

    @property
    def return_mean(self) -> float | None:
        """Mean raw return of the last ``window`` episodes, None before the first."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def updates(self) -> int:
        """Gradient steps so far, also in earlier runs of the folder."""
        return max(self._updates, int(self._counters.column("updates")[self._learners].sum()))

    @property
    def skipped_updates(self) -> int:
        """Those of the ``updates`` that were not applied, because the gradient was not finite."""
        return self._skipped + self._skipped_now

    @property
    def _skipped_now(self) -> int:
        return int(self._counters.column("skipped_updates")[self._learners].sum())

    @property
    def updates_since_start(self) -> tuple[int, int]:
        """Number of updates since the run was started or resumed, and how many were applied."""
        made = self.updates - self._updates
        return made, made - self._skipped_now

    @property
    def trained_steps(self) -> float:
        """Env steps that the group's learners have learned from since the run began."""
        return float(self._counters.column("trained_steps")[self._learners].sum())

    def rating(self) -> dict[str, float | int | None]:
        """Return the rating of the policy that a checkpoint stores: ``return_mean`` over a
        full window of episodes (None before, because the mean of a few may be luck), and the last
        evaluation's mean with the env steps of its weights."""
        full = len(self.returns) == self._window
        steps = self.evaluations.last.get("eval_env_steps")
        return {
            "return_mean": self.return_mean if full else None,
            "eval_return_mean": self.evaluations.last.get("eval_return_mean"),
            "eval_env_steps": None if steps is None else int(steps),
        }

    def state(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint stores."""
        return {
            "episodes": self.episodes,
            "returns": list(self.returns),
            "return_best": self.return_best,
            "lengths": list(self.lengths),
            "exploring": {} if self._exploring is None else self._exploring.state(),
            "policy_lag": list(self._lag),
            "policy_lag_batches": list(self._lag_batches),
            "updates": self.updates,
            "skipped_updates": self.skipped_updates,
            "evaluation": self.evaluations.last,
        }

    def scalars(self, learner: Mapping[str, float]) -> dict[str, float]:
        """Return the policy's scalars of a report. ``learner``: its learner's metrics since the
        last report."""
        self._lag = _newer_lag(self._lag, learner, "policy_lag")
        self._lag_batches = _newer_lag(self._lag_batches, learner, "policy_lag_batches")
        seen = learner.get("valid_steps", 0.0)
        return {
            "episodes": float(self.episodes),
            "updates": float(self.updates),
            "skipped_updates": float(self.skipped_updates),
            **self._fills(),
            "stale_fraction": learner.get("stale_steps", 0.0) / seen if seen else 0.0,
            **({} if self._exploring is None else self._exploring.scalars()),
            **learner,
            **self._custom_scalars(learner),
            **self.evaluations.scalars(),
            **return_scalars([self]),
        }

    def _fills(self) -> dict[str, float]:
        """Return the fractions of the slots that wait for an actor, and for the learner."""
        if self._exchange is None:
            return {}
        free, ready = self._exchange.fill()
        return {"free_slots_fill": free, "ready_slots_fill": ready}

    def summary(self) -> dict[str, Any]:
        """Return the policy's part of summary.json."""
        return {
            "updates": self.updates,
            "skipped_updates": self.skipped_updates,
            "episodes": self.episodes,
            **return_summary([self]),
            "policy_lag": {
                **{"mean": self._lag[0], "max": self._lag[1]},
                "batches_mean": self._lag_batches[0],
                "batches_max": self._lag_batches[1],
            },
            **self.evaluations.last,
        }


def return_scalars(policies: Iterable[PolicyStatistics]) -> dict[str, float]:
    """Return mean and standard deviation over the last returns of each of ``policies``, the
    mean length, and the highest mean of a policy. Values that are not known yet are left out."""
    policies = list(policies)
    returns = [ret for policy in policies for ret in policy.returns]
    best = [policy.return_best for policy in policies if policy.return_best is not None]
    scalars = {}
    if returns:
        lengths = [length for policy in policies for length in policy.lengths]
        scalars["return_mean"] = float(np.mean(returns))
        scalars["return_std"] = float(np.std(returns))
        scalars["length_mean"] = float(np.mean(lengths))
    return {**scalars, "return_best": max(best)} if best else scalars


def return_summary(policies: Iterable[PolicyStatistics]) -> dict[str, float | None]:
    """Return the statistics of returns for summary.json; None for values that are not known."""
    known = return_scalars(policies)
    return {name: known.get(name) for name in ("return_mean", "return_best", "return_std")}


def _newer_lag(
    known: tuple[float, float], learner: Mapping[str, float], name: str
) -> tuple[float, float]:
    """Return the newest mean, and the highest maximum so far."""
    if f"{name}_mean" not in learner:
        return known
    return learner[f"{name}_mean"], max(known[1], learner[f"{name}_max"])
