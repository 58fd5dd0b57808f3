"""The sizes of a run that learns from stored data, checked before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.config import ConfigError, typed
from sampleforge.data.dataset import OfflineDataset
from sampleforge.runtime.machine import human_bytes, memory_available, this_machine
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import StoredRunConfig
from sampleforge.topologies.datasets import open_datasets
from sampleforge.topologies.sampler_plan import choose_precision, learner_threads

MOST_MEMORY = 0.8
"""Largest fraction of the available memory that the data may take."""


@dataclass(frozen=True)
class StoredPlan:
    """The sizes of a run without actors. ``rows`` rows of ``length`` steps make a batch;
    ``num_steps`` and ``num_episodes`` are those of the data, which take ``nbytes`` of the learner's
    memory."""

    device: str
    precision: str
    rows: int
    length: int
    learner_threads: int
    num_steps: int
    num_episodes: int
    nbytes: int
    reasons: tuple[str, ...]

    num_workers = 0
    envs = 0
    policy_cores = 0
    shared_bytes = 0  # the data are in the learner's own memory

    def sampler_sizes(self, worker: str) -> list[str]:
        """Return nothing: there is no sampler."""
        return []

    @property
    def batch_size(self) -> int:
        """Recorded env steps per batch."""
        return self.rows * self.length

    @property
    def sizes(self) -> tuple[str, ...]:
        """Further sizes that a user should see, as text."""
        return (f"{self.num_steps:,} recorded steps",)

    @property
    def chosen(self) -> dict[str, Any]:
        """The values of config fields that were chosen for this machine."""
        return {"device": self.device, "precision": self.precision}


def plan_stored(
    algorithm: Algorithm, config: StoredRunConfig, spec: EnvSpec, device: str
) -> StoredPlan:
    """Return the sizes of a run. Raises ConfigError, with the reason and the remedy, if there are
    no data, or they do not fit the environment or the memory. ``config``: with resolved
    defaults."""
    if spec.num_seats > 1:
        raise ConfigError(
            f"{spec.env_id} has {spec.num_seats} agents, and marwil learns the policy of a "
            "single-agent environment; what several agents have recorded is learned from with a "
            "replay (--input of apex; sac, crossq or td3 for Box actions)"
        )
    datasets = open_datasets(config, spec)
    steps = sum(dataset.num_steps for dataset in datasets)
    episodes = sum(dataset.num_episodes for dataset in datasets)
    nbytes = _check_memory(config, datasets)
    length, asked = config.sequence_length or 1, config.batch_size
    assert asked is not None, "resolve_defaults comes first"
    if asked % length:
        below = max(length, asked // length * length)
        raise ConfigError(
            f"--batch-size {asked} is not a multiple of --sequence-length {length}; nearest: "
            f"{below} or {below + length}"
        )
    if asked // length < len(datasets):
        raise ConfigError(
            f"--batch-size {asked}: a batch needs a row of each of the {len(datasets)} datasets; "
            f"use at least {len(datasets) * length}"
        )
    precision, why = choose_precision(config, device, config.model.has_pixels(spec.observations))
    cores = 1 if config.serial else this_machine().cores
    return StoredPlan(
        device=device,
        precision=precision,
        rows=asked // length,
        length=length,
        learner_threads=config.learner_threads or learner_threads(config.model, spec, cores),
        num_steps=steps,
        num_episodes=episodes,
        nbytes=nbytes,
        reasons=(why,),
    )


def _check_memory(config: StoredRunConfig, datasets: Sequence[OfflineDataset]) -> int:
    """Return the bytes of the data in memory. Raises ConfigError if they do not fit."""
    nbytes = sum(dataset.nbytes for dataset in datasets)
    steps, free = sum(dataset.num_steps for dataset in datasets), memory_available()
    if nbytes > MOST_MEMORY * free:
        raise ConfigError(
            f"{typed('input', config.input)}: the data take {human_bytes(nbytes)} of memory "
            f"({steps:,} steps), because every pass is in another order, but only "
            f"{human_bytes(free)} are available; give fewer data, or the machine or container more"
        )
    return nbytes
