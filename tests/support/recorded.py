"""Recorded episodes that encode (episode, step), and actor-critics to learn from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from sampleforge.data import minari_format as fields
from sampleforge.data.dataset import StoredEpisode
from sampleforge.data.stored_steps import Mixture, RewardRule, StoredSteps
from sampleforge.env.adapter import ActionAdapter
from sampleforge.env.spec_json import spec_to_plain
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec, action_specs
from tests.support.pairings import seeded_model

OBSERVATIONS = {"obs": ArraySpec((3,), "float32")}
DISCRETE = action_specs(spaces.Discrete(4))
MULTI = action_specs(spaces.MultiDiscrete([2, 3]))
BOX = action_specs(spaces.Box(-1.0, 1.0, (2,)))
GAMMA = 0.9


def recorded(
    lengths: list[int],
    actions: Mapping[str, ActionSpec] = DISCRETE,
    *,
    truncated: tuple[int, ...] = (),
    unfinished: tuple[int, ...] = (),
    seed: int = 0,
) -> list[StoredEpisode]:
    """Episodes whose observation is (episode, step, noise) and whose rewards are random."""
    rng = np.random.default_rng(seed)
    return [
        _episode(number, length, actions, number in truncated, number in unfinished, rng)
        for number, length in enumerate(lengths)
    ]


def _episode(
    number: int,
    length: int,
    actions: Mapping[str, ActionSpec],
    truncated: bool,
    unfinished: bool,
    rng: np.random.Generator,
) -> StoredEpisode:
    steps = np.arange(length + 1)
    obs = np.stack((np.full(length + 1, number), steps, rng.normal(size=length + 1)), 1)
    last = steps[1:] == length
    return StoredEpisode(
        observations={"obs": obs.astype(np.float32)},
        actions={name: _drawn(spec, length, rng) for name, spec in actions.items()},
        rewards=rng.normal(1.0, 1.0, length).astype(np.float32),
        terminations=last & (not truncated) & (not unfinished),
        truncations=last & truncated,
        log_probs=rng.normal(-1.0, 0.1, length).astype(np.float32),
    )


def _drawn(spec: ActionSpec, length: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    if spec.kind == "box":
        return rng.uniform(-1, 1, (length, *spec.shape)).astype(spec.dtype)
    sizes = np.reshape(spec.categories, spec.shape)
    return rng.integers(0, sizes, (length, *spec.shape)).astype(spec.dtype)


def mixture(
    *parts: list[StoredEpisode],
    rows: int,
    length: int = 1,
    weights: tuple[float, ...] = (),
    seed: int = 1,
) -> Mixture:
    """Batches of some recorded episodes."""
    stored = [StoredSteps(part, RewardRule(GAMMA), length) for part in parts]
    return Mixture(stored, weights or (1.0,) * len(parts), rows, seed)


def actor_critic(actions: Mapping[str, ActionSpec] = DISCRETE, **config: Any) -> ActorCritic:
    """A small actor-critic for these episodes."""
    settings = {"hidden_sizes": (16,), "core_size": 8, "separate_critic": False, **config}
    spec = EnvSpec("recorded", OBSERVATIONS, actions)
    return seeded_model(ModelConfig(**settings), spec, seed=1)


def write_dataset(
    folder: Path, spec: EnvSpec, episodes: list[StoredEpisode], **metadata_too: Any
) -> Path:
    """Write episodes of plain (not nested) spaces as a dataset of SampleForge in Minari's format;
    return the folder. ``metadata_too``: more of the metadata."""
    import h5py
    from minari.serialization import serialize_space

    assert spec.spaces is not None
    data = folder / "data"
    data.mkdir(parents=True)
    to_env = ActionAdapter(spec.spaces.action, spec.actions)
    with h5py.File(data / fields.MAIN_FILE, "w") as file:
        for number, episode in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"], group.attrs["total_steps"] = number, len(episode)
            group.attrs["begins"] = episode.begins
            group.attrs["shortened"] = episode.shortened
            columns = {
                "observations": episode.observations["obs"],
                "actions": to_env(episode.actions)["action"],
                "rewards": episode.rewards,
                "terminations": episode.terminations,
                "truncations": episode.truncations,
            }
            if episode.log_probs is not None:
                columns[f"infos/{fields.LOG_PROB}"] = episode.log_probs
            if episode.independent is not None:
                columns[f"infos/{fields.INDEPENDENT}"] = episode.independent
            if episode.number is not None:
                group.attrs["stream"] = episode.number[:-1]
                group.attrs["number"] = episode.number[-1]
            if episode.span is not None:
                group.attrs["span"] = episode.span
            for path, column in columns.items():
                group.create_dataset(path, data=column)
    metadata = {
        "total_episodes": len(episodes),
        "total_steps": sum(map(len, episodes)),
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": serialize_space(spec.spaces.observation),
        "action_space": serialize_space(spec.spaces.action),
        "dataset_id": "recorded-v0",
        fields.SPEC_KEY: spec_to_plain(spec),
        **metadata_too,
    }
    (data / fields.METADATA_FILE).write_text(json.dumps(metadata))
    return folder
