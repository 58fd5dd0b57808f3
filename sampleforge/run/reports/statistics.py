"""The statistics of a run: the scalars of its reports, and the measured part of summary.json."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sampleforge.env.games import OF_ENV, OF_RUN, types_of_seats
from sampleforge.run.reports.policy_statistics import (
    LAST_EPISODES,
    PolicyStatistics,
    mean_return,
    return_scalars,
    return_summary,
)
from sampleforge.shared.records import EpisodeRecord, games
from sampleforge.topologies.graph import Graph

if TYPE_CHECKING:
    from sampleforge.run.session import Session

PATIENCE = 10
"""Windows of episodes after which a row that has ended fewer than the others is not waited for."""


class FirstEpisodes:
    """Decides which episodes count at the beginning of a run: as many of each of its ``rows`` env
    rows, because a row with long episodes has ended few when another has ended many.

    That holds until ``window`` episodes count: later ones count as they end. It also ends when
    `PATIENCE` times as many episodes (or as rows, if these are more) have ended, so that a row
    whose episode has no end is not waited for for ever.
    """

    def __init__(self, rows: int, window: int) -> None:
        self._rows = rows
        self._left = self._window = window if rows > 1 else 0
        self._patience = PATIENCE * max(window, rows)
        self._waiting: dict[tuple[int, int, int], deque[tuple[int, Sequence[EpisodeRecord]]]] = {}
        """By row, each with a number that grows from one to the next."""

    @property
    def waiting(self) -> list[Sequence[EpisodeRecord]]:
        """The games that have ended and do not count yet, in the order in which they ended."""
        waiting = [each for row in self._waiting.values() for each in row]
        return [game for _, game in sorted(waiting, key=lambda each: each[0])]

    @property
    def early(self) -> list[Sequence[EpisodeRecord]]:
        """The same as long as none has counted; then none."""
        return self.waiting if self._left == self._window else []

    def take(self, game: Sequence[EpisodeRecord]) -> list[Sequence[EpisodeRecord]]:
        """Take the records of a game that has ended (an episode, with one agent); return the games
        that count from now on."""
        if self._left <= 0:
            return [game]
        self._waiting.setdefault(game[0][:3], deque()).append((-self._patience, game))
        self._patience -= 1
        if self._patience <= 0:
            self._left, counted = 0, self.waiting
            self._waiting = {}
            return counted
        counted = []
        if len(self._waiting) == self._rows and all(self._waiting.values()):
            counted = [self._waiting[row].popleft()[1] for row in sorted(self._waiting)]
            self._left -= len(counted)
        if self._left <= 0:
            self._waiting = {}
        return counted


_Part = tuple[Sequence[EpisodeRecord], float | None]
KEPT = (
    "restarts",
    "nonfinite_steps",
    "far_values",
    "env_restarts",
    "env_frames",
    "trained_steps",
    "checksums_compared",
)
"""Counters whose totals go on over the runs of a folder."""
ALSO_OF_EVALUATORS = ("restarts", "env_restarts")
MOST_LATE = 10_000
"""Episodes whose record has come, and whose statistics are waited for."""
EARLY = "return_mean_early"
"""The name of the mean return of the first episodes while none counts."""


class RunStatistics:
    """Collects the workers' counters, with rates over 10 and 60 seconds; ``policies`` are the
    statistics of the graph's policy groups, in their order.

    With several policies, the names of each policy's scalars begin with `Graph.prefix`; the run's
    own ``return_mean`` is over the last episodes of all policies together: with several agents,
    each is a whole game, with the mean return of all agents that trained policies played.
    """

    def __init__(
        self,
        graph: Graph,
        earlier: Mapping[str, Mapping[str, Any]],
        window: int = LAST_EPISODES,
        *,
        rows: int = 0,
        types: Sequence[str] = (),
    ) -> None:
        """``earlier``: the `state` of each policy group in the run that is resumed, by the group's
        id; empty for a new run. ``window``: the number of last episodes whose means are reported.
        ``rows``: number of the run's env rows (0: the first episodes are as good as the later
        ones, see `FirstEpisodes`); ``types``: as in `PolicyStatistics`."""
        self._window = window
        self._graph = graph
        self._history: deque[tuple[float, float, float, float]] = deque()
        self._remember()
        self.policies = [
            PolicyStatistics(group, graph.counters, earlier.get(group.id, {}), window, types)
            for group in graph.groups
        ]
        self._first = FirstEpisodes(*first_of(graph, rows, window))
        # The checkpoints of the policies are written one after the other: the last has the most.
        run = max(earlier.values(), key=lambda state: state.get("env_frames", 0), default={})
        self._before = {name: int(run.get(name, 0)) for name in KEPT}
        self._restarts_by_role: dict[str, int] = run.get("restarts_by_role", {})
        self._nonfinite_told = False
        self._metrics_told: set[str] = set()
        self._of_env = {
            name: deque[float](values, window)
            for name, values in run.get("env_stats", {}).items()
            if name.removeprefix(OF_ENV) not in OF_RUN  # of a folder that has them
        }
        self._stats: dict[int, Mapping[str, float]] = {}
        """By number, of the episodes whose record has not come, or waits to count."""
        self._late: dict[int, int | None] = {}
        """The numbers that counted records have named before what they name has come, and their
        policies; None: it does not count."""
        self._games = int(run.get("run_episodes", 0))
        self._reported = 0.0, self._games
        """Env steps since the run was started or resumed, and episodes, at the last report."""

    def take_episodes(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Take finished episodes, whole games with several agents; each counts for the policy that
        acted when it ended."""
        for game in games(episodes):
            self._games += 1
            seen = [self.policies[index].see(own) for index, (own, _) in _parts(game)]
            if any(seen):
                for counted in self._first.take(game):
                    self._count(counted)
            else:
                self._count_stats(game, counts=False)
        for policy in self.policies:
            policy.rate()

    def _count(self, game: Sequence[EpisodeRecord]) -> None:
        """Add a game to the means of the policies that have played it."""
        for index, part in _parts(game):
            self.policies[index].take(*part)
        self._count_stats(game, counts=True)

    def take_stats(self, number: int, stats: Mapping[str, float]) -> None:
        """Take what the environment and callbacks report of an episode, by its name in reports. It
        counts with the episode's record, which has its ``number``."""
        if number in self._late:
            self._count_values(self._late.pop(number), stats)
        else:
            self._stats[number] = stats

    def _count_stats(self, game: Sequence[EpisodeRecord], *, counts: bool) -> None:
        """Add what is reported of the episodes of a game to the means, or forget it."""
        for record in game:
            policy = record.policy if counts else None
            if record.stats in self._stats:
                self._count_values(policy, self._stats.pop(record.stats))
            elif record.stats:
                self._late[record.stats] = policy
                if len(self._late) > MOST_LATE:  # lost: a full queue of events drops some
                    del self._late[next(iter(self._late))]

    def _count_values(self, policy: int | None, stats: Mapping[str, float]) -> None:
        if policy is None:
            return
        for name, value in stats.items():
            if name.startswith(OF_ENV):
                self._of_env.setdefault(name, deque(maxlen=self._window)).append(value)
            else:
                self.policies[policy].take_custom_metric(name, value)

    def take_evaluations(self) -> None:
        """Take the finished evaluations of all policies."""
        for group, policy in zip(self._graph.groups, self.policies, strict=True):
            if group.evaluations is not None:
                policy.take_evaluations(group.evaluations.take())

    @property
    def evaluation_waits(self) -> bool:
        """Whether there is an evaluation that has not been reported."""
        return any(policy.evaluations for policy in self.policies)

    @property
    def has_news(self) -> bool:
        """Whether there are env steps, episodes or evaluations that no report has had."""
        return self.evaluation_waits or self._reported != (self._total("env_steps"), self._games)

    @property
    def return_mean(self) -> float | None:
        """Mean raw return of the last episodes of each policy, None before the first."""
        return return_scalars(self.policies).get("return_mean")

    @property
    def episodes(self) -> int:
        """Finished episodes so far, also in earlier runs of the folder. One of several agents
        counts once, whatever policies have played it."""
        return self._games

    def state(self, policy: PolicyStatistics) -> dict[str, Any]:
        """Return the plain values that a checkpoint of one policy stores."""
        return {
            **{name: self._so_far(name) for name in KEPT},
            "restarts_by_role": self._by_role(),
            "run_episodes": self.episodes,
            **self._with_those_that_wait(policy),
        }

    def _with_those_that_wait(self, policy: PolicyStatistics) -> dict[str, Any]:
        """Return the state of what is reported of episodes, as it would be if the games counted
        that do not yet."""
        later = copy.copy(self)
        later._of_env, later._stats = copy.deepcopy(self._of_env), self._stats.copy()
        later._late = self._late.copy()
        later.policies = [each.after(self._waiting_of(each)) for each in self.policies]
        for game in self._first.waiting:
            later._count_stats(game, counts=True)
        of_env = {name: list(values) for name, values in later._of_env.items()}
        return {"env_stats": of_env, **later.policies[self.policies.index(policy)].state()}

    def _waiting_of(self, policy: PolicyStatistics) -> list[_Part]:
        """Return the games of a policy that do not count yet, as `PolicyStatistics.take` takes
        them: they count in a run that is resumed, whose rows all begin anew."""
        return [
            part
            for game in self._first.waiting
            for index, part in _parts(game)
            if self.policies[index] is policy
        ]

    def scalars(self, learners: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return the scalars of a report: env steps, frames, seconds and their rates are of one
        moment. ``learners``: the metrics of each policy group's learner since the last report, by
        the group's id."""
        progress = self._graph.progress
        wall_s, env_frames, env_steps, _ = self._remember()
        self._reported = env_steps, self._games
        frames_10s, steps_10s, trained_10s = self._rates(10.0)
        frames_60s = self._rates(60.0)[0]
        scalars = {
            "env_steps": progress.base_env_steps + env_steps,
            "wall_s": wall_s,
            "env_frames": self._before["env_frames"] + env_frames,
            "frames_per_s": frames_10s,
            "frames_per_s_10s": frames_10s,
            "frames_per_s_60s": frames_60s,
            "env_steps_per_s": steps_10s,
            "trained_per_s": trained_10s,
            "episodes": float(self.episodes),
            "restarts": float(self._so_far("restarts")),
            **{f"restarts_{role}": float(count) for role, count in self._by_role().items()},
            "nonfinite_steps": float(self._so_far("nonfinite_steps")),
            "far_values": float(self._so_far("far_values")),
            "env_restarts": float(self._so_far("env_restarts")),
            "updates": float(self._updates_so_far()),
            "skipped_updates": float(self._skipped_so_far()),
            **{name: float(count) for name, count in self._checks().items()},
            **self._from_datasets(),
            **self._stages(),
            **{name: float(np.mean(values)) for name, values in self._of_env.items()},
            **self._early(),
            **return_scalars(self.policies),
        }
        for group, policy in zip(self._graph.groups, self.policies, strict=True):
            prefix, own = self._graph.prefix(group), policy.scalars(learners[group.id])
            scalars |= {prefix + name: value for name, value in own.items()}
        return scalars

    def summary(self) -> dict[str, Any]:
        """Return the measured part of summary.json, with an entry ``policies`` if there are
        several. Its rates are over the seconds of training since the run was started or resumed."""
        seconds = self._graph.progress.clock.seconds
        per_s = 1.0 / seconds if seconds else 0.0
        measured: dict[str, Any] = {
            "env_steps": self._graph.progress.env_steps,
            "env_frames": self._so_far("env_frames"),
            "wall_s": self._graph.progress.wall_s,
            "frames_per_s": self._total("env_frames") * per_s,
            "env_steps_per_s": self._total("env_steps") * per_s,
            "trained_per_s": self._total("trained_steps") * per_s,
            "updates": self._updates_so_far(),
            "skipped_updates": self._skipped_so_far(),
            **self._checks(),
            "episodes": self.episodes,
            "restarts": self._so_far("restarts"),
            "restarts_by_role": self._by_role(),
            "nonfinite_steps": self._so_far("nonfinite_steps"),
            "far_values": self._so_far("far_values"),
            "env_restarts": self._so_far("env_restarts"),
            **return_summary(self.policies),
        }
        if len(self.policies) == 1:
            measured |= self.policies[0].summary()
        else:
            measured["policies"] = {each.id: each.summary() for each in self.policies}
        early = self._early()
        if early and self.return_mean is None:
            measured["return_mean"] = early.pop(EARLY)
            measured["return_episodes"] = float(len(self._first.waiting))
            return {**measured, "return_is_early": True}
        return {**measured, "return_is_early": False, **early}

    def _early(self) -> dict[str, float]:
        """Return the mean return of the episodes that have ended since the run began or was
        resumed, while none of them counts: short ones are over-represented."""
        waiting = self._first.early
        if not waiting:
            return {}
        return {EARLY: float(np.mean([mean_return(game) for game in waiting]))}

    def _total(self, name: str) -> float:
        return self._graph.total(name)

    def _so_far(self, name: str) -> int:
        """Return the total of one of the counters `KEPT`, also in earlier runs of the folder."""
        every = self._graph.counters.total if name in ALSO_OF_EVALUATORS else self._graph.total
        return self._before[name] + int(every(name))

    def _by_role(self) -> dict[str, int]:
        """Restarts of the workers of each role so far, also in earlier runs of the folder."""
        before, now = self._restarts_by_role, self._graph.restarts()
        return {role: before.get(role, 0) + now.get(role, 0) for role in sorted({*before, *now})}

    def first_nonfinite(self) -> str | None:
        """Return a message about the first value that was not finite since the run began or was
        resumed. It is returned once; None before and afterwards."""
        if self._nonfinite_told or not self._total("nonfinite_steps"):
            return None
        self._nonfinite_told = True
        worker = int(np.flatnonzero(self._graph.counters.column("nonfinite_steps"))[0])
        value = self._graph.counters.noted(worker) or f"worker {worker}, on another machine"
        return (
            f"dropped an env step with a value that is not finite: {value}; such steps are not "
            "learned from, and counted as nonfinite_steps. If it is the environment's, correct "
            "that: `sampleforge check-env` shows how often it happens"
        )

    def nonfinite_metrics(self) -> list[str]:
        """Return a message for each metric of episodes, of the environment's or of callbacks, of
        which a value is not finite; each is returned once."""
        metrics: dict[str, Sequence[float]] = dict(self._of_env)
        for group, policy in zip(self._graph.groups, self.policies, strict=True):
            prefix = self._graph.prefix(group)
            metrics |= {prefix + name: values for name, values in policy.custom.items()}
        texts = []
        for name, values in metrics.items():
            bad = int(np.count_nonzero(~np.isfinite(values)))
            if bad and name not in self._metrics_told:
                self._metrics_told.add(name)
                texts.append(
                    f"{name} is not finite in {bad} of the last {len(values)} episodes that have "
                    "it: while it is among them, the mean over them is null, and a minimum or "
                    "maximum that is such a value; leave it out of the episodes that have no value"
                )
        return texts

    def _updates_so_far(self) -> int:
        return sum(policy.updates for policy in self.policies)

    def _skipped_so_far(self) -> int:
        return sum(policy.skipped_updates for policy in self.policies)

    def _checks(self) -> dict[str, int]:
        """Return how often the ranks have compared their states (only DD-PPO with --debug)."""
        compared = self._so_far("checksums_compared")
        return {"checksums_compared": compared} if compared else {}

    def _from_datasets(self) -> dict[str, float]:
        """Return how many of the env steps since the run was started were read from datasets, if
        there are any."""
        rows = [node.counter_row for node in self._graph.having("dataset")]
        if not rows:
            return {}
        return {"dataset_steps": float(self._graph.counters.column("env_steps")[rows].sum())}

    def _stages(self) -> dict[str, float]:
        """Return the microseconds of each stage per env step, summed over the workers, since the
        run was started."""
        steps = self._total("env_steps")
        if not steps:
            return {}
        names = (
            "env_s",
            "infer_s",
            "wait_s",
            "insert_s",
            "draw_s",
            "batch_s",
            "learn_s",
            "publish_s",
        )
        return {f"stage_{name[:-2]}_us": self._total(name) / steps * 1e6 for name in names}

    def _remember(self) -> tuple[float, float, float, float]:
        """Note and return the seconds of training, and the frames, env steps and trained steps
        since the run was started or resumed."""
        now = self._graph.progress.wall_s
        frames, steps, trained = self._graph.totals(("env_frames", "env_steps", "trained_steps"))
        self._history.append((now, frames, steps, trained))
        while len(self._history) > 2 and self._history[1][0] < now - 60.0:
            self._history.popleft()
        return self._history[-1]

    def _rates(self, window: float) -> tuple[float, float, float]:
        """Return frames, env steps and trained steps per second over the last ``window`` seconds of
        training, or a little more; 0 before there were any."""
        now = self._history[-1]
        # At least ``window`` seconds, so that a late report does not make the window shorter.
        old_enough = [h for h in self._history if h[0] <= now[0] - window]
        then = old_enough[-1] if old_enough else self._history[0]
        elapsed = now[0] - then[0]
        if elapsed <= 0:
            return 0.0, 0.0, 0.0
        return (
            (now[1] - then[1]) / elapsed,
            (now[2] - then[2]) / elapsed,
            (now[3] - then[3]) / elapsed,
        )


def statistics_of(session: Session) -> RunStatistics:
    """Return the statistics of a wired session, which go on from those of its folder."""
    return RunStatistics(
        session.graph,
        {stored.id: stored.earlier.get("statistics", {}) for stored in session.opened.policies},
        session.resolved.metrics_window,
        rows=rows_of(session),
        types=types_of_seats(session.spec),
    )


def rows_of(session: Session) -> int:
    """Return the number of a wired session's env rows; 0 if the first episodes are as good as the
    later ones."""
    return 0 if is_population(session.resolved) else session.plan.envs


def is_population(config: object) -> bool:
    """Return whether the policies of a run are the members of a population."""
    return bool(getattr(config, "pbt", False))


def first_of(graph: Graph, rows: int, window: int) -> tuple[int, int]:
    """Return the arguments of the `FirstEpisodes` of a run with so many env ``rows``, of which only
    the third counts that explores least, and with a ``window`` of episodes for each policy."""
    explorations = [group.exploration for group in graph.groups if group.exploration]
    if explorations and rows:
        rows = sum(not third for third in explorations[0].third.values())
    return rows, window * len(graph.groups)


def _parts(game: Sequence[EpisodeRecord]) -> list[tuple[int, _Part]]:
    """Return the index of each policy that has played a game, with what its `PolicyStatistics.take`
    takes: the records of its agents and, for the first policy, the mean of all agents."""
    by_policy: dict[int, list[EpisodeRecord]] = {}
    for record in game:
        by_policy.setdefault(record.policy, []).append(record)
    first, mean = min(by_policy), mean_return(game)
    return [(i, (own, mean if i == first else None)) for i, own in by_policy.items()]
