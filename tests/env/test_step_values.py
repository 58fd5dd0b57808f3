"""Rewards, flags, infos and statistics of a wrong type or shape are refused by name, by every
adapter; what is a number, or True or False, is taken whatever its type."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.random_play import random_actions
from sampleforge.env.registry import make_vector
from sampleforge.env.single import MAX_REBUILDS
from sampleforge.env.step_values import number_of
from sampleforge.env.threaded import ThreadedVector
from sampleforge.env.vector import EnvVector, StepOut, own_outputs
from tests.support import wrong_values
from tests.support.wrong_values import MISSING

FAKES = "tests.support.wrong_values"
Make = Callable[..., EnvVector]
STATS, OBJECTIVE, MASK = "episode_extra_stats", "true_objective", "action_mask"

WRONG_REWARDS = [
    ("1.5", "str '1.5'"),
    (None, "NoneType None"),
    (1 + 2j, "complex (1+2j)"),
    (np.complex64(1), "complex64 "),
    ({"a": 1.0}, "dict {'a': 1.0}"),
    ([1.0], "list [1.0]"),
    ((1.0, 2.0), "tuple (1.0, 2.0)"),
    (np.ones(1), "float64 of shape (1,)"),
    (np.ones(2, np.float32), "float32 of shape (2,)"),
    (np.array("1.5"), "ndarray array('1.5'"),
]
WRONG_FLAGS = [
    (None, "NoneType None"),
    ("False", "str 'False'"),
    (2, "int 2"),
    (0.5, "float 0.5"),
    ([], "list []"),
    ([False], "list [False]"),
    (np.zeros(1, np.bool_), "bool of shape (1,)"),
]
WRONG_RESULTS = [(None, "NoneType None"), ("high", "str 'high'"), (np.ones(1), "shape (1,)")]
CASES: list[tuple[str, Any, str, str]] = [
    *(("reward", value, "the reward must be a number", got) for value, got in WRONG_REWARDS),
    *(
        (name, value, f"{name} must be True or False", got)
        for name in ("terminated", "truncated")
        for value, got in WRONG_FLAGS
    ),
    ("info", None, "the info of a step must be a dict", "NoneType None"),
    ("info", [{}], "the info of a step must be a dict", "list [{}]"),
    ("info", np.zeros(2), "the info of a step must be a dict", "float64 of shape (2,)"),
    (STATS, 3.0, f"info['{STATS}'] must be a dict of numbers", "float 3.0"),
    *(
        (STATS, {"x": value}, f"info['{STATS}']['x'] must be a number", got)
        for value, got in WRONG_RESULTS
    ),
]
OBJECTIVES = [
    (OBJECTIVE, value, f"info['{OBJECTIVE}'] must be a number", got) for value, got in WRONG_RESULTS
]
GOOD_REWARDS = [
    True,
    3,
    1.5,
    np.bool_(True),
    np.int8(3),
    np.uint64(3),
    np.float16(1.5),
    np.float32(1.5),
    np.float64(1.5),
    np.array(1.5),
    np.array(3, np.int32),
    Fraction(3, 2),
]
GOOD_FLAGS = [True, 1, 1.0, np.bool_(True), np.int64(1), np.array(True), np.array(1)]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Make:
    """`made(env, column, value, **env_kwargs)` -> three rows of an environment of `FAKES`."""

    def made(env: str, column: str, value: Any, **kwargs: Any) -> EnvVector:
        monkeypatch.setattr(wrong_values, "given", (column, value))
        config = EnvConfig(env=f"{FAKES}:{env}", env_kwargs=kwargs, decorrelate=False)
        return make_vector(config, 3, [0, 1, 2])

    return made


@pytest.fixture
def threaded(made: Make) -> Make:
    return lambda *args: ThreadedVector(lambda: made(*args), lambda: None)


def stepped(vector: EnvVector, steps: int = 2) -> list[StepOut]:
    """The arrays of each seat after some steps."""
    outs = [own_outputs(seat.spec, 3) for seat in vector.seats]
    rng = np.random.default_rng(0)
    try:
        for seat, out in zip(vector.seats, outs, strict=True):
            seat.reset(out.obs)
        for _ in range(steps):
            for seat in vector.seats:
                seat.send(random_actions(seat.spec, 3, rng))
            for seat, out in zip(vector.seats, outs, strict=True):
                seat.recv(out)
    finally:
        vector.close()
    return outs


def refused(vector: EnvVector, steps: int = 2) -> str:
    """The message with which the steps are refused."""
    with pytest.raises(ConfigError) as refusal:
        stepped(vector, steps)
    assert refusal.value.args[0].count(";") >= 1, "the remedy comes after a semicolon"
    return str(refusal.value)


@pytest.mark.parametrize(("column", "value", "must", "got"), [*CASES, *OBJECTIVES], ids=repr)
def test_a_row_is_refused_with_value_expected_and_got(
    made: Make, column: str, value: Any, must: str, got: str
) -> None:
    message = refused(made("WrongEnv", column, value))
    assert message.startswith(f"{FAKES}:WrongEnv, row 1: {must}"), message
    assert f"the environment gave {got}" in message or got in message, message


@pytest.mark.parametrize("column", ["reward", "terminated", "info"])
def test_rows_in_a_thread_are_refused_alike(threaded: Make, column: str) -> None:
    message = refused(threaded("WrongEnv", column, None))
    assert f"{FAKES}:WrongEnv, row 1: " in message and "gave NoneType None" in message


@pytest.mark.parametrize("value", GOOD_REWARDS, ids=repr)
def test_a_number_of_any_type_is_a_reward(made: Make, value: Any) -> None:
    (out,) = stepped(made("WrongEnv", "reward", value))
    assert out.reward[1:].tolist() == [float(value)] * 2


@pytest.mark.parametrize("value", GOOD_FLAGS, ids=repr)
def test_a_flag_is_a_bool_or_a_number_that_is_0_or_1(made: Make, value: Any) -> None:
    for column in ("terminated", "truncated"):
        (out,) = stepped(made("WrongEnv", column, value))
        assert getattr(out, column).tolist() == [False, True, True]


def test_an_int_beyond_all_floats_is_infinite(made: Make) -> None:
    assert [number_of(10**400), number_of(-(10**400))] == [np.inf, -np.inf]
    vector = made("WrongEnv", "reward", 10**400)
    (out,) = stepped(vector)
    assert out.valid.tolist() == [True, False, False] and "reward is inf" in vector.guard.first


def test_a_mask_that_first_comes_at_a_step_is_refused(made: Make) -> None:
    message = refused(made("WrongEnv", MASK, np.ones(3, np.bool_)))
    assert "row 1: info['action_mask'] must be given at every reset and step" in message


def test_the_remedy_of_a_vector_of_rewards_is_a_wrapper_or_pettingzoo(made: Make) -> None:
    message = refused(made("WrongEnv", "reward", [1.0, 2.0]))
    assert "PettingZoo ParallelEnv" in message and "LinearReward" not in message
    message = refused(made("WrongEnv", "reward", np.array([1.0, 2.0])))
    assert "LinearReward" in message and "PettingZoo" not in message


@pytest.mark.parametrize(("column", "value", "must", "got"), CASES, ids=repr)
def test_an_agent_is_refused_with_value_expected_and_got(
    made: Make, column: str, value: Any, must: str, got: str
) -> None:
    message = refused(made("WrongParallelEnv", column, value))
    assert message.startswith(f"{FAKES}:WrongParallelEnv, agent a_1, row 0: {must}"), message
    assert got in message


@pytest.mark.parametrize("column", wrong_values.COLUMNS)
def test_columns_of_agents_that_are_no_dicts_are_refused(made: Make, column: str) -> None:
    message = refused(made("WrongParallelEnv", column, [1.0, 2.0], whole=True))
    assert "row 0: step() must return (observations, rewards," in message and "list" in message


def test_an_agent_that_takes_part_without_an_observation_is_refused(made: Make) -> None:
    message = refused(made("WrongParallelEnv", "obs", {}, whole=True))
    assert "agent a_0, row 0: an agent in `agents` must have an observation" in message


TURNS = [
    ("rewards", None, "agent a_1, row 0: the reward must be a number", "NoneType None"),
    ("rewards", "1.5", "agent a_1, row 0: the reward must be a number", "str '1.5'"),
    ("rewards", {"a": 1.0}, "agent a_1, row 0: the reward must be a number", "dict {'a': 1.0}"),
    ("terminations", np.zeros(2), "agent a_1, row 0: terminated must be True or False", "(2,)"),
]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("column", "value", "must", "got"), TURNS, ids=repr)
def test_an_agent_that_acts_in_turns_is_refused_alike(
    made: Make, together: bool, column: str, value: Any, must: str, got: str
) -> None:
    message = refused(made("WrongTurns", column, value, together=together))
    assert message.startswith(f"{FAKES}:WrongTurns, {must}") and got in message, message


def test_a_reward_of_turns_that_is_missing_is_refused(made: Make) -> None:
    message = refused(made("WrongTurns", "rewards", MISSING, together=True))
    assert "row 0: rewards must be a dict with an entry of a_1" in message
    assert "gave dict {'a_0': 0.0}" in message


@pytest.mark.parametrize("column", ["rewards", "terminations", "truncations"])
def test_a_column_of_turns_that_is_no_dict_is_refused(made: Make, column: str) -> None:
    message = refused(made("WrongTurns", column, [1.0, 2.0], whole=True))
    assert f"row 0: {column} must be a dict with an entry per agent" in message
    assert "list [1.0, 2.0]" in message


def test_an_info_of_turns_that_is_no_dict_is_refused(made: Make) -> None:
    assert "the info of a step must be a dict" in refused(made("WrongTurns", "infos", None))


@pytest.mark.parametrize("column", ["terminations", "truncations"])
def test_a_reset_of_turns_without_an_agents_flag_is_refused(made: Make, column: str) -> None:
    with pytest.raises(ConfigError, match=f"row 0: {column} must be a dict with an entry of a_1"):
        made("WrongTurns", column, MISSING, first=True)


def test_a_reset_that_leaves_no_agent_is_refused(made: Make) -> None:
    vector = made("WrongTurns", "rewards", 0.0, agents=0)
    message = refused(vector)
    assert "row 0: `agents` must name at least one agent after reset()" in message


def test_an_error_of_the_environments_own_is_not_taken_for_a_wrong_value(made: Make) -> None:
    vector = made("RaisingTurns", "rewards", None)
    with pytest.raises(ZeroDivisionError):
        stepped(vector, MAX_REBUILDS + 1)


def test_an_environment_without_possible_agents_is_refused() -> None:
    env = "tests.support.multi_agent:CodeParallelEnv"
    with pytest.raises(ConfigError, match="possible_agents is empty"):
        make_vector(EnvConfig(env=env, env_kwargs={"agents": 0}), 1, [1])


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("reward", 1.0, "all 3 rows: reward must be an array of shape (3,)"),
        ("reward", [1.0], "all 3 rows: reward must be an array of shape (3,)"),
        ("reward", np.ones((3, 2)), "row 0: the reward must be a number"),
        ("reward", np.ones((3, 1)), "row 0: the reward must be a number"),
        ("reward", [0.0, None, 0.0], "row 1: the reward must be a number"),
        ("terminated", False, "all 3 rows: terminated must be an array of shape (3,)"),
        ("truncated", None, "all 3 rows: truncated must be an array of shape (3,)"),
        ("truncated", np.array([False, None, False]), "row 1: truncated must be True or False"),
        ("info", None, "all 3 rows: the info of a step must be a dict"),
        ("info", [{}, {}, {}], "all 3 rows: the info of a step must be a dict"),
        (MASK, np.ones((3, 3)), "this VectorEnv has its masks in info['action_mask']"),
        ("obs", np.zeros((1, 4), np.float32), "'obs' must be float32 of shape (3, 4)"),
        ("obs", np.zeros((3, 5)), "float32 of shape (3, 4), as its single_observation_space"),
        ("obs", None, "but the environment gave NoneType None"),
    ],
    ids=repr,
)
def test_a_vector_env_is_refused_alike(made: Make, column: str, value: Any, words: str) -> None:
    message = refused(made("WrongVectorEnv", column, value))
    assert message.startswith(f"{FAKES}:WrongVectorEnv") and words in message, message


@pytest.mark.parametrize(
    "value", [[1.5, True, 2], (1.5, 1.0, np.float32(2)), np.array([1.5, 1, 2])]
)
def test_a_vector_env_may_give_rewards_as_any_column_of_numbers(made: Make, value: Any) -> None:
    (out,) = stepped(made("WrongVectorEnv", "reward", value))
    assert out.reward.tolist() == [1.5, 1, 2]


def test_a_mask_of_a_vector_env_that_allows_nothing_is_refused(made: Make) -> None:
    message = refused(made("MaskedVectorEnv", "action_mask", [0, 0, 0]))
    assert "row 2: the action mask [0 0 0] forbids every value of an action" in message
    assert stepped(made("MaskedVectorEnv", "action_mask", [0, 1, 0]))[0].valid.all()
