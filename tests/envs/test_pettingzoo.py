"""PettingZoo's environments: ids, agents that act at once or in turn, masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.random_play import random_actions
from sampleforge.env.registry import families, make_single, make_vector
from sampleforge.env.vector import Episode, StepOut, own_outputs
from sampleforge.spec import ACTION_MASK

pytest.importorskip("pettingzoo")
KNIGHTS = "PettingZoo/butterfly/knights_archers_zombies-v11"


def play(
    env: str, steps: int, rows: int = 2, **kwargs: Any
) -> tuple[Any, list[list[Episode]], list[list[Any]]]:
    """Return the first seat, and the episodes and valid flags of every seat."""
    config = EnvConfig(env=env, env_kwargs=kwargs, decorrelate=False)
    vector = make_vector(config, rows, range(rows))
    seats: list[tuple[Any, StepOut]] = [
        (seat, own_outputs(seat.spec, rows)) for seat in vector.seats
    ]
    episodes: list[list[Episode]] = [[] for _ in seats]
    valid: list[list[Any]] = [[] for _ in seats]
    rng = np.random.default_rng(0)
    for seat, out in seats:
        seat.reset(out.obs)
    for _ in range(steps):
        for seat, out in seats:
            seat.send(random_actions(seat.spec, rows, rng, out.obs.get(ACTION_MASK)))
        for index, (seat, out) in enumerate(seats):
            episodes[index] += seat.recv(out)
            valid[index].append(out.valid.copy())
    vector.close()
    assert vector.rebuilt == 0, vector.fault
    return vector, episodes, valid


@pytest.mark.long
def test_agents_that_act_at_once() -> None:
    vector, episodes, valid = play(KNIGHTS, 300)
    assert vector.spec.agents == ("archer_0", "archer_1", "knight_0", "knight_1")
    assert all(len(own) >= 2 for own in episodes)
    assert all(np.mean(own) > 0.9 for own in valid)


def test_agents_that_act_in_turn_have_masks_and_both_get_the_result() -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe.tictactoe")
    vector, episodes, _ = play("PettingZoo/classic/tictactoe-v3", 200)
    assert vector.spec.agents == ("player_1", "player_2")
    assert vector.spec.observations[ACTION_MASK].shape == (9,)
    first, second = episodes
    assert len(first) == len(second) > 20
    assert all(a.ret == -b.ret and a.length == b.length for a, b in zip(*episodes, strict=True))
    assert {episode.ret for episode in first} == {-1.0, 0.0, 1.0}


def test_ids_are_listed_and_a_wrong_one_names_the_nearest() -> None:
    family = next(family for family in families() if family.name == "pettingzoo")
    assert KNIGHTS in family.ids()
    with pytest.raises(ConfigError, match="Did you mean PettingZoo/butterfly/pistonball-v6"):
        make_vector(EnvConfig(env="PettingZoo/butterfly/pistonball-v5"), 1, [0])


def test_a_single_environment_draws_itself() -> None:
    env = make_single(EnvConfig(env=KNIGHTS), "rgb_array")
    env.reset(seed=1)
    assert env.render().ndim == 3
    env.close()
