"""What `sampleforge check-env` measures of an environment that it plays, as plain numbers:
`Examination` in `examination.py` fills them in, and `verdicts.py` says what they mean."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from sampleforge.env.bounds import Outside
from sampleforge.runtime.growth import Growth
from sampleforge.tools.check_env.past import Past


class Spread:
    """Numbers of which the extremes, the mean and an evenly spaced sample are kept: its memory is
    constant, so that it is not taken for a leak of the environment."""

    SIZE = 1 << 14

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.count = self.nonzero = 0
        self.low, self.high, self.total = math.inf, -math.inf, 0.0
        self._every = 1
        self._kept = np.full(self.SIZE, np.nan)
        self._size = 0
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        if self.count % self._every == 0:
            if self._size == self.SIZE:
                self._size //= 2
                self._kept[: self._size] = self._kept[::2].copy()
                self._every *= 2
            self._kept[self._size] = value
            self._size += 1
        self.count += 1
        self.nonzero += value != 0
        self.total += value
        self.low, self.high = min(self.low, value), max(self.high, value)

    def quantile(self, q: float) -> float:
        """Return a quantile of the numbers; of many, of the sample."""
        return float(np.quantile(self._kept[: self._size], q))


@dataclass(frozen=True)
class Speed:
    """The speed of ``rows`` rows in one process: env steps per second, and the fraction of the
    time, 0 to 1, in which the process had a processor."""

    per_s: float
    rows: int
    busy: float


@dataclass
class LeafSeen:
    """The values of one observation leaf that were seen. ``changed``: whether an element has ever
    had another value than at first."""

    low: float
    high: float
    changed: bool = False


@dataclass
class Played:
    """What was measured of one row that was stepped with random actions. Times are in seconds.

    ``steps`` and ``resets``: the times of steps, and of resets (``resets_apart``; else those of the
    steps that contain a reset). ``cpu``: processor times of this process in them;
    ``children_cpu_s``: of the environment's own processes; ``waited_s``: what this process did not
    compute of the steps and resets in which it slept; in the others it was other programs' turn.
    ``out_of_bounds``, ``not_finite``: the first such value, and how many steps had one.
    ``errors``: how often the environment raised; ``traceback``: the first time. ``failure``: what
    has ended the play early. ``masks``: how many masks were seen, ``mask_open``: how many of them
    allowed every action, ``mask_allowed``: the sum of the fractions that they allowed.
    ``past``: the steps, of one agent with small observations. ``beginnings``: number of episodes
    begun; ``same_beginning``: whether all first observations were equal. ``start_s``: the time that
    the construction and the first reset took.
    """

    steps: Spread = field(default_factory=Spread)
    resets: Spread = field(default_factory=Spread)
    resets_apart: bool = True
    cpu: Spread = field(default_factory=Spread)
    children_cpu_s: float = 0.0
    waited_s: float = 0.0
    leaves: dict[str, LeafSeen] = field(default_factory=dict)
    out_of_bounds: tuple[Outside, int] | None = None
    not_finite: tuple[str, int] | None = None
    errors: int = 0
    traceback: str = ""
    failure: str = ""
    masks: int = 0
    mask_open: int = 0
    mask_allowed: float = 0.0
    rewards: Spread = field(default_factory=Spread)
    returns: Spread = field(default_factory=Spread)
    lengths: Spread = field(default_factory=Spread)
    terminated: int = 0
    truncated: int = 0
    beginnings: int = 0
    same_beginning: bool = True
    start_s: float = 0.0
    past: Past = field(default_factory=Past)
    growth: Growth | None = None
    processes: int = 0

    @property
    def env_steps(self) -> int:
        return self.steps.count
