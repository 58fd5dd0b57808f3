"""`--clip-observations` cuts the observations of data off at their bounds as those of environments,
so that a policy learns from what it acts on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sampleforge.api import train
from sampleforge.data.dataset import StoredEpisode, open_dataset
from sampleforge.data.episode_vector import EpisodeVector, ShuffleBuffer
from sampleforge.data.stored_steps import RewardRule, StoredSteps
from sampleforge.env.adapter import env_spec
from sampleforge.env.config import EnvConfig
from sampleforge.spec import EnvSpaces
from tests.support.env_vectors import buffers
from tests.support.graphs import spec_of
from tests.support.product import small
from tests.support.recorded import recorded, write_dataset
from tests.support.runs import newest


def with_observations(
    space: spaces.Box, lengths: list[int], low: float, high: float
) -> list[StoredEpisode]:
    """Episodes of random actions in CartPole, with observations from ``low`` to ``high``."""
    rng = np.random.default_rng(0)
    return [
        dataclasses.replace(
            each,
            observations={
                "obs": rng.uniform(low, high, (len(each) + 1, *space.shape)).astype(space.dtype)
            },
            actions={"action": each.actions["action"] % 2},
        )
        for each in recorded(lengths)
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
def test_stored_steps_have_no_number_beyond_the_bounds(dtype: str, tmp_path: Path) -> None:
    space = spaces.Box(20, np.array([50, 60, 255], dtype), (3,), np.dtype(dtype).type)
    spec = env_spec("bounded", EnvSpaces(space, spaces.Discrete(2)))
    episodes = with_observations(space, [5, 9], 0, 255)
    folder = write_dataset(tmp_path, spec, episodes)
    as_they_are = StoredSteps(open_dataset(folder, spec).episodes(), RewardRule(0.9))
    beyond = as_they_are.observations["obs"]
    assert (beyond < space.low).any() and (beyond > space.high).any()

    cut = open_dataset(folder, spec, clip_observations=True)
    found = StoredSteps(cut.episodes(), RewardRule(0.9)).observations["obs"]
    assert found.dtype == beyond.dtype == spec.observations["obs"].dtype
    assert np.array_equal(found, beyond.clip(space.low, space.high))
    vector, step = EpisodeVector(spec, 2, ShuffleBuffer(cut, 1, [0])), buffers(spec, 2)
    vector.reset(step.obs)
    for _ in range(20):
        assert (step.obs["obs"] >= space.low).all() and (step.obs["obs"] <= space.high).all()
        vector.send({})
        vector.recv(step)


@pytest.mark.long
@pytest.mark.parametrize("algo", ["marwil", "apex"])
def test_a_run_learns_from_what_it_acts_on(algo: str, tmp_path: Path) -> None:
    """The same as from data that are within the bounds."""
    spec = spec_of(EnvConfig(env="CartPole-v1"))
    assert spec.spaces is not None
    space: Any = spec.spaces.observation
    beyond = with_observations(space, [40] * 10, -9.0, 9.0)
    within = [
        dataclasses.replace(
            each, observations={"obs": each.observations["obs"].clip(space.low, space.high)}
        )
        for each in beyond
    ]
    weights = []
    for name, episodes, clip in (
        ("beyond", beyond, True),
        ("within", within, False),
        ("as they are", beyond, False),
    ):
        data = write_dataset(tmp_path / name / "data", spec, episodes)
        given = {"input": (str(data),), "clip_observations": clip, "train_for_env_steps": 800}
        train(small(algo, tmp_path / name / "run", data, **given))
        weights.append(newest(tmp_path / name / "run"))
    ours, same, other = weights
    assert all(tensor.equal(same[name]) for name, tensor in ours.items())
    assert not all(tensor.equal(other[name]) for name, tensor in ours.items())
