"""Atari: what is an episode in training, and what in evaluations."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.gymnasium_vector import GymnasiumVector
from sampleforge.env.place import Place
from sampleforge.env.random_play import random_actions
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import own_outputs
from sampleforge.workers.episode_player import evaluation_envs

pytest.importorskip("ale_py")
ROWS = 4
NOOP = 0


CONFIG = EnvConfig(
    env="ALE/Breakout-v5", env_kwargs={"episodic_life": True, "noop_max": 1}, decorrelate=False
)


@pytest.mark.long
def test_a_life_is_an_episode_of_training_and_a_game_one_of_evaluations() -> None:
    training, evaluation = make_vector(CONFIG, ROWS, range(ROWS)), evaluation_envs(CONFIG, ROWS, 0)
    assert "a life is an episode of training" in training.spec.protocol
    assert "a game is an episode" in evaluation.spec.protocol
    training.close(), evaluation.close()


@pytest.mark.long
@pytest.mark.parametrize("episodic_life", [False, True])
def test_rows_that_step_in_several_threads_play_the_same_games(episodic_life: bool) -> None:
    config = dataclasses.replace(CONFIG, env_kwargs={"episodic_life": episodic_life})
    one, several = (
        make_vector(config, ROWS, range(ROWS), Place(threads=threads)) for threads in (1, 3)
    )
    out, expected = own_outputs(several.spec, ROWS), own_outputs(one.spec, ROWS)
    several.reset(out.obs)
    one.reset(expected.obs)
    rng = np.random.default_rng(0)
    for _ in range(300):
        actions = random_actions(one.spec, ROWS, rng)
        one.send(actions)
        several.send(actions)
        assert one.recv(expected) == several.recv(out)
        assert np.array_equal(out.obs["obs"], expected.obs["obs"])
        assert np.array_equal(out.terminated, expected.terminated)
    one.close(), several.close()


@pytest.mark.long
def test_a_lost_life_is_terminal_and_the_game_goes_on() -> None:
    """With random actions; ALE itself plays the same games beside it."""
    vector = make_vector(CONFIG, ROWS, range(ROWS))
    whole = dataclasses.replace(CONFIG, env_kwargs={"noop_max": 1})
    reference = make_vector(whole, ROWS, range(ROWS))
    out, expected = own_outputs(vector.spec, ROWS), own_outputs(reference.spec, ROWS)
    vector.reset(out.obs)
    reference.reset(expected.obs)
    rng = np.random.default_rng(0)
    terminals = np.zeros(ROWS, np.int64)
    left_out = np.zeros(ROWS, np.bool_)
    games = 0
    while games < 2 * ROWS:
        actions = random_actions(vector.spec, ROWS, rng)
        vector.send(actions)
        pressed = np.where(left_out, NOOP, actions["action"])
        reference.send({"action": pressed})
        episodes, whole_games = vector.recv(out), reference.recv(expected)
        assert np.array_equal(out.obs["obs"], expected.obs["obs"])
        assert episodes == whole_games, "returns and lengths of whole games"
        assert not (out.terminated & left_out).any()
        assert np.array_equal(out.valid, expected.valid & ~left_out)
        assert np.array_equal(out.first, expected.first | left_out)
        terminals += out.terminated
        left_out = out.terminated & ~expected.terminated
        assert (expected.terminated <= out.terminated).all()
        for episode in episodes:
            assert terminals[episode.row] == 5
            terminals[episode.row] = 0
            games += 1
    vector.close()
    reference.close()


def test_single_environments_have_no_episodes_of_lives() -> None:
    config = dataclasses.replace(CONFIG, env_backend="single")
    with pytest.raises(ConfigError, match="begins a new game after each life"):
        make_vector(config, 1, [0])


class ScriptedAle:
    """In place of ALE's vector env, one row: plays ``script``, (lives, terminated, reward) of each
    step."""

    def __init__(self, script: list[tuple[int, bool, float]]) -> None:
        self.script = iter(script)
        self.pressed: list[int] = []

    def send(self, actions: np.ndarray) -> None:
        self.pressed.append(int(actions[0]))

    def recv(self) -> tuple[Any, ...]:
        lives, over, reward = next(self.script)
        info = {"env_id": np.zeros(1, np.int64), "lives": np.array([lives])}
        flags = np.array([over]), np.zeros(1, np.bool_)
        return np.zeros((1, 4, 84, 84), np.uint8), np.array([reward]), *flags, info


@pytest.mark.parametrize("ends", ["life", "game"])
def test_what_is_lost_in_the_step_left_out_ends_the_next_one(ends: str) -> None:
    vector = make_vector(CONFIG, 1, [0])
    assert isinstance(vector, GymnasiumVector)
    out = own_outputs(vector.spec, 1)
    vector.reset(out.obs)
    over = ends == "game"
    left = 5 if over else 1
    lost = [(3, False, 1.0), (2, False, 1.0), (1 - over, over, 1.0), (left, False, 0.0)]
    ale = ScriptedAle([*lost, lost[-1]])
    played, vector._ale = vector._ale, ale  # type: ignore[attr-defined]
    steps = []
    for _ in range(5):
        vector.send({"action": np.array([2])})
        games = vector.recv(out)
        steps.append((bool(out.valid[0]), bool(out.terminated[0]), [g.ret for g in games]))
    vector._ale = played  # type: ignore[attr-defined]
    vector.close()
    game = [3.0] if over else []
    assert steps == [
        (True, False, []),
        (True, True, []),
        (False, False, []),
        (True, True, game),
        (False, False, []),
    ]
    assert ale.pressed == [2, 2, NOOP, 2, NOOP]
