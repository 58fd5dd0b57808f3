"""The fastest flags for this machine: short benchmarks, one flag at a time, keeping the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Flags = dict[str, Any]
"""Config field -> value."""

GAIN = 1.03
"""So much faster a trial must be than the best one to replace it: less is noise."""
ORDER = (
    *("num_workers", "num_envs_per_worker", "num_splits", "inference", "precision"),
    "batch_size",
)
"""What is tuned, one after the other. The batch comes last: its unit follows from the others."""
MAX_STEPS = 3
"""A number is doubled, or halved, so many times at most."""


@dataclass(frozen=True)
class Trial:
    """One benchmark: the ``flags`` that differ from the fitted defaults, and what benchmark.json
    said, or the ``error`` that it ended with. ``tuned`` is the flag that it tried."""

    tuned: str
    flags: Flags
    result: Mapping[str, Any] | None = None
    error: str | None = None

    @property
    def score(self) -> float:
        """What is compared: env steps per second, trained ones (sampled ones without a learner)."""
        if self.result is None:
            return 0.0
        trained = self.result["trained_per_s"]
        return float(self.result["sampled_per_s"] if trained is None else trained)

    @property
    def setting(self) -> Mapping[str, Any]:
        """Every flag as it was resolved."""
        assert self.result is not None
        setting: Mapping[str, Any] = self.result["setting"]
        return setting


@dataclass
class Search:
    """A coordinate search. ``run`` makes a trial of a flag and the flags so far; iterate over
    `trials` and stop when you like: ``best`` is the fastest so far, None before the first."""

    run: Callable[[str, Flags], Trial]
    best: Trial | None = None
    done: list[Trial] = field(default_factory=list)

    def trials(self) -> Iterator[Trial]:
        """Each trial as it ends; the first one has the fitted defaults, and if it fails there are
        no others."""
        first = self._try("defaults", {})
        yield first
        if first.result is None:
            return
        for name in ORDER:
            yield from self._tune(name)

    def _tune(self, name: str) -> Iterator[Trial]:
        """Walk along one flag as long as it gets faster; the other way only if the first was no
        gain."""
        assert self.best is not None
        for way in directions(name, self.best.setting):
            before = self.best
            for value in way:
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
    """The values to try, as ways to walk that begin next to the current one."""
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
    """All tuned flags of a trial, resolved, so that they mean the same tomorrow."""
    return {name: trial.setting[name] for name in ORDER}
