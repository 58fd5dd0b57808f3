"""A recorded dataset holds what was sampled, byte for byte, and Minari reads it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.config import ConfigError
from sampleforge.data.dataset import open_dataset
from sampleforge.ops.distributions import ActionDistribution
from sampleforge.spec import ACTION_MASK
from sampleforge.topologies.config import ApexConfig, AppoConfig, DdppoConfig, SamplingConfig
from tests.support.offline import PLAYED, SEEN, leaves_of, record, stored

SMALL: dict[str, Any] = {
    **{"env": SEEN, "serial": True, "seed": 1, "num_envs_per_worker": 3, "num_splits": 1},
    **{"decorrelate": False, "debug": True},
}
OFF_POLICY: dict[str, Any] = {
    "num_workers": 1,
    "learning_starts": 100,
    "replay_capacity": 500,
    "batch_size": 8,
}
RUNS: dict[str, SamplingConfig] = {
    "appo, Box": AppoConfig(**SMALL, rollout=7),
    "appo, Discrete from 5": AppoConfig(**SMALL, env_kwargs={"name": "discrete from 5"}, rollout=5),
    "appo, MultiDiscrete": AppoConfig(
        **SMALL, env_kwargs={"name": "multidiscrete from 3 and -1"}, rollout=5
    ),
    "appo, Dict": AppoConfig(**SMALL, env_kwargs={"name": "dict"}, rollout=5),
    "appo, Tuple": AppoConfig(**SMALL, env_kwargs={"name": "tuple"}, rollout=5),
    "appo, mask": AppoConfig(**SMALL, env_kwargs={"name": "mask in info"}, rollout=5),
    "appo, stacks": AppoConfig(**SMALL, env_kwargs={"name": "stacked, reset"}, rollout=5),
    "ddppo": DdppoConfig(**SMALL, num_ranks=1, rollout=6),
    "apex, stacks": ApexConfig(**SMALL, **OFF_POLICY, env_kwargs={"name": "stacked"}, rollout=7),
}


@pytest.mark.long
@pytest.mark.parametrize("run", RUNS)
def test_a_dataset_read_back_equals_what_was_sampled(run: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    _, spec = record(dataclasses.replace(RUNS[run], record=str(folder)))
    dataset = open_dataset(folder, spec)
    number = [0] * len(PLAYED)
    ours = list(dataset.episodes())
    assert len(ours) > 10 and dataset.num_steps >= 300 - 60
    for index, each in enumerate(stored(folder)):
        episode, about, row = each.episode, each.about, each.row
        played = PLAYED[row][number[row]]
        number[row] += 1
        steps = len(episode.rewards)
        assert steps == about["total_steps"] <= len(played.rewards)
        whole = steps == len(played.rewards) and any(played.flags[-1])
        frames = [name for name, leaf in spec.observations.items() if leaf.stack]
        given = zip(*(leaves_of(each) for each in played.observations[: steps + 1]), strict=True)
        for read, seen in zip(leaves_of(episode.observations), given, strict=True):
            seen_frames = np.stack(seen)[:, -1] if frames else np.stack(seen)
            assert read.tobytes() == seen_frames.astype(read.dtype).tobytes()
        taken = zip(*(leaves_of(each) for each in played.actions[:steps]), strict=True)
        for read, seen in zip(leaves_of(episode.actions), taken, strict=True):
            assert read.tobytes() == np.stack(seen).astype(read.dtype).tobytes()
        assert episode.rewards.tolist() == np.asarray(played.rewards[:steps], np.float32).tolist()
        flags = np.stack([episode.terminations, episode.truncations], 1)
        assert flags.tolist() == [list(each) for each in played.flags[:steps]]
        assert ours[index].ends == whole and ours[index].begins
        check_ours(ours[index], played, spec, steps)


def test_a_stack_that_is_not_padded_as_the_environment_says_is_not_recorded(tmp_path: Path) -> None:
    """The dataset has single frames, so that other stacks would be read than were seen."""
    config = dataclasses.replace(
        RUNS["appo, stacks"],
        env_kwargs={"name": "stacked, says zero"},
        record=str(tmp_path / "data"),
    )
    with pytest.raises(ConfigError, match=r"'obs' is a stack of 4 frames .* 'zero' before"):
        record(config)


def check_ours(episode: Any, played: Any, spec: Any, steps: int) -> None:
    """Our reader gives stacks whole, and log-probabilities that follow from the parameters."""
    assert len(episode) == steps and list(episode.observations) == list(spec.observations)
    for name, leaf in spec.observations.items():
        assert episode.observations[name].shape == (steps + 1, *leaf.shape)
        if leaf.stack:
            stacks = np.stack(played.observations[: steps + 1])
            assert episode.observations[name].tobytes() == stacks.tobytes()
    actions = {name: torch.from_numpy(leaf.copy()) for name, leaf in episode.actions.items()}
    mask = None
    if ACTION_MASK in episode.observations:
        mask = torch.from_numpy(episode.observations[ACTION_MASK][:-1])
    parameters = torch.from_numpy(episode.parameters.copy())
    expected = ActionDistribution(spec.actions, parameters, mask).log_prob(actions)
    np.testing.assert_allclose(episode.log_probs, expected, rtol=1e-4, atol=1e-5)
    assert (np.diff(episode.policy_version) >= 0).all()
