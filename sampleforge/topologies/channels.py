"""The channels between the actors and the policy groups of a graph."""

from __future__ import annotations

from dataclasses import dataclass

from sampleforge.data.rollout_queue import RolloutQueue
from sampleforge.rollouts.requests import InferenceRequests
from sampleforge.rollouts.slots import SlotShape
from sampleforge.runtime.numa import NumaNode, node_for_group
from sampleforge.shared.counters import RestartBudget
from sampleforge.shared.newest import SharedWeights
from sampleforge.shared.records import EpisodeQueue
from sampleforge.shared.wakeup import Wakeup, wakeups
from sampleforge.topologies.config import ReplayRunConfig, SamplingConfig, SlotsRunConfig
from sampleforge.topologies.graph import EVERYWHERE
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.workers.worker import Placement


@dataclass(frozen=True)
class ActorChannels:
    """The channels of the actors, which all policy groups share. ``recorded``: the queue to the
    recorder (None: nothing is recorded)."""

    episodes: EpisodeQueue
    wakeups: list[Wakeup]
    restart_budget: RestartBudget
    recorded: RolloutQueue | None = None


@dataclass(frozen=True)
class GroupChannels:
    """The channels of one policy group: between its workers, and to the actors."""

    weights: SharedWeights
    requests: InferenceRequests | None  # with policy workers only
    actor_wakeups: list[Wakeup]
    policy_wakeups: list[Wakeup]
    learner_wakeups: list[Wakeup]
    policy_restarts: RestartBudget
    actor_restarts: RestartBudget
    node: NumaNode | None = None
    """Where the group's workers other than the actors run, with the memory of its slots near to
    them (None: anywhere)."""

    @property
    def inference_restarts(self) -> RestartBudget:
        """The restarts of the workers that compute actions: the actors, or the policy workers."""
        return self.actor_restarts if self.requests is None else self.policy_restarts

    @property
    def placement(self) -> Placement:
        """The cores of the group's workers other than the actors."""
        return EVERYWHERE if self.node is None else Placement(self.node.cores)

    @property
    def notes(self) -> tuple[str, ...]:
        """A note about the place of the group's workers, if they have one."""
        if self.node is None:
            return ()
        return (
            f"learner and slots on NUMA node {self.node.number} ({len(self.node.cores)} cores)",
        )


def actor_channels(config: SamplingConfig, plan: SamplerPlan) -> ActorChannels:
    """Make the channels that all policy groups of a graph share."""
    return ActorChannels(
        episodes=EpisodeQueue(plan.num_actors),
        wakeups=wakeups(plan.num_actors),
        restart_budget=RestartBudget(plan.num_actors, config.max_worker_restarts),
    )


def group_channels(
    config: SamplingConfig,
    plan: SamplerPlan,
    shape: SlotShape,
    weights: SharedWeights,
    actors: ActorChannels,
    learners: int,
    node: NumaNode | None = None,
) -> GroupChannels:
    """Make the channels of one policy group. ``shape``: of its slots; ``learners``: their number;
    ``node``: see `GroupChannels`."""
    policy_wakeups = wakeups(plan.num_policy_workers)
    requests = None
    if policy_wakeups:
        requests = InferenceRequests(shape, plan.num_streams, actors.wakeups, policy_wakeups)
    return GroupChannels(
        weights,
        requests,
        actors.wakeups,
        policy_wakeups,
        wakeups(learners),
        RestartBudget(plan.num_policy_workers, config.max_worker_restarts),
        actors.restart_budget,
        node,
    )


def group_node(
    index: int, config: SlotsRunConfig | ReplayRunConfig, plan: SamplerPlan, threads: int
) -> NumaNode | None:
    """Return the NUMA node for the workers of the ``index``-th policy group other than the actors,
    which have so many ``threads``; None for anywhere. Learners on GPUs may be anywhere: which node
    is near to a GPU is not known."""
    on_cpu = plan.device == "cpu" and all(name == "cpu" for name in config.learner_devices)
    if not on_cpu or config.serial or not config.set_workers_cpu_affinity:
        return None
    return node_for_group(index, threads)
