"""What an environment may give for its declared spaces, and the names of the leaves."""

from __future__ import annotations

import tracemalloc
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from sampleforge.config import ConfigError
from sampleforge.env.adapter import ObservationAdapter, env_spec
from sampleforge.env.random_play import random_actions
from sampleforge.spec import (
    ACTION,
    ACTION_MASK,
    OBSERVATION,
    EnvSpaces,
    EnvSpec,
    flatten,
    leaves,
    unflatten,
)

BOX = spaces.Box(-1, 1, (3,), np.float32)
MASK = spaces.Box(0, 1, (4,), np.int8)
NESTED = spaces.Dict(agent=spaces.Dict(observation=BOX, action_mask=MASK), extra=spaces.Discrete(2))


def spec(observation: gym.Space[Any], action: gym.Space[Any] | None = None) -> EnvSpec:
    return env_spec("E", EnvSpaces(observation, action or spaces.Discrete(4)))


def written(observation: gym.Space[Any], value: Any) -> dict[str, Any]:
    """What the slots hold after ``value``."""
    of = spec(observation)
    out = {name: np.zeros((1, *leaf.shape), leaf.dtype) for name, leaf in of.observations.items()}
    ObservationAdapter(of).write(0, value, {}, out)
    return {name: array[0] for name, array in out.items()}


def test_a_nested_action_mask_is_the_mask_and_no_observation() -> None:
    names = ["agent.observation", ACTION_MASK, "extra"]
    assert sorted(spec(NESTED).observations) == sorted(names)
    value = {
        "agent": {
            "observation": np.ones(3, np.float32),
            "action_mask": np.array([0, 1, 0, 1], np.int8),
        },
        "extra": 1,
    }
    found = written(NESTED, value)
    assert found[ACTION_MASK].tolist() == [False, True, False, True]
    assert found["agent.observation"].tolist() == [1, 1, 1]
    flat = flatten(NESTED, value, OBSERVATION)
    again = unflatten(NESTED, flat, OBSERVATION)
    assert again["agent"]["action_mask"] is value["agent"]["action_mask"]
    assert [name for name, _ in leaves(NESTED, OBSERVATION)] == list(flat)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Dict({"a.b": BOX, "a": spaces.Dict(b=BOX)}), ["'a.b'", "['a.b']", "['a']['b']"]),
        (spaces.Dict(cast(Any, {"1": BOX, 1: BOX})), ["'1'", "['1']", "[1]"]),
        (spaces.Dict(a=NESTED["agent"], b=spaces.Dict(action_mask=MASK)), ["'action_mask'"]),
        (spaces.Dict(a=BOX, b=spaces.Box(-1, 1, (0,), np.float32)), ["'b'", "no elements"]),
        (spaces.Dict(action_mask=spaces.Tuple([MASK, MASK])), ["part of an action mask"]),
        (spaces.Dict(), ["has no leaves"]),
    ],
)
def test_leaves_that_would_be_lost_are_refused_by_name(space: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        spec(space)
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Discrete(10**9), "'action' is a Discrete with 1,000,000,000 values; at most 1,048"),
        (spaces.MultiDiscrete([2**20, 2]), "'action' is a MultiDiscrete with 1,048,578 values;"),
        (spaces.MultiBinary(10**9), "'action' is a MultiBinary with 2,000,000,000 values;"),
        (spaces.Dict(move=spaces.Discrete(2), item=spaces.Discrete(2**21)), "'item' is a Discrete"),
    ],
)
def test_more_logits_than_a_policy_can_have_are_refused(space: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        spec(BOX, space)
    assert words in str(refusal.value)
    assert "have a wrapper split it into a MultiDiscrete of fewer values" in str(refusal.value)


@pytest.mark.parametrize("space", [spaces.Discrete(2**20), spaces.MultiDiscrete([2**19, 2**19])])
def test_random_actions_of_many_values_take_no_memory_for_each_of_them(space: Any) -> None:
    of = spec(BOX, space)
    tracemalloc.start()
    actions = random_actions(of, 100, np.random.default_rng(1))[ACTION]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
    high = actions.max(axis=0)
    values = np.array(of.actions[ACTION].categories).reshape(high.shape)
    assert (actions >= 0).all() and (high < values).all() and (high > 0.9 * values).all()


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.MultiBinary(3), np.array([True, False, True]), [1, 0, 1]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int64), [1, 0, 1]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.uint8), [1, 0, 1]),
        (spaces.Discrete(2), True, 1),
        (spaces.Discrete(3), np.int32(2), 2),
        (spaces.Box(-1, 1, (), np.float32), 0.5, 0.5),
        (spaces.Box(-1, 1, (), np.float32), np.float32(0.5), 0.5),
        (spaces.MultiDiscrete([3, 3]), np.array([1, 2], np.int32), [1, 2]),
        (spaces.Box(-1, 1, (), np.float32), np.float64(0.5), 0.5),
        (spaces.Box(0, 9, (), np.uint8), np.int64(7), 7),
        (spaces.Box(0, 9, (2,), np.int64), [3, 4], [3, 4]),
        (spaces.Box(0, 9, (2,), np.uint8), [3, 4.0], [3, 4]),
        (BOX, np.array([0.5, 1, 0]), [0.5, 1, 0]),
        (BOX, np.array([1, -1, 0]), [1, -1, 0]),
        (BOX, torch.tensor([1, -1, 0]), [1, -1, 0]),
        (spaces.Box(0, 9, (2,), np.uint8), np.array([1, 2]), [1, 2]),
        (spaces.Box(-1, 1, (1,), np.float32), 0.5, [0.5]),
        (spaces.Discrete(3), np.array([2]), 2),
    ],
    ids=str,
)
def test_what_a_space_contains_is_taken(space: Any, value: Any, expected: Any) -> None:
    assert written(space, value)[OBSERVATION].tolist() == expected


@pytest.mark.parametrize(
    ("space", "value", "got"),
    [
        (BOX, np.zeros(3, np.complex64), "complex64 of shape (3,)"),
        (BOX, torch.zeros(3, requires_grad=True), "Tensor tensor([0., 0., 0."),
        (BOX, np.zeros(4, np.float32), "float32 of shape (4,)"),
        (BOX, None, "NoneType None"),
        (
            spaces.Dict(x=BOX, y=BOX),
            {"x": np.zeros(3, "f4")},
            "must be nested, with the leaves x, y",
        ),
        (BOX, "abc", "str 'abc'"),
        (spaces.Discrete(3), 0.5, "float 0.5"),
        (spaces.Box(0, 9, (2,), np.int64), [1.5, 2], "list [1.5, 2]"),
        (spaces.Box(0, 255, (2,), np.uint8), [256, 2], "list [256, 2]"),
        (
            spaces.Box(0, 9, (2,), np.uint8),
            np.array([1, 256]),
            "of shape (2,) with 256, which uint8",
        ),
        (spaces.Box(0, 9, (), np.uint8), np.float64(0.5), "float64 of shape () with 0.5, which"),
        (spaces.MultiBinary(2), np.array([0.5, 1.0]), "float64 of shape (2,) with 0.5, which"),
    ],
)
def test_what_would_have_to_be_changed_is_refused(space: Any, value: Any, got: str) -> None:
    with pytest.raises(ConfigError, match="row 0: observation leaf 'obs' must be") as refusal:
        written(space, value)
    assert got in str(refusal.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [(np.float64, "given as float64, and converted to float32"), (np.float16, ""), (np.uint8, "")],
)
def test_a_type_by_which_numbers_may_be_rounded_is_noted(given: Any, said: str) -> None:
    notes: dict[str, str] = {}
    adapter, out = ObservationAdapter(spec(BOX), notes), {OBSERVATION: np.zeros((1, 3), "f4")}
    for _ in range(2):
        adapter.write(0, np.ones(3, given), {}, out)
    assert list(notes) == [OBSERVATION] * bool(said)
    assert said in notes.get(OBSERVATION, "")
