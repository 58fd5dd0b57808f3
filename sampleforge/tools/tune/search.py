"""The search of `sampleforge tune`: short benchmarks that vary one flag at a time.

Unless it may change what is learned, it varies only how the work is divided: the same env rows over
more or fewer workers, their splits, and where actions are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Flags = dict[str, Any]
"""Config field -> value."""

GAIN = 1.03
"""Factor by which a trial must be faster than the best one to replace it; less is noise."""
ORDER = (
    "num_workers",
    "num_ranks",
    "num_envs_per_worker",
    "num_splits",
    "inference",
    "precision",
    "batch_size",
)
"""The flags to tune, in order. The batch size is last, because its unit depends on the others."""
KEEP_LEARNING = ("num_workers", "num_splits", "inference")
"""Those that leave what is learned as it is, if the number of env rows over all workers stays."""
PINNED = ("precision", "rollout", "batch_size", "minibatch_size", "num_epochs", "async_rl")
"""Flags that shape the learning, and whose defaults may depend on the tuned ones."""
NOT_FOR_RANKS = ("num_workers", "inference")
"""Flags that DD-PPO does not have; and only it has num_ranks."""
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
    and may stop at any time; ``best`` is the fastest trial so far, None before the first.
    ``allow_learning_changes``: tune every flag, also those that change what is learned."""

    run: Callable[[str, Flags], Trial]
    allow_learning_changes: bool = False
    best: Trial | None = None
    done: list[Trial] = field(default_factory=list)

    def trials(self) -> Iterator[Trial]:
        """Yield each trial when it ends. The first one has the resolved defaults; if it fails,
        there are no others."""
        first = self._try("defaults", {})
        yield first
        if first.result is None:
            return
        for name in self.order(first.setting):
            yield from self._tune(name)

    def order(self, setting: Mapping[str, Any]) -> list[str]:
        """Return the flags to tune, in order, of a run with this setting."""
        own = ORDER if self.allow_learning_changes else KEEP_LEARNING
        ranks = bool(setting.get("ranks"))
        absent = NOT_FOR_RANKS if ranks else ("num_ranks",)
        return [name for name in own if name not in absent]

    def _tune(self, name: str) -> Iterator[Trial]:
        """Change one flag in one direction as long as trials get faster, and in the other direction
        if the first gave no gain."""
        assert self.best is not None
        keep = not self.allow_learning_changes
        for direction in directions(name, self.best.setting, keep=keep):
            before = self.best
            for value in direction:
                tried = self._try(name, {**self.best.flags, **self._change(name, value)})
                yield tried
                if self.best is not tried:
                    break
            if self.best is not before:
                return

    def _change(self, name: str, value: Any) -> Flags:
        """Return the flags that give one of them another value, and keep the others as they are."""
        assert self.best is not None
        if self.allow_learning_changes:
            return {name: value}
        change: Flags = {**flags_of(self.best), name: value}
        if name == "num_workers":
            change["num_envs_per_worker"] = _rows(self.best.setting) // value
        return change

    def _try(self, name: str, flags: Flags) -> Trial:
        trial = self.run(name, flags)
        self.done.append(trial)
        gains = self.best is None or trial.score > GAIN * self.best.score
        if trial.result is not None and gains:
            self.best = trial
        return trial


def directions(name: str, setting: Mapping[str, Any], *, keep: bool = False) -> list[list[Any]]:
    """Return the values of a flag to try, one list per direction, nearest to the current value
    first. ``keep``: only such numbers of workers as divide the env rows evenly."""
    now = setting[name]
    if name == "num_workers" and keep:
        fits = [n for n in range(1, 1 + _rows(setting)) if _divides(n, setting)]
        more = [n for n in fits if now < n <= now + max(1, setting["cores"])]
        return [more[:MAX_STEPS], [n for n in fits if n < now][::-1][:MAX_STEPS]]
    if name in ("num_envs_per_worker", "batch_size"):
        down = [now // 2**k for k in range(1, MAX_STEPS + 1) if now % 2**k == 0]
        if name == "num_envs_per_worker":
            down = [envs for envs in down if envs % setting["num_splits"] == 0]
        return [[now * 2**k for k in range(1, MAX_STEPS + 1)], down]
    if name in ("num_workers", "num_ranks"):
        cores = setting["cores"]
        return [[now + max(1, cores // 2)], [n for n in (now - 1, now // 2) if 0 < n < now]]
    if name == "num_splits":
        envs = setting["num_envs_per_worker"]
        return [[n] for n in (1, 2, 4) if n != now and envs % n == 0]
    if name == "inference":
        return [["worker" if now == "inline" else "inline"]]
    assert name == "precision", name
    if now == "bf16":
        return [["fp32"]]
    return [["bf16"]] if setting["bf16_may_pay"] else []


def _rows(setting: Mapping[str, Any]) -> int:
    """Return the number of env rows over all workers."""
    return int(setting["num_workers"] * setting["num_envs_per_worker"])


def _divides(workers: int, setting: Mapping[str, Any]) -> bool:
    """Return whether so many workers can share the env rows, each with the same splits."""
    return bool(_rows(setting) % (workers * setting["num_splits"]) == 0)


def pinned(setting: Mapping[str, Any]) -> Flags:
    """Return the flags that shape the learning, with their values in a setting."""
    return {name: setting[name] for name in PINNED if setting.get(name) is not None}


def flags_of(trial: Trial) -> Flags:
    """Return the resolved values of all flags that are tuned or pinned."""
    setting = trial.setting
    absent = NOT_FOR_RANKS if setting.get("ranks") else ("num_ranks",)
    tuned = {name: setting[name] for name in ORDER if name in setting and name not in absent}
    return {**tuned, **pinned(setting)}
