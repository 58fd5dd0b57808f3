"""MiniGrid and BabyAI: what the environments show reaches the model as categories."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_single
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.spec import EnvSpec
from tests.support.graphs import spec_of

minigrid = pytest.importorskip("minigrid")


def spec(env: str, **kwargs: Any) -> EnvSpec:
    return spec_of(EnvConfig(env=env, env_kwargs=kwargs))


def test_rows_are_the_original_as_codes() -> None:
    original = gym.make("MiniGrid-DoorKey-5x5-v0")
    env = make_single(EnvConfig(env="MiniGrid-DoorKey-5x5-v0"))
    expected, found = original.reset(seed=3)[0], env.reset(seed=3)[0]
    rng = np.random.default_rng(0)
    for _ in range(300):
        assert set(found) == {"image", "direction"}  # its mission never changes
        assert np.array_equal(found["image"], expected["image"])
        assert found["direction"] == expected["direction"]
        assert env.observation_space.contains({**found, "direction": int(found["direction"])})
        action = int(rng.integers(7))
        expected, *same = original.step(action)
        found, *rest = env.step(action)
        assert rest == same
        if same[1] or same[2]:
            expected, found = original.reset()[0], env.reset()[0]
    env.close()


def test_the_limit_is_the_environments_own() -> None:
    assert spec("MiniGrid-Empty-5x5-v0").max_episode_steps == 100
    assert spec("MiniGrid-Empty-5x5-v0", max_steps=30).max_episode_steps == 30
    assert spec("BabyAI-GoToLocal-v0").max_episode_steps is None  # differs between episodes


@pytest.mark.parametrize("view", [7, 9])
def test_codes_are_one_hot_and_no_image(view: int) -> None:
    """Nine cells are as wide as an image may be, and are none: no CNN, no division by 255."""
    found = spec("MiniGrid-Empty-8x8-v0", agent_view_size=view)
    image = found.observations["image"]
    assert (image.shape, image.dtype) == ((view, view, 3), "uint8")
    config = resolve_encoder(ModelConfig(), found.observations)
    assert config.encoder == "mlp"
    encoder: Any = ActorCritic(config, found.observations, found.actions).actor.encoder
    cells = torch.zeros(3, view, view, 3, dtype=torch.uint8)
    cells[1, 0, 0, 0] = 1  # "empty" where the first view has "unseen"
    cells[2, 0, 0, 0] = 10  # "agent"
    vectors = encoder.vector({"image": cells, "direction": torch.tensor([0, 0, 0])})
    apart = (vectors[:, None] - vectors[None]).abs().sum(2)
    assert apart.tolist() == [[0, 2, 2], [2, 0, 2], [2, 2, 0]]
    assert (vectors.sum(1) == view * view * 3 + 1).all()


@pytest.mark.parametrize("env_id", ["MiniGrid-Fetch-5x5-N2-v0", "BabyAI-BossLevel-v0"])
def test_a_mission_that_changes_is_told_word_by_word(
    env_id: str, capfd: pytest.CaptureFixture[str]
) -> None:
    env: Any = make_single(EnvConfig(env=env_id))
    words: dict[str, int] = {}
    missions, seen = set(), set()
    for seed in range(30):
        codes = env.reset(seed=seed)[0]["mission"]
        mission = env.unwrapped.mission
        missions.add(mission)
        seen.add(codes.tobytes())
        told = mission.replace(",", " ,").split()
        assert (codes[len(told) :] == 0).all()
        for word, code in zip(told, codes.tolist(), strict=False):
            assert words.setdefault(word, code) == code > 0
        assert (codes < env.observation_space["mission"].nvec).all()
    assert len(seen) == len(missions) > 5
    assert len(set(words.values())) == len(words)
    env.close()
    assert capfd.readouterr().out == ""  # BabyAI would print every task that it rejects


def test_a_mission_that_was_not_announced_is_refused() -> None:
    env: Any = make_single(EnvConfig(env="MiniGrid-Fetch-5x5-N2-v0"))
    with pytest.raises(ConfigError, match="'get a pink ball' has words that its mission space"):
        env.missions("get a pink ball")
    env.close()


def test_a_code_beyond_minigrids_tables_is_refused() -> None:
    env: Any = make_single(EnvConfig(env="MiniGrid-Empty-5x5-v0"))
    seen = env.unwrapped.reset(seed=0)[0]
    seen["image"][0, 0, 0] = 11
    with pytest.raises(ConfigError, match=r"a code that minigrid\.core"):
        env.observation(seen)
    env.close()
