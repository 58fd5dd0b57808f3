"""The statistics of one policy: returns, lengths, policy lag, updates, evaluations."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from sampleforge.env.games import OF_TYPE
from sampleforge.run.reports.metrics import PREFIX
from sampleforge.runtime.config import RunConfig
from sampleforge.shared.counters import Counters
from sampleforge.shared.records import EpisodeRecord, Evaluation
from sampleforge.topologies.graph import Exploration, PolicyGroup
from sampleforge.workers.metrics import CUSTOM

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

    def forget(self) -> None:
        """Forget the episodes so far."""
        for returns in self._returns.values():
            returns.clear()

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


_Lag = tuple[float | None, float | None]
_UNKNOWN: _Lag = (None, None)
"""Where learners report no lag."""
LAST_EPISODES = RunConfig.metrics_window
"""The default of --metrics-window."""


class PolicyStatistics:
    """Collects the finished episodes, the evaluations and the learner's metrics of one policy
    group. ``earlier``: the `state` of the run that is resumed, empty for a new one; ``window``: the
    number of last episodes whose means are reported; ``types``: the type of the agent in each seat,
    if there are several (see `sampleforge.env.games`).

    An episode of several agents is a whole game, whose return is the mean over the agents that the
    policy played."""

    def __init__(
        self,
        group: PolicyGroup,
        counters: Counters,
        earlier: Mapping[str, Any],
        window: int = LAST_EPISODES,
        types: Sequence[str] = (),
    ) -> None:
        self._window = window
        self._types = types
        self.id = group.id
        self._exchange = group.exchange
        self._counters = counters
        self._learners = [node.counter_row for node in group.learners]
        self.episodes = int(earlier.get("episodes", 0))
        self.returns: deque[float] = deque(earlier.get("returns", []), window)
        self.lengths: deque[int] = deque(earlier.get("lengths", []), window)
        self._of_type = {
            name: deque[float](earlier.get("of_type", {}).get(name, []), window)
            for name in dict.fromkeys(types)
        }
        before = earlier.get("of_run", [])
        self.of_run: deque[tuple[float, int]] = deque(
            ((ret, length) for ret, length in before), window
        )
        """Returns and lengths that count in the run's own means: the games of this policy, each
        with the agents of all policies. Every game is in that of one policy."""
        self.return_best: float | None = earlier.get("return_best")
        self.copies = int(earlier.get("copies", 0))
        """How often copies of another's weights have replaced the policy's own before its episodes
        began."""
        self._newest_copy = self.copies
        self._exploring: ReturnsByExploration | None = None
        if group.exploration is not None:
            before = earlier.get("exploring", {})
            self._exploring = ReturnsByExploration(group.exploration, window, before)
        self._lag: _Lag = tuple(earlier.get("policy_lag", _UNKNOWN))
        self._lag_batches: _Lag = tuple(earlier.get("policy_lag_batches", _UNKNOWN))
        self._updates = int(earlier.get("updates", 0))
        self._skipped = int(earlier.get("skipped_updates", 0))
        self._custom = {
            name: deque[float](values, window)
            for name, values in earlier.get("custom_metrics", {}).items()
        }
        self.last_evaluation: dict[str, float] = dict(earlier.get("evaluation", {}))
        """The scalars of the newest evaluation; empty before the first."""
        self._evaluated_from = 0
        self.evaluations: deque[dict[str, float]] = deque()
        """Those of the evaluations that no report has had yet."""

    def see(self, game: Sequence[EpisodeRecord]) -> bool:
        """Count a finished game. Return whether its return counts as the policy's: if env rows
        explore differently, only those of the third that explores least do, and those of the other
        rows are reported separately."""
        self.episodes += 1
        if self._exploring is None:
            return True
        return self._exploring.take(game[0]._replace(ret=mean_return(game)))

    def take(self, game: Sequence[EpisodeRecord], of_run: float | None) -> None:
        """Take a finished game whose return counts: the records of the policy's own agents.
        ``of_run``: the mean return of the agents of all policies, if the game is one of
        `of_run`."""
        length = game[0].game_length or game[0].length
        self.returns.append(mean_return(game))
        self.lengths.append(length)
        if of_run is not None:
            self.of_run.append((of_run, length))
        returns: dict[str, list[float]] = {}
        for record in game if self._types else ():
            returns.setdefault(self._types[record.seat], []).append(record.ret)
        for name, own in returns.items():
            self._of_type[name].append(sum(own) / len(own))

    def expect_copy(self, number: int) -> None:
        """Take note that the copy with this ``number`` (from 1) is on its way, which replaces the
        policy's weights at some time: until `begin_copy`, nothing rates its checkpoints."""
        self._newest_copy = number

    def begin_copy(self) -> None:
        """Take note that all episodes from now on are those of the newest copy."""
        self.copies = self._newest_copy

    def forget_returns(self) -> None:
        """Forget the returns so far, the best mean among them."""
        self.return_best = None
        self.returns.clear()
        self.lengths.clear()
        self.of_run.clear()
        for returns in (*self._of_type.values(), *self._custom.values()):
            returns.clear()
        if self._exploring is not None:
            self._exploring.forget()

    def forget_evaluation(self, version: int) -> None:
        """Forget the newest evaluation: the policy has other weights since its ``version``, and an
        evaluation of earlier ones that comes now is only reported."""
        self._evaluated_from, self.last_evaluation = version, {}

    def rate(self) -> None:
        """Update the best mean, after the newest games."""
        mean = self.return_mean
        if mean is not None and len(self.returns) == self._window:
            self.return_best = mean if self.return_best is None else max(self.return_best, mean)

    def take_evaluations(self, evaluations: Iterable[Evaluation]) -> None:
        """Take finished evaluations; each will be in one report."""
        for evaluation in evaluations:
            scalars = {f"{PREFIX}{n}": v for n, v in evaluation.scalars().items()}
            self.evaluations.append(scalars)
            if evaluation.policy_version >= self._evaluated_from:
                self.last_evaluation = scalars

    def take_custom_metric(self, name: str, value: float) -> None:
        """Take a metric that callbacks have added to an episode whose return counts."""
        self._custom.setdefault(name, deque(maxlen=self._window)).append(value)

    @property
    def custom(self) -> Mapping[str, Sequence[float]]:
        """The values of these metrics in the last episodes that have them, by name."""
        return self._custom

    def _custom_scalars(self, learner: Mapping[str, float]) -> dict[str, float]:
        """Return mean, minimum and maximum of each of these metrics over the last episodes that
        have it. Raises ValueError for one that callbacks add to updates, too."""
        scalars = {}
        for name, values in self._custom.items():
            if f"{name}_mean" in learner:
                raise ValueError(
                    f"custom_metrics[{name.removeprefix(CUSTOM)!r}] is given by episodes and by "
                    "updates of the learner; rename one of the two"
                )
            if values:
                scalars[f"{name}_mean"] = float(np.mean(values))
                scalars[f"{name}_min"] = float(np.min(values))
                scalars[f"{name}_max"] = float(np.max(values))
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

    def rating(self) -> dict[str, float | int | None]:
        """Return the rating of the policy that a checkpoint stores: ``copies`` so far, one that is
        on its way among them; ``return_mean`` over a full window of episodes (None before, because
        the mean of a few may be luck), and the last evaluation's mean with the env steps of its
        weights. Returns of weights that a copy has replaced, or is about to, rate nothing."""
        is_own = self.copies == self._newest_copy
        full = is_own and len(self.returns) == self._window
        evaluation = self.last_evaluation if is_own else {}
        steps = evaluation.get("eval_env_steps")
        return {
            "copies": self._newest_copy,
            "return_mean": self.return_mean if full else None,
            "eval_return_mean": evaluation.get("eval_return_mean"),
            "eval_env_steps": None if steps is None else int(steps),
        }

    def after(self, games: Iterable[tuple[Sequence[EpisodeRecord], float | None]]) -> Self:
        """Return the statistics as they would be after a `take` of each of ``games``."""
        later = copy.copy(self)
        later.returns, later.lengths = self.returns.copy(), self.lengths.copy()
        later.of_run, later._of_type = self.of_run.copy(), copy.deepcopy(self._of_type)
        later._custom = copy.deepcopy(self._custom)
        for game in games:
            later.take(*game)
        return later

    def state(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint stores."""
        return {
            "episodes": self.episodes,
            "returns": list(self.returns),
            "return_best": self.return_best,
            "copies": self._newest_copy,
            "lengths": list(self.lengths),
            "of_run": [[ret, length] for ret, length in self.of_run],
            "of_type": {name: list(returns) for name, returns in self._of_type.items()},
            "custom_metrics": {name: list(values) for name, values in self._custom.items()},
            "exploring": {} if self._exploring is None else self._exploring.state(),
            "policy_lag": list(self._lag),
            "policy_lag_batches": list(self._lag_batches),
            "updates": self.updates,
            "skipped_updates": self.skipped_updates,
            "evaluation": self.last_evaluation,
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
            **(self.evaluations.popleft() if self.evaluations else {}),
            **{f"{OF_TYPE}{n}": float(np.mean(own)) for n, own in self._of_type.items() if own},
            **_return_scalars(self.returns, self.lengths, [self]),
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
            **_known(_return_scalars(self.returns, self.lengths, [self])),
            "policy_lag": {
                "mean": self._lag[0],
                "max": self._lag[1],
                "batches_mean": self._lag_batches[0],
                "batches_max": self._lag_batches[1],
            },
            **self.last_evaluation,
        }


def mean_return(game: Sequence[EpisodeRecord]) -> float:
    """Return the mean return of agents in a game."""
    return sum(record.ret for record in game) / len(game)


def return_scalars(policies: Sequence[PolicyStatistics]) -> dict[str, float]:
    """Return mean and standard deviation of the run's last returns, their number, the mean length,
    and the highest mean of a policy. Values that are not known yet are left out."""
    games = [game for policy in policies for game in policy.of_run]
    return _return_scalars([ret for ret, _ in games], [length for _, length in games], policies)


def return_summary(policies: Sequence[PolicyStatistics]) -> dict[str, float | None]:
    """Return the statistics of the run's returns for summary.json; None for values that are not
    known."""
    return _known(return_scalars(policies))


def _return_scalars(
    returns: Iterable[float], lengths: Iterable[int], policies: Iterable[PolicyStatistics]
) -> dict[str, float]:
    best = [policy.return_best for policy in policies if policy.return_best is not None]
    returns, scalars = list(returns), {}
    if returns:
        scalars["return_mean"] = float(np.mean(returns))
        scalars["return_std"] = float(np.std(returns))
        scalars["return_episodes"] = float(len(returns))
        scalars["length_mean"] = float(np.mean(list(lengths)))
    return {**scalars, "return_best": max(best)} if best else scalars


def _known(scalars: Mapping[str, float]) -> dict[str, float | None]:
    names = ("return_mean", "return_best", "return_std", "return_episodes")
    return {name: scalars.get(name) for name in names}


def _newer_lag(known: _Lag, learner: Mapping[str, float], name: str) -> _Lag:
    """Return the newest mean, and the highest maximum so far."""
    if f"{name}_mean" not in learner:
        return known
    highest = learner[f"{name}_max"]
    return learner[f"{name}_mean"], highest if known[1] is None else max(known[1], highest)
