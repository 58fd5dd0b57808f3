"""The sizes of each agent group of a multi-agent environment, whose policies have spaces of their
own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sampleforge.models.registry import resolve_encoder
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import AnyConfig, ApexConfig, MarwilConfig
from sampleforge.topologies.ppo_defaults import nearest_minibatch


@dataclass(frozen=True)
class AgentGroup:
    """An agent group as its policies see it: its ``spec``, and the ``config`` and the ``plan`` of
    their models, slots and batches. The number of workers, splits and rows is that of the run."""

    config: Any
    plan: Any
    spec: EnvSpec


def other_agent_groups(
    make_plan: Callable[..., Any], config: AnyConfig, plan: Any, spec: EnvSpec
) -> tuple[AgentGroup, ...]:
    """Return the agent groups of ``spec`` beside the first one, for which ``plan`` was made.

    ``config`` is resolved for the first one, except for its encoder. The policies of the others
    have the same settings, but encoders for their own observations, and batches of their own,
    with minibatches about as large."""
    return tuple(_planned(make_plan, config, plan, group) for group in spec.other_groups)


def _planned(
    make_plan: Callable[..., Any], config: AnyConfig, plan: Any, spec: EnvSpec
) -> AgentGroup:
    assert not isinstance(config, MarwilConfig), "its plan takes single-agent environments only"
    own = dataclasses.replace(
        config,
        model=resolve_encoder(config.model, spec.observations),
        num_workers=plan.num_workers,
        num_envs_per_worker=plan.num_splits * plan.rows,
        num_splits=plan.num_splits,
    )
    if isinstance(own, ApexConfig):
        planned = dataclasses.replace(make_plan(own, spec, plan.device), num_seats=plan.num_seats)
        return AgentGroup(own, planned, spec)
    given = own.minibatch_size
    own = dataclasses.replace(own, batch_size=None, minibatch_size=None)
    planned = dataclasses.replace(make_plan(own, spec, plan.device), num_seats=plan.num_seats)
    size = planned.batch_size
    minibatch = None if given is None else nearest_minibatch(own, size, given)
    own = dataclasses.replace(own, batch_size=size, minibatch_size=minibatch)
    return AgentGroup(own, planned, spec)
