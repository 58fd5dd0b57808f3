"""The learners of one policy group: one, or several that take each gradient step together, each of
which is replaced if its process is killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from sampleforge.algorithms.averaging import Averaging, Local
from sampleforge.algorithms.experience import Share
from sampleforge.models.compiled import compile_passes
from sampleforge.peers.group import join_solo
from sampleforge.peers.group_epoch import GroupEpoch
from sampleforge.rollouts.batch_source import Batches
from sampleforge.runtime.machine import human_bytes
from sampleforge.shared.state_snapshot import StateSnapshot
from sampleforge.topologies.builders import NetworkMaker, PolicyStart, make_learner
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.cuda_graphs import graphs_of
from sampleforge.topologies.graph import GraphBuilder, Node
from sampleforge.topologies.members import MemberChannels, begin_with
from sampleforge.topologies.rendezvous import GroupRendezvous
from sampleforge.topologies.restarts import RestartInGroup
from sampleforge.topologies.sampling import GroupChannels
from sampleforge.workers.group_learner import GroupLearnerWorker
from sampleforge.workers.group_member import GroupMember
from sampleforge.workers.learner import LearnerSettings, LearnerWorker


class Learners(NamedTuple):
    """The learners of one policy, with the state and the resources that they share."""

    nodes: tuple[Node, ...]
    snapshot: StateSnapshot | None = None
    notes: tuple[str, ...] = ()
    resources: tuple[object, ...] = ()


def leave(learner: Any, device: torch.device) -> None:
    """Leave a new learner as it is."""


@dataclass(frozen=True)
class LearnerMaker:
    """What makes the learners of one policy, each in its own process, and what their workers are
    told.

    ``plan``: the topology's. ``batches``: what each learner learns from, on its device.
    ``publish_interval``: see `LearnerSettings`. ``prepare(learner, device)``: called with each
    learner that was made.
    """

    plan: Any
    new_network: NetworkMaker
    policy: PolicyStart
    batches: Sequence[Batches]
    publish_interval: int = 0
    prepare: Callable[[Any, torch.device], None] = leave

    def new_learner(self, index: int, averaging: Averaging) -> Any:
        """Return the learner with its initial state, or that of the checkpoint."""
        device = self.batches[index].device
        learner = make_learner(
            self.new_network,
            self.plan,
            self.policy.start,
            averaging,
            share=Share(index, len(self.batches)),
            device=str(device),
        )
        self.prepare(learner, device)
        begin_with(learner, self.policy)
        return learner

    def settings(
        self, index: int, counter_row: int, graph: GraphBuilder, channels: GroupChannels
    ) -> LearnerSettings:
        """Return what the worker of a learner is told."""
        return LearnerSettings(
            counter_row,
            channels.learner_wakeups[index],
            graph.progress,
            self.policy.save,
            channels.weights if index == 0 else None,
            self.plan.learner_threads,
            self.publish_interval,
            counts_updates=index == 0,
            callbacks=graph.hooks.of_worker(index, [self.policy.id]),
        )


def compile_or_capture(config: Any, learner: Any, device: torch.device) -> None:
    """Compile the passes of a learner with --compile, and have it launch its work by graphs with
    --cuda-graphs."""
    if getattr(config, "compile", False):
        compile_passes(learner.model, device)
    graphs = graphs_of(config, str(device))
    if graphs is not None:
        learner.use_graphs(graphs)


def add_only_learner(graph: GraphBuilder, channels: GroupChannels, maker: LearnerMaker) -> Learners:
    """Add the learner of a serial run, which is never replaced."""

    def make_worker(counter_row: int) -> LearnerWorker:
        settings = maker.settings(0, counter_row, graph, channels)
        return LearnerWorker(lambda: maker.new_learner(0, Local()), maker.batches[0], settings)

    wakeup = channels.learner_wakeups[0]
    return Learners((graph.add("learner", make_worker, wakeup, in_checkpoint=True),))


def add_learners(
    graph: GraphBuilder,
    config: AnyConfig,
    channels: GroupChannels,
    maker: LearnerMaker,
    snapshot: StateSnapshot,
    rendezvous: GroupRendezvous | None,
    in_population: MemberChannels | None = None,
) -> Learners:
    """Add a worker for each of the ``channels.learner_wakeups``. ``snapshot``: room for the
    learner's state; ``rendezvous``: of several learners; ``in_population``: the channels of a
    member of a population, or of a policy with a schedule."""
    wakeups = channels.learner_wakeups
    count = len(wakeups)
    epoch = GroupEpoch(config.max_worker_restarts, count)
    restart = RestartInGroup(epoch, "learners" if count > 1 else "learner")

    def make_worker(index: int, counter_row: int) -> GroupLearnerWorker:
        member = GroupMember(
            index,
            counter_row,
            rendezvous.members[index].join if rendezvous else join_solo,
            partial(maker.new_learner, index),
            channels.weights if index == 0 else None,
            graph.progress,
            graph.stop,
            epoch,
            debug=config.debug,
            snapshot=snapshot,
            changes=None if in_population is None else in_population.follower(index),
        )
        return GroupLearnerWorker(
            f"learner {index}" if count > 1 else "learner",
            member,
            maker.batches[index],
            maker.settings(index, counter_row, graph, channels),
            [wakeup for at, wakeup in enumerate(wakeups) if at != index],
        )

    nodes = tuple(
        graph.add(
            *("learner", partial(make_worker, index), wakeup, channels.placement),
            restart=restart,
            in_checkpoint=config.serial,
        )
        for index, wakeup in enumerate(wakeups)
    )
    note = f"learner state {human_bytes(snapshot.nbytes)} of shared memory, for restarts"
    notes = (note, *channels.notes, *(() if in_population is None else in_population.notes))
    if rendezvous is None:
        return Learners(nodes, snapshot, notes)
    return Learners(nodes, snapshot, (rendezvous.note, *notes), rendezvous.resources)
