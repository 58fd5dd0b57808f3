"""Stored data: datasets -> learner -> weights -> evaluator. There are no actors. First the sizes of
a run, checked before it starts; then its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.config import ConfigError, typed
from sampleforge.data.config import Source
from sampleforge.data.dataset import OfflineDataset
from sampleforge.data.stored_steps import RewardRule, StoredBatches
from sampleforge.runtime.machine import human_bytes, memory_available, this_machine
from sampleforge.shared.counters import Progress
from sampleforge.shared.records import EpisodeList
from sampleforge.shared.wakeup import wakeups
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import NetworkMaker, initial_weights
from sampleforge.topologies.config import StoredRunConfig
from sampleforge.topologies.datasets import open_datasets
from sampleforge.topologies.devices import member_devices
from sampleforge.topologies.evaluator import add_evaluators
from sampleforge.topologies.graph import Edge, Graph, GraphBuilder, PolicyGroup
from sampleforge.topologies.learner_group import add_learners
from sampleforge.topologies.learner_maker import LearnerMaker
from sampleforge.topologies.sampler_plan import choose_precision, learner_threads
from sampleforge.topologies.starts import PolicyStart, ResumePoint
from sampleforge.workers.callback import NO_HOOKS, RunHooks

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
            "single-agent environment"
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


def wire_stored(
    algorithm: Algorithm,
    config: StoredRunConfig,
    plan: StoredPlan,
    spec: EnvSpec,
    start: ResumePoint,
    policies: Sequence[PolicyStart],
    hooks: RunHooks = NO_HOOKS,
) -> Graph:
    """Wire the learner, which reads the datasets, and the evaluators. ``hooks``: of the run's
    callbacks. Nothing runs yet. Raises ConfigError for several policies."""
    if len(policies) != 1:
        raise ConfigError(f"{config.algo} learns one policy, but {len(policies)} are asked for")
    policy = policies[0]
    graph = GraphBuilder(config, start, hooks)
    new_model = NetworkMaker(algorithm, config, spec, policy.start.seed)
    weights = initial_weights(new_model, policy.start)
    batches = _stored_batches(config, plan, spec, policy, graph.progress)
    maker = LearnerMaker(new_model, plan, policy, batches, fit=_fit_units)
    learners = add_learners(graph, config, [maker], weights, wakeups(1))
    results, evaluation = add_evaluators(graph, config, weights, new_model)
    group = PolicyGroup(
        policy.id,
        learners.nodes,
        None,
        weights,
        snapshot=learners.snapshot,
        evaluations=results,
    )
    return graph.build(
        groups=[group],
        edges=[*_edges(config, plan), *evaluation],
        notes=_notes(config, plan, spec, learners.notes),
        episodes=EpisodeList(),
    )


def _stored_batches(
    config: StoredRunConfig,
    plan: StoredPlan,
    spec: EnvSpec,
    policy: PolicyStart,
    progress: Progress,
) -> StoredBatches:
    """Return what the learner of ``policy`` learns from."""
    return StoredBatches(
        tuple(map(_findable, config.datasets)),
        spec,
        RewardRule(config.gamma, config.reward_scale, config.reward_clip),
        plan.rows,
        plan.length,
        policy.start.seed,
        progress,
        torch.device(*member_devices(plan.device, 1)),
    )


def _edges(config: StoredRunConfig, plan: StoredPlan) -> list[Edge]:
    batch = f"batch of {plan.rows} rows x {plan.length} steps"
    datasets = [Edge(each.name, "learner", batch) for each in config.datasets]
    return [*datasets, Edge("learner", "driver", "checkpoints, metrics")]


def _notes(
    config: StoredRunConfig, plan: StoredPlan, spec: EnvSpec, of_learners: Sequence[str]
) -> list[str]:
    """Return what `sampleforge describe` says of the run. ``of_learners``: their part."""
    return [
        f"data: {plan.num_steps:,} steps in {plan.num_episodes:,} episodes, "
        f"{human_bytes(plan.nbytes)} of the learner's memory",
        f"learner on {plan.device}, {plan.learner_threads} thread(s)",
        *of_learners,
        *plan.reasons,
    ]


def _findable(source: Source) -> Source:
    """Return a source that the learner finds as well, whose working directory is another one."""
    folder = Path(source.name)
    return source._replace(name=str(folder.absolute())) if folder.exists() else source


def _fit_units(learner: Any, batches: StoredBatches) -> None:
    """Fit a new learner to the data."""
    learner.fit_units(batches.mixture)
