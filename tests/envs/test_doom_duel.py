"""DoomDuel-v0: two engines of ViZDoom that play one game, without a window."""

from __future__ import annotations

import os

import numpy as np
import psutil
import pytest

from sampleforge.env.config import EnvConfig
from sampleforge.env.random_play import random_actions
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import own_outputs

pytest.importorskip("vizdoom")

pytestmark = pytest.mark.usefixtures("only_engines")


@pytest.mark.multiprocess(timeout=120)
def test_two_players_play_several_episodes_and_leave_no_engine() -> None:
    config = EnvConfig(env="DoomDuel-v0", max_episode_steps=40, decorrelate=False)
    vector = make_vector(config, 2, [1, 2])
    assert vector.spec.agents == ("player_0", "player_1") and vector.spec.frame_skip == 4
    seats = [(seat, own_outputs(seat.spec, 2)) for seat in vector.seats]
    rng = np.random.default_rng(0)
    for seat, out in seats:
        seat.reset(out.obs)
    episodes = []
    for _ in range(100):
        for seat, _ in seats:
            seat.send(random_actions(seat.spec, 2, rng))
        for seat, out in seats:
            episodes += seat.recv(out)
            assert out.obs["obs"].std() > 5, "a picture"
    left, right = (out.obs["obs"] for _, out in seats)
    assert not np.array_equal(left, right), "each player has a view of its own"
    assert [episode.length for episode in episodes] == [40] * (2 * 2 * 2)
    assert vector.rebuilt == 0, vector.fault
    vector.close()
    engines = [child for child in psutil.Process().children(True) if "vizdoom" in child.name()]
    assert not engines
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("ViZDoom")]
