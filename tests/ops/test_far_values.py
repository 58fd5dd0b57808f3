"""Values far beyond all others are bounded; ordinary ones, rare ones and growing ones are not."""

from __future__ import annotations

import numpy as np
import pytest

from sampleforge.ops.far_values import (
    COUNTS_AS,
    FarFromMean,
    TypicalSize,
    Unusual,
    bound_rewards,
)


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


@pytest.mark.long
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


def test_positions_beside_velocities_at_rest_are_not_far() -> None:
    typical = TypicalSize(few=0)
    values = normal(0, 2, 16)
    values[:, 6:] *= 1e-8
    assert not typical.bound(values).any()
    values = normal(1, 2, 16)
    values[1, 3] = 1e8
    assert np.argwhere(typical.bound(values)).tolist() == [[1, 3]]


@pytest.mark.parametrize("goals", [1, 8])
def test_goals_among_errors_of_rounding_are_learned_from(goals: int) -> None:
    typical, seen, ended = TypicalSize(few=0), Unusual(8), np.zeros((32, 8), np.bool_)
    for seed in range(20):
        reward = 1e-9 * normal(seed, 32, 8)
        reward[5, :goals] = 2.0
        given = reward.copy()
        assert bound_rewards(typical, reward, ended, seen) is None
        np.testing.assert_array_equal(reward, given)


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
    assert bound_rewards(typical, absurd) == (1, (20, 3), 1e8)
    assert absurd[20, 3] == pytest.approx(0.5)
    assert (np.delete(absurd, 20 * 8 + 3) == np.float32(-0.05)).all()


def test_far_rewards_are_found_though_most_of_the_first_ones_are_far() -> None:
    typical, seen = TypicalSize(few=0), Unusual(16)
    reward = np.zeros((10, 16), np.float32)
    reward[2] = 1000.0
    reward[5, :11] = 1.0
    found = bound_rewards(typical, reward, np.zeros((10, 16), np.bool_), seen)
    assert found == (16, (2, 0), 1000.0) and (reward[2] == COUNTS_AS).all()


def test_the_first_reward_of_a_run_is_taken_as_it_is() -> None:
    reward = np.zeros((8, 4), np.float32)
    typical = TypicalSize(few=0)
    assert bound_rewards(typical, reward) is None
    reward[5, 2] = 1e6
    assert bound_rewards(typical, reward) is None
    assert reward[5, 2] == 1e6


@pytest.mark.parametrize("unusual", [1e3, -1e4])
def test_the_first_unusual_reward_of_an_environment_is_bounded_and_further_ones_are_meant(
    unusual: float,
) -> None:
    typical, seen = TypicalSize(few=0), Unusual(8)
    ended = np.zeros((32, 8), np.bool_)
    ordinary = np.ones((32, 8), np.float32)
    ordinary[:, ::2] = -1.0
    assert bound_rewards(typical, ordinary.copy(), ended, seen) is None
    reward = ordinary.copy()
    reward[[5, 9], 2] = reward[7, 4] = reward[30, 6] = unusual
    ended[30] = True
    expected = reward.copy()
    expected[5, 2] = expected[7, 4] = np.sign(unusual) * COUNTS_AS
    assert bound_rewards(typical, reward, ended, seen) == (2, (5, 2), unusual)
    np.testing.assert_array_equal(reward, expected)
    again = expected.copy()
    again[5, 2] = unusual
    assert bound_rewards(typical, again, ended, seen) is None, "what is given again is meant"


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize(("cost", "goal"), [(-0.05, 100.0), (-0.01, 3.5), (-0.001, 500.0)])
def test_a_goal_beside_costs_of_the_time_is_learned_from_at_once(
    ends: bool, cost: float, goal: float
) -> None:
    """However much smaller the costs are: they say nothing about goals."""
    ended = np.full((32, 8), ends)
    typical, seen = TypicalSize(few=0), Unusual(8)
    for t in range(32):
        reward = np.full((32, 8), cost, np.float32)
        reward[t, t % 8] = goal
        assert bound_rewards(typical, reward, ended, seen) is None
        assert reward[t, t % 8] == np.float32(goal)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_end_that_costs_ten_thousand_steps_is_learned_from(sign: int) -> None:
    ended = np.zeros((32, 8), np.bool_)
    typical, seen = TypicalSize(few=0), Unusual(8)
    for t in range(32):
        reward = np.full((32, 8), sign * 0.01, np.float32)
        ended[:] = False
        reward[t, t % 8], ended[t, t % 8] = sign * 200, True
        assert bound_rewards(typical, reward, ended, seen) is None
        assert reward[t, t % 8] == np.float32(sign * 200)


def test_an_absurd_reward_is_bounded_beside_costs_alone_and_beside_goals() -> None:
    for goals in (False, True):
        typical, seen, ended = TypicalSize(few=0), Unusual(8), np.zeros((32, 8), np.bool_)
        for t in range(32):
            reward = np.full((32, 8), -0.01, np.float32)
            reward[t, :4] = 3.0 if goals else -0.01
            assert bound_rewards(typical, reward, ended, seen) is None
        absurd = np.full((32, 8), -0.01, np.float32)
        absurd[3, 7] = 1e8
        assert bound_rewards(typical, absurd, ended, seen) == (1, (3, 7), 1e8)
        assert absurd[3, 7] < (30.0 if goals else 0.2)


def test_one_gain_beside_losses_of_many_sizes_is_bounded() -> None:
    typical, seen, ended = TypicalSize(few=0), Unusual(8), np.zeros((32, 8), np.bool_)
    for batch in range(2):
        reward = -np.abs(normal(batch, 32, 8)) - 0.1
        reward[3, 7] = 1e5 if batch else -1.0
        found = bound_rewards(typical, reward, ended, seen)
        assert (found is not None) == bool(batch)
    assert reward[3, 7] < 20


def found_after(before: list[np.ndarray], x: np.ndarray) -> object:
    far = FarFromMean((4,), 100.0, 1000)
    for each in before:
        assert far.find(each) is None
    return far.find(x)


def test_a_number_far_from_the_mean_of_its_element_is_found_with_its_place() -> None:
    scales = np.array([1e-2, 1.0, 1e2, 0.0], np.float32)
    before = [normal(seed, 640, 4) * scales for seed in range(3)]
    x = normal(3, 640, 4) * scales
    assert found_after(before, x) is None
    x[7, 3] = 1.0
    assert found_after(before, x) is None, "a flag, next to numbers of 100"
    x[5, 2] = x[600, 1] = 5e4
    assert found_after(before, x) == (2, (5, 2), 5e4)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_after_zeros_alone_nothing_is_far(shape: tuple[int, ...]) -> None:
    far = FarFromMean(shape, 100.0, 1000)
    for _ in range(2):
        assert far.find(np.zeros((640, *shape), np.float32)) is None
    x = normal(1, 640, *shape)
    assert far.find(x) is None
    x[3] = 1e6
    assert far.find(x) == (x[0].size, (3, *(0 for _ in shape)), 1e6)


def test_a_change_of_scale_is_far_only_at_first() -> None:
    far = FarFromMean((4,), 100.0, 1000)
    for seed in range(20):
        far.find(normal(seed, 640, 4))
    found = [far.find(1e6 * normal(seed, 640, 4)) is not None for seed in range(30)]
    assert found[0] and not any(found[-10:])
