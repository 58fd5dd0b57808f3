"""Hyperparameters that follow a schedule during the training (``--anneal NAME=SCHEDULE``)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sampleforge.config import ConfigError, typed
from sampleforge.names import nearest

COOLDOWN = 0.25
"""The last part of the training, in which cooldown falls."""
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "cooldown": lambda progress: min(1.0, (1.0 - progress) / COOLDOWN),
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "constant": lambda progress: 1.0,
}
"""Name -> the part of the way from the last to the first value that is left at a progress."""
CHECKED_AT = 100
"""A schedule of the user's own is tried at so many points before the training begins, and its
end."""


@dataclass(frozen=True)
class Annealing:
    """The schedule of the hyperparameter ``name`` that ``text`` describes: SHAPE, from the
    hyperparameter's own value to 0; SHAPE:FIRST:LAST; or package.module:function, a function of the
    progress. Raises ConfigError for any other text."""

    name: str
    text: str

    def __post_init__(self) -> None:
        shape, *ends = self.text.split(":")
        if shape in SHAPES:
            if ends and (shape == "constant" or not _are_two_numbers(ends)):
                form = shape if shape == "constant" else f"{shape} or {shape}:FIRST:LAST"
                raise ConfigError(f"{self.flag}: must be {form}, with numbers, as in linear:1e-3:0")
        elif len(ends) != 1 or not ends[0].isidentifier() or not shape:
            near = nearest(shape, SHAPES, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise ConfigError(
                f"{self.flag}: unknown schedule {shape}. {hint}There are {', '.join(SHAPES)}, and "
                "package.module:function"
            )

    @property
    def flag(self) -> str:
        """The schedule as it is typed."""
        return typed("anneal", {self.name: self.text})

    @property
    def is_code(self) -> bool:
        """Whether it names a function."""
        return self.text.partition(":")[0] not in SHAPES

    @property
    def replaces_value(self) -> bool:
        """Whether the hyperparameter's own value plays no part."""
        return ":" in self.text

    @cached_property
    def _function(self) -> Callable[[float], float]:
        from sampleforge.env.user_code import import_function  # numpy, which flags do without

        return import_function(f"--anneal {self.name}", self.text)

    def __call__(self, progress: float, value: float) -> float:
        """Return the hyperparameter at ``progress`` (0 to 1, clamped) of the training. ``value``:
        its own. Raises ValueError if a function returns no finite number."""
        progress = min(max(progress, 0.0), 1.0)
        if self.is_code:
            found = float(self._function(progress))
            if not math.isfinite(found):
                raise ValueError(f"{self.flag}: it returned {found} at progress {progress:g}")
            return found
        shape, *ends = self.text.split(":")
        first, last = map(float, ends) if ends else (value, 0.0)
        if shape == "constant":
            return first
        return last + (first - last) * SHAPES[shape](progress)

    def check(self, config: Any, changeable: Collection[str]) -> None:
        """Raise ConfigError if the hyperparameter is not one of the ``changeable`` fields of
        ``config``, or cannot have a value of the schedule."""
        if self.name not in changeable:
            near = nearest(self.name, changeable, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"{self.flag}: {self.name} cannot change during the training; these can: "
                f"{', '.join(sorted(changeable))}.{hint}"
            )
        value = getattr(config, self.name)
        if value is None and not self.replaces_value:
            raise ConfigError(
                f"{self.flag}: {self.name} has no value to begin with; give both ends, as in "
                f"{self.text}:FIRST:LAST"
            )
        points = 1
        if self.is_code:
            points, _ = CHECKED_AT, self._function
        for progress in (point / points for point in range(points + 1)):
            try:
                found = self(progress, value)
                if self.name != "learning_rate":
                    dataclasses.replace(config, **{self.name: found})
                elif found < 0:
                    raise ConfigError(f"--learning-rate {found:g}: must be at least 0")
            except Exception as error:
                raise ConfigError(
                    f"{self.flag}: it cannot be used at {progress:.0%} of the training: {error}"
                ) from error


def _are_two_numbers(ends: list[str]) -> bool:
    try:
        return len(ends) == 2 and all(math.isfinite(float(end)) for end in ends)
    except ValueError:
        return False


def annealings(config: Any) -> dict[str, Annealing]:
    """Return the schedules of a config, by the names of the hyperparameters; one of the learning
    rate takes the place of ``lr_schedule``. Raises ConfigError for one that is none."""
    texts = getattr(config, "anneal", {})  # without the settings of a run there are none
    found = {name: Annealing(name, text) for name, text in texts.items()}
    lr_schedule = getattr(config, "lr_schedule", None)
    if lr_schedule in SHAPES and lr_schedule != "constant":
        found.setdefault("learning_rate", Annealing("learning_rate", lr_schedule))
    elif lr_schedule == "kl_adaptive":
        check_learning_rate(config)
    return found


def usual_lr_schedule(config: Any, falling: str) -> str:
    """Return the schedule of the learning rate where none is given: ``falling``, but constant in a
    run whose end is not known, in a population, and in one that replays what a population found."""
    is_found = getattr(config, "pbt", False) or getattr(config, "schedule", None) is not None
    falls = config.has_end and not is_found and "learning_rate" not in config.anneal
    return falling if falls else "constant"


def check_learning_rate(config: Any) -> None:
    """Raise ConfigError if a config, as it is given, has two schedules of the learning rate."""
    lr_schedule = getattr(config, "lr_schedule", None)
    text = getattr(config, "anneal", {}).get("learning_rate")
    if text is not None and lr_schedule not in (None, "constant"):
        raise ConfigError(
            f"{typed('lr_schedule', lr_schedule)} {Annealing('learning_rate', text).flag}: both "
            "are schedules of the learning rate; leave out one of the two, or use --lr-schedule "
            "constant"
        )
