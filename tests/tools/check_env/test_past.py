"""What the past tells of a step, found in plays whose rule is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from sampleforge.tools.check_env.past import MOST_STEPS, Past, Told

Floats = npt.NDArray[np.float64]
STEPS = 5_000


def codes(result: Callable[[list[int], int], object], length: int = 100) -> Told | None:
    """Play episodes of random observations, 0 to 3, and actions, 0 and 1; the ``result`` of a step
    follows from the observations of its episode so far and from the action."""
    rng, past = np.random.default_rng(1), Past()
    for _ in range(STEPS // length):
        seen = [int(rng.integers(4))]
        past.begin([np.array([seen[0]])])
        for _ in range(length):
            action = int(rng.integers(2))
            came = result(seen, action)
            seen.append(int(rng.integers(4)))
            past.add([np.array([action])], came, [np.array([seen[-1]])])
    return past.told_of_results()


@pytest.mark.parametrize("back", [1, 3, 40])
def test_a_result_that_follows_from_an_earlier_observation_is_found_with_the_steps_between(
    back: int,
) -> None:
    told = codes(lambda seen, action: len(seen) > back and seen[-1 - back] % 2 == action)
    assert told is not None and told.steps_back == back and 0.3 < told.part <= 0.5
    assert f"if the observation {back} step" in told.text


def test_what_follows_from_the_first_observation_is_found_wherever_the_episode_is() -> None:
    told = codes(lambda seen, action: seen[0] % 2 == action)
    assert told is not None and told.steps_back == 0 and "first observation" in told.text


def test_neither_chance_nor_what_the_observation_shows_is_a_hidden_state() -> None:
    rng = np.random.default_rng(2)
    assert codes(lambda seen, action: int(rng.integers(2))) is None
    assert codes(lambda seen, action: rng.random() < 0.01) is None, "a rare chance"
    assert codes(lambda seen, action: seen[-1] % 2 == action) is None
    assert codes(lambda seen, action: rng.random()) is None, "no two results are the same"


def moving(
    start: Callable[[np.random.Generator], Floats],
    move: Callable[[Floats, float], Floats],
    show: Callable[[Floats], Floats],
    steps: int = STEPS,
) -> Told | None:
    """Play episodes of 50 steps of a state that random forces, -1 to 1, ``move``, of which
    ``show`` makes the observation."""
    rng, past = np.random.default_rng(3), Past()
    for step in range(steps):
        if step % 50 == 0:
            state = start(rng)
            past.begin([show(state)])
        force = float(rng.uniform(-1, 1))
        state = move(state, force)
        past.add([np.array([force], np.float32)], (0.0, False), [show(state)])
    return past.told_of_changes()


def on_a_spring(state: Floats, force: float) -> Floats:
    place, speed = state
    speed = speed + 0.1 * (force - place)
    return np.array([place + 0.1 * speed, speed])


def of_a_pendulum(state: Floats, force: float) -> Floats:
    angle, speed = state
    speed = speed + 0.1 * (force - 10.0 * np.sin(angle))
    return np.array([angle + 0.1 * speed, speed])


def anywhere(rng: np.random.Generator) -> Floats:
    return rng.uniform(-2, 2, 2)


def angle_and_speed(state: Floats) -> Floats:
    return np.array([np.cos(state[0]), np.sin(state[0]), state[1]])


def test_a_speed_that_is_not_shown_is_found() -> None:
    told = moving(anywhere, on_a_spring, lambda state: state[:1])
    assert told is not None and told.part > 0.5 and told.steps_back == 0
    assert "changes of 1 of the 1 numbers" in told.text and "speed" in told.text
    told = moving(anywhere, of_a_pendulum, lambda state: angle_and_speed(state)[:2])
    assert told is not None and "of the 2 numbers" in told.text


def test_no_speed_is_missed_where_it_is_shown_or_nothing_is_foretold() -> None:
    noise = np.random.default_rng(4)
    assert moving(anywhere, on_a_spring, lambda state: state) is None
    assert moving(anywhere, of_a_pendulum, angle_and_speed) is None
    assert moving(anywhere, on_a_spring, lambda state: noise.normal(size=2)) is None
    assert moving(anywhere, lambda state, force: state, lambda state: state) is None, "stands"


@pytest.mark.parametrize(
    ("show", "steps"),
    [
        (lambda state: state[:1], 500),
        (lambda state: np.repeat(state[:1], 50), STEPS),
        (lambda state: np.where(np.abs(state[:1]) > 1.9, np.nan, state[:1]), STEPS),
    ],
    ids=["few steps", "many numbers", "not finite"],
)
def test_nothing_is_said_where_it_cannot_be_known(
    show: Callable[[Floats], Floats], steps: int
) -> None:
    assert moving(anywhere, on_a_spring, show, steps) is None


def test_no_more_steps_are_kept_than_there_is_memory_for() -> None:
    past = Past()
    past.begin([np.zeros(1)])
    for step in range(MOST_STEPS + 10):
        past.add([np.zeros(1)], step, [np.zeros(1)])
    assert past.told_of_results() is None and past.told_of_changes() is None
