"""The search of `sampleforge tune`: short benchmarks that vary one flag at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Flags = dict[str, Any]
"""Config field -> value."""

GAIN = 1.03
"""Factor by which a trial must be faster than the best one to replace it; less is noise."""
ORDER = (
    *("num_workers", "num_envs_per_worker", "num_splits", "inference", "precision"),
    "batch_size",
)
"""The flags to tune, in order. The batch size is last, because its unit depends on the others."""
MAX_STEPS = 3
"""Largest number of times that a value is doubled or halved."""


@dataclass(frozen=True)
class Trial:
    """One benchmark: the ``flags`` that differ from the resolved defaults, and the contents of
    benchmark.json as ``result``, or the ``error`` that ended it. ``tuned``: the flag that it
    varies."""

    tuned: str
    flags: Flags
    result: Mapping[str, Any] | None = None
    error: str | None = None

    @property
    def score(self) -> float:
        """Env steps per second to compare: trained ones, or sampled ones without a learner."""
        if self.result is None:
            return 0.0
        trained = self.result["trained_per_s"]
        return float(self.result["sampled_per_s"] if trained is None else trained)

    @property
    def setting(self) -> Mapping[str, Any]:
        """The resolved values of all flags."""
        assert self.result is not None
        setting: Mapping[str, Any] = self.result["setting"]
        return setting


@dataclass
class Search:
    """A coordinate search. ``run(tuned, flags)`` makes a trial. The caller iterates over `trials`
    and may stop at any time; ``best`` is the fastest trial so far, None before the first."""

    run: Callable[[str, Flags], Trial]
    best: Trial | None = None
    done: list[Trial] = field(default_factory=list)

    def trials(self) -> Iterator[Trial]:
        """Yield each trial when it ends. The first one has the resolved defaults; if it fails,
        there are no others."""
        first = self._try("defaults", {})
        yield first
        if first.result is None:
            return
        for name in ORDER:
            yield from self._tune(name)

    def _tune(self, name: str) -> Iterator[Trial]:
        """Change one flag in one direction as long as trials get faster, and in the other direction
        if the first gave no gain."""
        assert self.best is not None
        for direction in directions(name, self.best.setting):
            before = self.best
            for value in direction:
                tried = self._try(name, {**self.best.flags, name: value})
                yield tried
                if self.best is not tried:
                    break
            if self.best is not before:
                return

    def _try(self, name: str, flags: Flags) -> Trial:
        trial = self.run(name, flags)
        self.done.append(trial)
        gains = self.best is None or trial.score > GAIN * self.best.score
        if trial.result is not None and gains:
            self.best = trial
        return trial


def directions(name: str, setting: Mapping[str, Any]) -> list[list[Any]]:
    """Return the values of a flag to try, one list per direction, nearest to the current value
    first."""
    now = setting[name]
    if name in ("num_envs_per_worker", "batch_size"):
        down = [now // 2**k for k in range(1, MAX_STEPS + 1) if now % 2**k == 0]
        if name == "num_envs_per_worker":
            down = [envs for envs in down if envs % setting["num_splits"] == 0]
        return [[now * 2**k for k in range(1, MAX_STEPS + 1)], down]
    if name == "num_workers":
        cores = setting["cores"]
        return [[now + max(1, cores // 2)], [n for n in (now - 1, now // 2) if 0 < n < now]]
    if name == "num_splits":
        envs = setting["num_envs_per_worker"]
        return [[n] for n in (1, 2, 4) if n != now and envs % n == 0]
    if name == "inference":
        return [["worker" if now == "inline" else "inline"]]
    assert name == "precision", name
    return [["bf16" if now == "fp32" else "fp32"]] if setting["images"] else []


def flags_of(trial: Trial) -> Flags:
    """Return the resolved values of all tuned flags of a trial."""
    return {name: trial.setting[name] for name in ORDER}
