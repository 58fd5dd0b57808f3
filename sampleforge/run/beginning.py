"""What a session is made of before anything runs: the environment's spec and the run folder, the
sizes of its agents, and the callbacks that every session has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from sampleforge.env.games import types_of_seats
from sampleforge.models.registry import resolve_encoder, with_import_string
from sampleforge.run.callback import Callback, Level
from sampleforge.run.checkpoints import Checkpoints
from sampleforge.run.folder.opening import OpenRun, StoredPolicy, open_folder
from sampleforge.run.learned import Learned
from sampleforge.run.recording import RecordingReports
from sampleforge.run.reporting import (
    MemoryGrowth,
    StaleExperience,
    Starting,
    StarvedPolicies,
    SystemMetrics,
)
from sampleforge.run.reports.statistics import RunStatistics
from sampleforge.run.screen.messages import opening
from sampleforge.run.stopping import StopConditions
from sampleforge.run.unused import Resolved, crowded, without_effect
from sampleforge.shared.rings import check_store_order
from sampleforge.spec import EnvSpec
from sampleforge.topologies.agent_groups import AgentGroup, other_agent_groups
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.datasets import check_datasets
from sampleforge.topologies.evaluator import check_evaluation
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.registry import AnyPlan, Pairing, pairing
from sampleforge.topologies.sampler_plan import run_device

if TYPE_CHECKING:
    from sampleforge.run.session import Session


def open_run(
    asked: AnyConfig,
    spec: EnvSpec,
    policies: Sequence[str],
    resources: ExitStack,
    is_ending: Callable[[], bool],
) -> tuple[OpenRun, list[str]]:
    """Open the folder of a run in the environment of ``spec``; ``resources`` closes it. Return it
    with the warnings that there are. Nothing in it changes before `OpenRun.prepare`.

    ``asked``: the config as the user gave it. ``policies``: ids of the policy groups.
    ``is_ending()``: whether the run was asked to end meanwhile. Raises ConfigError for what cannot
    run."""
    check_evaluation(asked, spec)
    warnings = check_datasets(asked, spec)
    opened = open_folder(
        asked,
        lambda config: pairing(config).resolve_defaults(config, spec),
        resources,
        is_ending,
        warnings.append,
        policies,
    )
    return opened, warnings


def by_import_string(config: AnyConfig) -> AnyConfig:
    """Return a config with an encoder's import string in the place of its registered name."""
    return dataclasses.replace(config, model=with_import_string(config.model))


def plan_agents(
    chosen: Pairing, config: AnyConfig, spec: EnvSpec
) -> tuple[AnyConfig, tuple[AgentGroup, ...]]:
    """Resolve the defaults of a config and plan the sizes of the run. Return the resolved config,
    and the agents that share a policy, with the encoder of each chosen: one entry, or several in
    an environment of several agents."""
    config = chosen.resolve_defaults(config, spec)
    model = resolve_encoder(config.model, spec.observations)
    plan = chosen.plan(config, spec, run_device(config, spec))
    config = dataclasses.replace(config, batch_size=plan.batch_size)
    others = other_agent_groups(chosen.algorithm, chosen.plan, config, plan, spec)
    with_encoder = dataclasses.replace(config, model=model)
    return config, (AgentGroup(chosen.algorithm, with_encoder, plan, spec), *others)


def new_statistics(
    graph: Graph, policies: Sequence[StoredPolicy], config: AnyConfig, plan: AnyPlan, spec: EnvSpec
) -> RunStatistics:
    """Return the statistics of a wired run, which go on from those of the folder's ``policies``."""
    return RunStatistics(
        graph,
        {stored.id: stored.earlier.get("statistics", {}) for stored in policies},
        config.metrics_window,
        rows=0 if getattr(config, "pbt", False) else plan.envs,
        types=types_of_seats(spec),
    )


def own_callbacks(
    session: Session, checkpoints: Checkpoints, others: Sequence[Callback]
) -> list[Callback]:
    """Return the callbacks of a session that is wired which follow the user's (``others``)."""
    graph, system = session.graph, SystemMetrics(session)
    callbacks = [system, MemoryGrowth(system), StopConditions(session, others), Starting()]
    callbacks += [StaleExperience(graph), checkpoints, Learned()]
    if graph.recording is not None:
        callbacks.append(RecordingReports(graph.recording))
    if (mapping := getattr(session.resolved, "policy_mapping", None)) is not None:
        callbacks.append(StarvedPolicies(session, mapping))
    return callbacks


def opening_messages(
    graph: Graph,
    config: AnyConfig,
    plan: AnyPlan,
    spec: EnvSpec,
    asked: AnyConfig,
    resumed: int | None,
) -> Iterator[tuple[str, Level]]:
    """Yield what the user is told when a run begins. ``config``: with the encoder chosen;
    ``asked``: as the user gave it; ``resumed``: env steps of the earlier runs of the folder (None:
    there is none)."""
    yield from opening(graph, config, plan, spec, resumed)
    run = Resolved(config, plan, spec)
    for warning in (*without_effect(asked, run), crowded(run), check_store_order()):
        if warning is not None:
            yield warning, "warning"
