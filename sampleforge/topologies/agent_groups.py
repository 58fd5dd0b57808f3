"""The sizes of each agent group of a multi-agent environment, whose policies have spaces of their
own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import NetworkMaker
from sampleforge.topologies.config import AnyConfig, ReplayRunConfig, StoredRunConfig
from sampleforge.topologies.sampler_plan import nearest_minibatch


@dataclass(frozen=True)
class AgentGroup:
    """An agent group as its policies see it: the ``algorithm`` that
    trains them, its ``spec``, and the ``config`` and the ``plan`` of
    their models, slots and batches. The number of workers, splits and rows is that of the run."""

    algorithm: Algorithm
    config: Any
    plan: Any
    spec: EnvSpec

    def maker(self, seed: int) -> NetworkMaker:
        """Return what makes the network of a policy of this group."""
        return NetworkMaker(self.algorithm, self.config, self.spec, seed)


def other_agent_groups(
    algorithm: Algorithm,
    make_plan: Callable[..., Any],
    config: AnyConfig,
    plan: Any,
    spec: EnvSpec,
) -> tuple[AgentGroup, ...]:
    """Return the agent groups of ``spec`` beside the first one, for which ``plan`` was made.

    ``config`` is resolved for the first one, except for its encoder. The policies of the others
    have the same settings, but encoders for their own observations, and batches of their own,
    with minibatches about as large."""
    return tuple(_planned(algorithm, make_plan, config, plan, group) for group in spec.other_groups)


def _planned(
    algorithm: Algorithm, make_plan: Callable[..., Any], config: AnyConfig, plan: Any, spec: EnvSpec
) -> AgentGroup:
    assert not isinstance(config, StoredRunConfig), "its plan takes single-agent environments only"
    own = dataclasses.replace(
        config,
        model=resolve_encoder(config.model, spec.observations),
        num_workers=plan.num_workers,
        num_envs_per_worker=plan.num_splits * plan.rows,
        num_splits=plan.num_splits,
    )
    if isinstance(own, ReplayRunConfig):
        planned = dataclasses.replace(make_plan(own, spec, plan.device), num_seats=plan.num_seats)
        return AgentGroup(algorithm, own, planned, spec)
    given = own.minibatch_size
    own = dataclasses.replace(own, batch_size=None, minibatch_size=None)
    planned = dataclasses.replace(make_plan(own, spec, plan.device), num_seats=plan.num_seats)
    size = planned.batch_size
    unit = plan.rollout if algorithm.whole_rollouts(own) else 1
    minibatch = None if given is None else nearest_minibatch(size, given, unit)
    own = dataclasses.replace(own, batch_size=size, minibatch_size=minibatch)
    return AgentGroup(algorithm, own, planned, spec)
