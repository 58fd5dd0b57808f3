"""The cores on which the workers of a run are placed."""

from __future__ import annotations

from sampleforge.runtime.numa import NumaNode
from sampleforge.runtime.processes import available_cores
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.workers.worker import Placement

SPIN = 0.002
"""Seconds for which a policy worker with a core to itself waits for requests in a loop before it
sleeps: several times as long as it takes to answer some."""


def actor_placement(plan: SamplerPlan, index: int, niceness: int) -> Placement:
    """Return the placement of the ``index``-th actor. Pinned actors have the last cores: the first
    ones are left to the learners, which are on the first NUMA node."""
    if not plan.actor_cores:
        return placement_beside(plan, None, niceness)
    cores, _ = _divided(plan)
    end = len(cores) - index * plan.actor_cores
    return Placement(cores[end - plan.actor_cores : end], niceness)


def policy_placement(plan: SamplerPlan, index: int, node: NumaNode | None) -> Placement:
    """Return the placement of the ``index``-th policy worker of the run; ``node``: of its group."""
    _, apart = _divided(plan)
    return Placement((apart[index],)) if apart else placement_beside(plan, node)


def policy_spin(plan: SamplerPlan) -> float:
    """Return the seconds for which a policy worker waits in a loop."""
    return SPIN if plan.policy_cores else 0.0


def placement_beside(
    plan: SamplerPlan, node: NumaNode | None = None, niceness: int = 0
) -> Placement:
    """Return the placement of a worker that is neither a pinned actor nor a policy worker with a
    core to itself: on its NUMA ``node`` (None: on all nodes), but on no core of such policy
    workers."""
    shared, apart = _divided(plan)
    if node is None:
        return Placement(shared if apart else None, niceness)
    return Placement(tuple(core for core in node.cores if core not in apart) or shared, niceness)


def _divided(plan: SamplerPlan) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the cores of this process: those for all workers, and one for each policy worker."""
    cores = tuple(available_cores())
    return cores[: len(cores) - plan.policy_cores], cores[len(cores) - plan.policy_cores :]
