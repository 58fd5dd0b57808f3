"""Atari: what is an episode in training, and what in evaluations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.random_actions import random_actions
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import own_outputs
from sampleforge.workers.episode_player import evaluation_envs

pytest.importorskip("ale_py")
ROWS = 4
NOOP = 0


CONFIG = EnvConfig(
    env="ALE/Breakout-v5", env_kwargs={"episodic_life": True, "noop_max": 1}, decorrelate=False
)


def test_a_life_is_an_episode_of_training_and_a_game_one_of_evaluations() -> None:
    training, evaluation = make_vector(CONFIG, ROWS, range(ROWS)), evaluation_envs(CONFIG, ROWS, 0)
    assert "a life is an episode of training" in training.spec.protocol
    assert "a game is an episode" in evaluation.spec.protocol
    training.close(), evaluation.close()


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
