"""Stored data: datasets -> learner -> weights -> evaluator. There are no actors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.config import ConfigError
from sampleforge.data.stored_steps import ROWS_READ, RewardRule, StoredBatches
from sampleforge.runtime.machine import human_bytes
from sampleforge.shared.counters import Progress
from sampleforge.shared.records import EpisodeList
from sampleforge.shared.wakeup import wakeups
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import NetworkMaker, initial_weights
from sampleforge.topologies.config import StoredRunConfig
from sampleforge.topologies.datasets import findable
from sampleforge.topologies.devices import peer_devices
from sampleforge.topologies.evaluator import add_evaluators
from sampleforge.topologies.graph import Edge, Graph, GraphBuilder, PolicyGroup
from sampleforge.topologies.learner_group import add_learners
from sampleforge.topologies.learner_maker import LearnerMaker
from sampleforge.topologies.starts import PolicyStart, ResumePoint
from sampleforge.topologies.stored.plan import StoredPlan
from sampleforge.workers.callback import NO_HOOKS, RunHooks


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
        notes=_notes(plan, learners.notes),
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
    ahead, resume = 0, policy.start.resume
    if resume is not None:
        before = resume.plain()
        usual = before["version"] * plan.rows
        ahead = before.get(ROWS_READ, usual) - usual
    return StoredBatches(
        tuple(each._replace(name=findable(each.name)) for each in config.datasets),
        spec,
        RewardRule(config.gamma, config.reward_scale, config.reward_clip),
        plan.rows,
        plan.length,
        policy.start.seed,
        progress,
        torch.device(*peer_devices(plan.device, 1)),
        config.clip_observations,
        ahead,
    )


def _edges(config: StoredRunConfig, plan: StoredPlan) -> list[Edge]:
    batch = f"batch of {plan.rows} rows x {plan.length} steps"
    datasets = [Edge(each.name, "learner", batch) for each in config.datasets]
    return [*datasets, Edge("learner", "driver", "checkpoints, metrics")]


def _notes(plan: StoredPlan, of_learners: Sequence[str]) -> list[str]:
    """Return what `sampleforge describe` says of the run. ``of_learners``: their part."""
    return [
        f"data: {plan.num_steps:,} steps in {plan.num_episodes:,} episodes, "
        f"{human_bytes(plan.nbytes)} of the learner's memory",
        f"learner on {plan.device}, {plan.learner_threads} thread(s)",
        *of_learners,
        *plan.reasons,
    ]


def _fit_units(learner: Any, batches: StoredBatches) -> None:
    """Fit a new learner to the data."""
    learner.fit_units(batches.mixture)
