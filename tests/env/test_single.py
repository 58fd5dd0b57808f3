"""SyncVector: limits, decorrelation, faults, what the door lets in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sampleforge.config import ConfigError
from sampleforge.env.adapter import ActionAdapter
from sampleforge.env.config import EnvConfig
from sampleforge.env.place import Place
from sampleforge.env.random_play import random_actions
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import EnvVector
from sampleforge.spec import ACTION_MASK, action_specs
from tests.support.env_vectors import buffers, play, rollout
from tests.support.envs import MixedActionEnv, RaisingEnv

FAKES = "tests.support.envs"


def make(
    name: str, rows: int = 3, config: dict[str, Any] | None = None, **kwargs: Any
) -> EnvVector:
    given = {"decorrelate": False, **(config or {})}
    return make_vector(
        EnvConfig(env=f"{FAKES}:{name}", env_kwargs=kwargs, **given), rows, list(range(rows))
    )


def test_max_episode_steps_truncates() -> None:
    vector = make("CodeEnv", config={"max_episode_steps": 4}, length=100, ending="terminate")
    cells, _, episodes = play(vector, 12)
    ended = [t for t, step in enumerate(cells) if step[0]["truncated"]]
    assert ended == [3, 8]  # four steps, one reset, four steps
    assert not any(step[0]["terminated"] for step in cells)
    assert {episode.length for episode in episodes} == {4}
    assert vector.spec.max_episode_steps == 4


def test_decorrelation_spreads_the_first_ends_and_leaves_those_episodes_out() -> None:
    config = {"max_episode_steps": 12, "decorrelate": True}
    cells, _, episodes = play(make("CodeEnv", 4, config, length=100), 40)
    ends = [[t for t, step in enumerate(cells) if step[row]["truncated"]] for row in range(4)]
    assert [row[0] for row in ends] == [2, 5, 8, 11]
    assert {row[1] - row[0] for row in ends} == {13}
    assert {episode.length for episode in episodes} == {12}


def first_ends(env: str, kwargs: dict[str, Any], place: Place) -> list[int]:
    """The lengths of the first episodes of the three rows of an actor, with a limit of 24."""
    config = EnvConfig(env=env, env_kwargs=kwargs, max_episode_steps=24)
    vector = make_vector(config, 3, [0, 1, 2], place)
    outs = rollout(vector, np.tile([[0], [1]], (12, 3)))[1:]
    vector.close()
    ends: list[int] = (np.array([out.truncated for out in outs]).argmax(axis=0) + 1).tolist()
    return ends


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        (f"{FAKES}:CodeEnv", {"length": 99}),
        ("tests.support.multi_agent:CodeParallelEnv", {"length": 99, "agents": 1}),
        ("CartPole-v1", {}),  # rows in one array
    ],
)
def test_decorrelation_spreads_the_rows_of_all_actors(env: str, kwargs: dict[str, Any]) -> None:
    ends = [first_ends(env, kwargs, Place(actor, 0, 4)) for actor in range(4)]
    assert ends == [[2, 10, 18], [4, 12, 20], [6, 14, 22], [8, 16, 24]]
    assert first_ends(env, kwargs, Place(0, 3)) == [8, 16, 24], "a single actor"


def test_an_env_that_raises_is_rebuilt_alone_and_its_cell_masked() -> None:
    vector = make("RaisingEnv", where="step", every=5, length=4, ending="terminate")
    cells, _, episodes = play(vector, 12)
    # Steps 1-4 are an episode, then a reset; the fifth step of the env raises, at t = 5.
    assert vector.rebuilt == 3 * 2
    for row in range(3):
        lost = cells[5][row]
        assert not lost["valid"] and lost["truncated"] and lost["first"]
        assert lost["reward"] == 0 and lost["obs"][1:] == [0, 0, 0]
        after = cells[6][row]
        assert after["valid"] and not after["first"] and after["obs"][2] == 1
    assert {episode.length for episode in episodes} == {4}
    assert len(episodes) == 3 * 2
    assert vector.frames == 0 or vector.frames == 3


def test_too_many_faults_in_a_row_raise_the_first() -> None:
    RaisingEnv.made = 0
    vector = make("RaisingEnv", 1, where="step", every=2, length=50)
    with pytest.raises(ValueError, match="deliberate: step raises") as caught:
        play(vector, 50)
    assert "the first of 4 errors in a row" in caught.value.__notes__[0]
    assert vector.rebuilt == 3
    assert RaisingEnv.made == 4


def test_the_adapter_refuses_observations_of_another_shape() -> None:
    vector = make("WrongDtypeEnv", wrong="shape", after=3, length=9)
    message = (
        r"WrongDtypeEnv, row 0: .* must be float32 of shape \(4,\), .* gave float32 of shape \(3,\)"
    )
    with pytest.raises(ConfigError, match=message):
        play(vector, 5)


def test_numbers_beyond_their_bounds_are_cut_off_at_them_on_demand() -> None:
    config = EnvConfig(
        env=f"{FAKES}:WrongDtypeEnv",
        env_kwargs={"wrong": "bounds", "length": 3},
        clip_observations=True,
    )
    vector = make_vector(config, 2, [0, 1])
    out = buffers(vector.spec, 2)
    vector.reset(out.obs)
    for _ in range(8):  # with resets
        assert (out.obs["obs"] == 1000).all()
        vector.send({"action": np.zeros(2, np.int64)})
        vector.recv(out)
    vector.close()


@pytest.mark.parametrize("where", ["info", "obs"])
def test_action_masks_become_an_observation_leaf_for_the_next_action(where: str) -> None:
    vector = make("MaskedEnv", where=where)
    assert vector.spec.observations[ACTION_MASK].shape == (5,)
    assert vector.spec.observations[ACTION_MASK].dtype == "bool"
    rng = np.random.default_rng(0)
    out = buffers(vector.spec, 3)
    vector.reset(out.obs)
    for _ in range(40):  # the env asserts that its mask was obeyed
        vector.send(random_actions(vector.spec, 3, rng, out.obs[ACTION_MASK].copy()))
        vector.recv(out)
        assert out.obs[ACTION_MASK].any(axis=1).all()  # also of final observations
    vector.close()


def test_mixed_actions_and_observations_round_trip() -> None:
    vector = make("MixedActionEnv")
    out = buffers(vector.spec, 3)
    vector.reset(out.obs)
    for _ in range(20):  # the env asserts that its action space contains the action
        asked = out.obs
        right = {
            "move": asked["asked"].copy(),
            "body.0": asked["vector.1"].copy(),
            "body.1": asked["vector.0"].copy(),
            "buttons": asked["buttons"].copy(),
        }
        assert set(right) == set(vector.spec.actions)
        assert asked["asked"].min() >= 0  # the offset is taken off, and put back by the door
        vector.send(right)
        vector.recv(out)
        assert (out.reward == out.valid).all()
    assert vector.spec.observations["vector.0"].dtype == "float32"
    vector.close()


def test_box_actions_are_clipped_to_their_bounds_and_not_in_place() -> None:
    adapter = ActionAdapter(MixedActionEnv.action_space, action_specs(MixedActionEnv.action_space))
    stored = {
        "move": np.array([0, 2]),
        "body.0": np.zeros((2, 2), np.int64),
        "body.1": np.array([[-3.0, 0.5], [1.5, -0.5]], np.float32),
        "buttons": np.zeros((2, 3), np.int8),
    }
    given = adapter(stored)
    assert given["body.1"].tolist() == [[-1.0, 0.5], [1.0, -0.5]]
    assert stored["body.1"][0, 0] == -3.0
    assert given["move"].tolist() == [-1, 1]


def test_experience_is_the_same_for_the_same_seeds_and_differs_for_others() -> None:
    def observations(seeds: list[int]) -> Any:
        config = EnvConfig(env="CartPole-v1", env_backend="single", decorrelate=False)
        vector = make_vector(config, 2, seeds)
        out = buffers(vector.spec, 2)
        vector.reset(out.obs)
        vector.close()
        return out.obs["obs"].tolist()

    assert observations([1, 2]) == observations([1, 2])
    assert observations([1, 2])[1] == observations([2, 1])[0] != observations([1, 2])[0]


def test_episodes_of_one_step_keep_the_masks_of_their_first_observations() -> None:
    vector = make_vector(
        EnvConfig(env="tests.support.envs:MaskedEnv", max_episode_steps=1), 3, [0, 1, 2]
    )
    out, rng = buffers(vector.spec, 3), np.random.default_rng(0)
    vector.reset(out.obs)
    for _ in range(20):  # the env asserts that its mask was obeyed
        vector.send(random_actions(vector.spec, 3, rng, out.obs[ACTION_MASK].copy()))
        vector.recv(out)
        if out.first.any():
            masks = [vector.row_env(row).unwrapped.mask for row in range(3)]
            np.testing.assert_array_equal(out.obs[ACTION_MASK], masks)
    vector.close()
