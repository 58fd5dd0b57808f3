"""Learning-rate schedules."""

from __future__ import annotations

import math

import pytest

from sampleforge.ops.schedules import MAX_LEARNING_RATE, MIN_LEARNING_RATE, kl_adaptive


@pytest.mark.parametrize(
    "kl, factor", [(0.021, 1 / 1.5), (0.02, 1.0), (0.01, 1.0), (0.005, 1.0), (0.0049, 1.5)]
)
def test_kl_adaptive_moves_outside_half_to_twice_the_target(kl: float, factor: float) -> None:
    assert kl_adaptive(1e-3, kl, target=0.01) == pytest.approx(1e-3 * factor)


def test_kl_adaptive_stays_in_bounds_and_ignores_a_batch_without_kl() -> None:
    up = down = 1e-3
    for _ in range(100):
        up, down = kl_adaptive(up, 0.0, 0.01), kl_adaptive(down, 1.0, 0.01)
    assert (up, down) == (MAX_LEARNING_RATE, MIN_LEARNING_RATE)
    assert kl_adaptive(1e-3, math.nan, 0.01) == 1e-3
    assert kl_adaptive(1.0, 0.0, 0.01) == 1.0 and kl_adaptive(1e-9, 1.0, 0.01) == 1e-9
