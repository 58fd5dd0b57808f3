"""The config of a run with the values that its plan has chosen for the machine."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from sampleforge.topologies.apex.plan import ApexPlan
from sampleforge.topologies.config import AnyConfig, DdppoConfig
from sampleforge.topologies.sampler_plan import Plan

C = TypeVar("C", bound=AnyConfig)


def with_plan(config: C, plan: Plan | ApexPlan) -> C:
    """Return ``config`` with the values that the plan has chosen for this machine: workers or
    ranks, envs, device, precision, inference, threads, and the limit of the policy lag."""
    chosen: dict[str, Any] = {
        "num_ranks" if isinstance(config, DdppoConfig) else "num_workers": plan.num_workers,
        "num_envs_per_worker": plan.num_splits * plan.rows,
        "num_splits": plan.num_splits,
        "inference": plan.inference,
        "num_policy_workers": max(1, plan.num_policy_workers),
        "device": plan.device,
        "precision": plan.precision,
        "learner_threads": plan.learner_threads,
    }
    if isinstance(plan, Plan):
        chosen["max_policy_lag"] = plan.lag.limit
    return dataclasses.replace(config, **chosen)
