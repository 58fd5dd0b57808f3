"""Environments within the wrappers that a run names."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.wrapped import make
from tests.support.graphs import spec_of

FLAT = "gymnasium.wrappers:FlattenObservation"
TRANSFORMED = f"{__name__}:doubled"
STACKED = "tests.support.stacked_envs:stacked"


def doubled(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Frame by frame."""
    space = env.observation_space
    return gym.wrappers.TransformObservation(env, lambda frames: 2 * frames, space)


@pytest.mark.parametrize(
    "wrappers", [5, None, [5], [{FLAT: [1]}], {FLAT: 1}, ["nowhere:X"], "gymnasium.wrappers"]
)
def test_what_names_no_wrapper_is_refused(wrappers: Any) -> None:
    with pytest.raises(ConfigError, match="--env-kwargs wrappers: "):
        make("CartPole-v1", wrappers)


@pytest.mark.parametrize(
    "wrappers", [FLAT, {FLAT: None}, [FLAT], [{FLAT: None}], [{FLAT: {}}], (FLAT,)]
)
def test_a_wrapper_needs_neither_a_list_nor_arguments(wrappers: Any) -> None:
    assert type(make("CartPole-v1", wrappers)).__name__ == "FlattenObservation"


@pytest.mark.parametrize(
    ("given", "said"), [({}, "there is no id"), ({"id": 5}, "id=5 is no name of an environment")]
)
def test_without_an_environment_it_is_said_how_one_is_named(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{said}; name .* --env-kwargs id=Pendulum-v1"):
        make(**given)


def test_no_wrappers_are_none() -> None:
    assert make("CartPole-v1").unwrapped is not None


@pytest.mark.parametrize(
    ("wrappers", "stack"),
    [
        ((), "zero"),
        (({TRANSFORMED: None},), "zero"),
        ((FLAT,), None),
        (("sampleforge.env.last_step:LastActionAndReward",), "zero"),
        (("sampleforge.env.last_step:LastActionAndReward", FLAT), None),
    ],
    ids=str,
)
def test_a_stack_of_frames_that_a_wrapper_takes_apart_is_none(
    wrappers: tuple[Any, ...], stack: str | None
) -> None:
    kwargs = {"id": STACKED, "wrappers": wrappers}
    spec = spec_of(EnvConfig(env="sampleforge.env.wrapped:make", env_kwargs=kwargs))
    assert spec.observations["obs"].stack == stack
