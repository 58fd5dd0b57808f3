"""Values far beyond all others are bounded; ordinary ones, rare ones and growing ones are not."""

from __future__ import annotations

import numpy as np
import pytest

from sampleforge.ops.far_values import COUNTS_AS, TypicalSize, bound_rewards


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("absurd", [1e8, -1e8, 1e38, 3e38])
def test_a_far_value_is_bounded_and_leaves_the_typical_size_as_it_was(absurd: float) -> None:
    typical = TypicalSize(few=0)
    assert not typical.bound(normal(100, 16, 4)).any()
    for seed in range(100):
        assert typical.takes(normal(seed, 16, 4))
    values, size = normal(100, 16, 4), typical.size
    expected = values.copy()
    values[3, 1] = absurd
    expected[3, 1] = np.sign(absurd) * COUNTS_AS * size
    assert not typical.takes(values)
    far = typical.bound(values)
    assert np.argwhere(far).tolist() == [[3, 1]]
    np.testing.assert_array_equal(values, expected)
    assert typical.size == pytest.approx(size, rel=0.02)
    assert typical.takes(normal(101, 16, 4))


@pytest.mark.parametrize("growth", [1e2, 1e6, 1e12])
def test_a_real_change_of_scale_is_followed_however_late(growth: float) -> None:
    typical = TypicalSize(few=0)
    typical.bound(normal(0, 64))
    for seed in range(10_000):
        typical.takes(normal(seed % 100, 64))
    steps = 0
    while not typical.takes(values := growth * normal(steps, 64)):
        typical.bound(values)
        steps += 1
    assert steps < 1000, "64,000 values after 640,000"


def test_what_begins_at_rest_may_move() -> None:
    typical = TypicalSize(few=16 * 64)
    typical.bound(1e-5 * normal(0, 64))
    moving = normal(1, 64)
    assert not typical.bound(moving).any()


def rewards(goal: float, *, at: tuple[int, int] = (20, 3)) -> np.ndarray:
    reward = np.full((32, 8), -0.05, np.float32)
    reward[at] = goal
    return reward


@pytest.mark.parametrize("first", [True, False])
def test_a_rare_goal_is_learned_from_and_an_absurd_reward_is_bounded(first: bool) -> None:
    typical = TypicalSize(few=0)
    if not first:
        bound_rewards(typical, rewards(-0.05))
    goal = rewards(100.0)
    assert bound_rewards(typical, goal) is None
    assert goal[20, 3] == 100.0
    typical = TypicalSize(few=0)
    if not first:
        bound_rewards(typical, rewards(-0.05))
    absurd = rewards(1e8)
    assert bound_rewards(typical, absurd) == ((20, 3), 1e8)
    assert absurd[20, 3] == pytest.approx(0.5)
    assert (np.delete(absurd, 20 * 8 + 3) == np.float32(-0.05)).all()


def test_the_first_reward_of_a_run_is_taken_as_it_is() -> None:
    reward = np.zeros((8, 4), np.float32)
    typical = TypicalSize(few=0)
    assert bound_rewards(typical, reward) is None
    reward[5, 2] = 1e6
    assert bound_rewards(typical, reward) is None
    assert reward[5, 2] == 1e6
