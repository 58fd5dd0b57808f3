"""The config of a run with the values that its plan has chosen for the machine."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.registry import AnyPlan, pairing

C = TypeVar("C", bound=AnyConfig)


def with_plan(config: C, plan: AnyPlan) -> C:
    """Return ``config`` with the values that the plan has chosen for this machine: workers or
    ranks, envs, device, precision, inference, threads, and the limit of the policy lag."""
    workers = (
        {f"num_{pairing(config).topology.sampler}s": plan.num_workers} if plan.num_workers else {}
    )
    chosen: dict[str, Any] = {
        **workers,
        "learner_threads": plan.learner_threads,
        **plan.chosen,
    }
    return dataclasses.replace(config, **chosen)
