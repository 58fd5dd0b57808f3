"""What a run has to say for itself: the scalars of a report, the fields of summary.json."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from time import monotonic
from typing import Any

import numpy as np

from sampleforge.reporting.evaluated import EvaluationReports
from sampleforge.reporting.exploring import ReturnsByExploration
from sampleforge.shared.records import EpisodeRecord
from sampleforge.topologies.graph import Graph

LAST_EPISODES = 100


class RunStatistics:
    """Collects finished episodes and the workers' counters; rates over 10 and 60 seconds."""

    def __init__(self, graph: Graph, earlier: dict[str, Any]) -> None:
        """``earlier``: the `state` of the run before, empty for a new one."""
        self._graph = graph
        self._started = monotonic()
        self._history: deque[tuple[float, float, float, float]] = deque()
        self._remember()
        self._episodes = int(earlier.get("episodes", 0))
        self._restarts = int(earlier.get("restarts", 0))
        self._nonfinite = int(earlier.get("nonfinite_steps", 0))
        self._nonfinite_told = False
        self._env_restarts = int(earlier.get("env_restarts", 0))
        self._frames = int(earlier.get("env_frames", 0))
        self._trained = int(earlier.get("trained_steps", 0))
        self._returns: deque[float] = deque(earlier.get("returns", []), LAST_EPISODES)
        self._exploring: ReturnsByExploration | None = None
        exploration = graph.group.exploration
        if exploration is not None:
            before = earlier.get("exploring", {})
            self._exploring = ReturnsByExploration(exploration, LAST_EPISODES, before)
        self._return_best: float | None = earlier.get("return_best")
        self._lengths: deque[int] = deque(earlier.get("lengths", []), LAST_EPISODES)
        self._lag: tuple[float, float] = tuple(earlier.get("policy_lag", (0.0, 0.0)))
        self._lag_batches: tuple[float, float] = tuple(
            earlier.get("policy_lag_batches", (0.0, 0.0))
        )
        self._updates = int(earlier.get("updates", 0))
        self.evaluations = EvaluationReports(earlier.get("evaluation", {}))
        self._episode_stats: dict[str, deque[float]] = {}
        self._compared = int(earlier.get("checksums_compared", 0))

    def take_episodes(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Where rows explore differently, the returns of the least exploring third are the run's;
        the others' are reported beside them. The best mean of 100 episodes is remembered."""
        for episode in episodes:
            self._episodes += 1
            if self._exploring is None or self._exploring.take(episode):
                self._returns.append(episode.ret)
                self._lengths.append(episode.length)
        mean = self.return_mean
        if mean is not None and len(self._returns) == LAST_EPISODES:
            self._return_best = mean if self._return_best is None else max(self._return_best, mean)

    def take_episode_stats(self, stats: dict[str, float]) -> None:
        """Take what an environment reports of an episode (``info["episode_extra_stats"]``)."""
        for name, value in stats.items():
            self._episode_stats.setdefault(name, deque(maxlen=LAST_EPISODES)).append(value)

    @property
    def return_mean(self) -> float | None:
        """Mean raw return of the last 100 episodes, None before the first."""
        return float(np.mean(self._returns)) if self._returns else None

    def rating(self) -> dict[str, float | int | None]:
        """How good the policy is, for a checkpoint: ``return_mean`` over a full window of 100
        episodes (None before: the mean of a few may be luck), and the last evaluation's mean with
        the env steps of its weights."""
        full = len(self._returns) == LAST_EPISODES
        steps = self.evaluations.last.get("eval_env_steps")
        return {
            "return_mean": self.return_mean if full else None,
            "eval_return_mean": self.evaluations.last.get("eval_return_mean"),
            "eval_env_steps": None if steps is None else int(steps),
        }

    def state(self) -> dict[str, Any]:
        """Plain values to go on from, for a checkpoint."""
        return {
            "episodes": self._episodes,
            "restarts": self._restarts_so_far(),
            "nonfinite_steps": self._nonfinite_so_far(),
            "env_restarts": self._env_restarts_so_far(),
            "env_frames": self._frames + int(self._total("env_frames")),
            "trained_steps": self._trained + int(self._total("trained_steps")),
            "returns": list(self._returns),
            "return_best": self._return_best,
            "lengths": list(self._lengths),
            "exploring": {} if self._exploring is None else self._exploring.state(),
            "policy_lag": list(self._lag),
            "policy_lag_batches": list(self._lag_batches),
            "updates": self._updates_so_far(),
            "evaluation": self.evaluations.last,
            **self._checks(),
        }

    def scalars(self, learner: dict[str, float]) -> dict[str, float]:
        """One report; ``learner`` is what the learner has to say since the last one."""
        progress = self._graph.progress
        self._remember()
        frames_10s, steps_10s, trained_10s = self._rates(10.0)
        frames_60s = self._rates(60.0)[0]
        free, ready = self._graph.group.exchange.fill()
        self._lag = _newer_lag(self._lag, learner, "policy_lag")
        self._lag_batches = _newer_lag(self._lag_batches, learner, "policy_lag_batches")
        seen = learner.get("valid_steps", 0.0)
        stale = learner.get("stale_steps", 0.0) / seen if seen else 0.0
        scalars = {
            "env_steps": float(progress.env_steps),
            "wall_s": progress.wall_s,
            "env_frames": float(self._frames + self._total("env_frames")),
            "frames_per_s": frames_10s,
            "frames_per_s_10s": frames_10s,
            "frames_per_s_60s": frames_60s,
            "env_steps_per_s": steps_10s,
            "trained_per_s": trained_10s,
            "episodes": float(self._episodes),
            "restarts": float(self._restarts_so_far()),
            "nonfinite_steps": float(self._nonfinite_so_far()),
            "env_restarts": float(self._env_restarts_so_far()),
            "updates": float(self._updates_so_far()),
            **{name: float(count) for name, count in self._checks().items()},
            "free_slots_fill": free,
            "ready_slots_fill": ready,
            "stale_fraction": stale,
            **self._stages(),
            **({} if self._exploring is None else self._exploring.scalars()),
            **{f"env_{n}": float(np.mean(v)) for n, v in self._episode_stats.items()},
            **learner,
            **self.evaluations.scalars(),
        }
        if self._returns:
            scalars["return_mean"] = float(np.mean(self._returns))
            scalars["return_std"] = float(np.std(self._returns))
            scalars["length_mean"] = float(np.mean(self._lengths))
        if self._return_best is not None:
            scalars["return_best"] = self._return_best
        return scalars

    def summary(self) -> dict[str, Any]:
        """The measured part of summary.json."""
        elapsed = max(1e-9, monotonic() - self._started)
        return {
            "env_steps": self._graph.progress.env_steps,
            "env_frames": self._frames + int(self._total("env_frames")),
            "wall_s": self._graph.progress.wall_s,
            "frames_per_s": self._total("env_frames") / elapsed,
            "env_steps_per_s": self._total("env_steps") / elapsed,
            "trained_per_s": self._total("trained_steps") / elapsed,
            "updates": self._updates_so_far(),
            **self._checks(),
            "episodes": self._episodes,
            "restarts": self._restarts_so_far(),
            "nonfinite_steps": self._nonfinite_so_far(),
            "env_restarts": self._env_restarts_so_far(),
            "return_mean": self.return_mean,
            "return_best": self._return_best,
            "return_std": float(np.std(self._returns)) if self._returns else None,
            "policy_lag": {
                **{"mean": self._lag[0], "max": self._lag[1]},
                "batches_mean": self._lag_batches[0],
                "batches_max": self._lag_batches[1],
            },
            **self.evaluations.last,
        }

    def _total(self, name: str) -> float:
        return self._graph.total(name)

    def _restarts_so_far(self) -> int:
        return self._restarts + int(self._graph.counters.total("restarts"))

    def _env_restarts_so_far(self) -> int:
        return self._env_restarts + int(self._graph.counters.total("env_restarts"))

    def _nonfinite_so_far(self) -> int:
        """Env steps that were dropped because of values that are not finite."""
        return self._nonfinite + int(self._total("nonfinite_steps"))

    def first_nonfinite(self) -> str | None:
        """What was not finite, and where, the first time since the run began or was resumed; once,
        and None before and afterwards."""
        if self._nonfinite_told or not self._total("nonfinite_steps"):
            return None
        self._nonfinite_told = True
        worker = int(np.flatnonzero(self._graph.counters.column("nonfinite_steps"))[0])
        found = self._graph.counters.noted(worker) or f"worker {worker}, on another machine"
        return (
            f"dropped an env step with a value that is not finite: {found}; such steps are not "
            "learned from, and counted as nonfinite_steps"
        )

    def _updates_so_far(self) -> int:
        return max(self._updates, int(self._total("updates")))

    def _checks(self) -> dict[str, int]:
        """How often ranks have compared what they hold, where they do (DD-PPO under --debug)."""
        compared = self._compared + int(self._total("checksums_compared"))
        return {"checksums_compared": compared} if compared else {}

    def _stages(self) -> dict[str, float]:
        """Microseconds of each stage per env step, over the whole run, summed over the workers."""
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

    def _remember(self) -> None:
        now = monotonic()
        totals = [self._total(n) for n in ("env_frames", "env_steps", "trained_steps")]
        self._history.append((now, totals[0], totals[1], totals[2]))
        while len(self._history) > 2 and self._history[1][0] < now - 60.0:
            self._history.popleft()

    def _rates(self, window: float) -> tuple[float, float, float]:
        """Frames, env steps and trained steps per second over the last ``window`` seconds."""
        now = self._history[-1]
        # The window is at least as long as asked: a report that was held up does not shorten it.
        old_enough = [h for h in self._history if h[0] <= now[0] - window]
        then = old_enough[-1] if old_enough else self._history[0]
        elapsed = max(1e-9, now[0] - then[0])
        return (
            (now[1] - then[1]) / elapsed,
            (now[2] - then[2]) / elapsed,
            (now[3] - then[3]) / elapsed,
        )


def _newer_lag(
    known: tuple[float, float], learner: dict[str, float], name: str
) -> tuple[float, float]:
    """The newest mean, and the highest maximum so far."""
    if f"{name}_mean" not in learner:
        return known
    return learner[f"{name}_mean"], max(known[1], learner[f"{name}_max"])
