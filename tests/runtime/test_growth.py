"""What grows steadily is told from what warms up, and from noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from sampleforge.runtime.growth import WINDOW, GrowthWatch

NOISE = np.random.default_rng(0).uniform(0, 3, 10_000)
CURVES: dict[str, tuple[Callable[[int], float], bool]] = {
    "leak": (lambda t: 100 + 2.0 * t, True),
    "noisy leak": (lambda t: 100 + 2.0 * t + NOISE[t], True),
    "leak in jumps": (lambda t: 100 + 8.0 * (t // 4), True),
    "warm-up": (lambda t: 100 + 60 * (1 - math.exp(-t / 3)), False),
    "slow warm-up": (lambda t: 100 + 60 * (1 - math.exp(-t / 10)), False),
    "noise": (lambda t: 100 + 10 * NOISE[t], False),
    "still": (lambda t: 100.0, False),
    "sawtooth": (lambda t: 100 + 3.0 * (t % 20), False),
}


@pytest.mark.parametrize("name", CURVES)
def test_only_steady_growth_is_told(name: str) -> None:
    curve, leaks = CURVES[name]
    watch = GrowthWatch(least=20.0, spacing=1.0)
    told = []
    for t in range(400):
        watch.add(float(t), curve(t))
        told.append(watch.growth is not None)
    assert any(told) == leaks
    assert told[-1] == leaks, "it lasts as long as the growth does"


def test_a_slow_leak_is_told_of_later_with_its_rate_and_in_constant_memory() -> None:
    watch = GrowthWatch(least=20.0, spacing=1.0)
    first = None
    for t in range(2000):
        watch.add(float(t), 0.05 * t)
        if watch.growth is not None:
            first = t if first is None else first
            assert watch.growth.rate == pytest.approx(0.05)
    assert first is not None and 400 <= first < 800, "20 take 400"
    assert len(watch._samples) <= 2 * WINDOW
