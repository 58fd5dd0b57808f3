"""The learners of one policy group: one, or several that take each gradient step together, each of
which is replaced if its process is killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sampleforge.algorithms.averaging import Averaging
from sampleforge.peers.boards import GroupEpoch
from sampleforge.peers.group import SoloRendezvous
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.runtime.machine import human_bytes
from sampleforge.runtime.numa import NumaNode
from sampleforge.shared.newest import SharedWeights, StateSnapshot
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.devices import GroupRendezvous, local_rendezvous
from sampleforge.topologies.graph import GraphBuilder, Node
from sampleforge.topologies.learner_maker import LearnerMaker
from sampleforge.topologies.members import MemberChannels
from sampleforge.topologies.placement import placement_beside
from sampleforge.topologies.restarts import RestartInGroup
from sampleforge.workers.group_member import GroupMember, Membership
from sampleforge.workers.learner import (
    ExperienceSink,
    GroupLearnerWorker,
    LearnerSettings,
    LearnerWorker,
)
from sampleforge.workers.worker import Placement


class Learners(NamedTuple):
    """The learners of one policy, with the state and the resources that they share."""

    nodes: tuple[Node, ...]
    snapshot: StateSnapshot | None = None
    notes: tuple[str, ...] = ()
    resources: tuple[object, ...] = ()

    def with_notes(self, before: Sequence[str]) -> Learners:
        """Return them with notes ``before`` their own."""
        return self._replace(notes=(*before, *self.notes))


def add_sink(graph: GraphBuilder, wakeup: Wakeup, exchange: SlotExchange | None = None) -> Learners:
    """Add what stands for the learner of a run that only collects experience, see
    `ExperienceSink`."""
    post = graph.post(wakeup)
    return Learners((graph.add("learner", ExperienceSink(post, exchange), post),))


def add_learners(
    graph: GraphBuilder,
    config: Any,
    makers: Sequence[LearnerMaker],
    weights: SharedWeights,
    wakeups: Sequence[Wakeup],
    member: MemberChannels | None = None,
    node: NumaNode | None = None,
    *,
    publish_interval: int = 0,
    extra_bytes: int = 0,
) -> Learners:
    """Add the learners that ``makers`` make, with these ``wakeups``; the first one publishes the
    ``weights``. In a serial run the only one is never replaced, unless it is changed by others.

    ``member``: the channels of a member of a population, or of a policy with a schedule. ``node``:
    where they run (None: anywhere). ``publish_interval``: see `LearnerSettings`. ``extra_bytes``:
    see `local_rendezvous`."""
    first = makers[0]
    settings = [
        LearnerSettings(
            graph.post(wakeup),
            first.policy.save,
            weights if index == 0 else None,
            first.plan.learner_threads,
            publish_interval,
            counts_updates=index == 0,
            callbacks=graph.hooks.of_worker(index, [first.policy.id]),
        )
        for index, wakeup in enumerate(wakeups)
    ]
    if config.serial and member is None:
        only = settings[0]
        worker = LearnerWorker(lambda: first(Averaging()), first.batches, only)
        return Learners((graph.add("learner", worker, only.post, in_checkpoint=True),))
    rendezvous = None
    if len(makers) > 1:
        devices = [str(maker.batches.device) for maker in makers]
        rendezvous = local_rendezvous(
            devices, config.learner_timeout, first.gradient_bytes(), "learner", extra_bytes
        )
    snapshot = StateSnapshot(first.new_state())
    placement = placement_beside(first.plan, node)
    nodes = _add_group(graph, config, placement, makers, settings, snapshot, rendezvous, member)
    note = f"learner state {human_bytes(snapshot.nbytes)} of shared memory, for restarts"
    place = (
        ()
        if node is None
        else (f"learner and slots on NUMA node {node.number} ({len(node.cores)} cores)",)
    )
    notes = (note, *place, *(() if member is None else member.notes))
    if rendezvous is None:
        return Learners(nodes, snapshot, notes)
    return Learners(nodes, snapshot, (rendezvous.note, *notes), rendezvous.resources)


def _add_group(
    graph: GraphBuilder,
    config: Any,
    placement: Placement,
    makers: Sequence[LearnerMaker],
    settings: Sequence[LearnerSettings],
    snapshot: StateSnapshot,
    rendezvous: GroupRendezvous | None,
    member: MemberChannels | None,
) -> tuple[Node, ...]:
    """Add learners that are replaced if they are killed. ``snapshot``: room for their state;
    ``rendezvous``: of several learners."""
    epoch = GroupEpoch(config.max_worker_restarts, len(makers))
    joins = rendezvous.members if rendezvous else [SoloRendezvous(str(makers[0].batches.device))]
    restart = RestartInGroup(
        epoch,
        "learners" if rendezvous else "learner",
        not_replaced=rendezvous.not_replaced if rendezvous else "",
    )
    nodes = []
    for index, (maker, own) in enumerate(zip(makers, settings, strict=True)):
        first_row = settings[0].post.row
        in_group = GroupMember(
            Membership(index, joins[index].join, epoch, graph.stop, graph.counters, first_row),
            maker,
            own.post,
            own.weights,
            debug=config.debug,
            snapshot=snapshot,
            changes=None if member is None else member.follower(index),
        )
        name = f"learner {index}" if rendezvous else "learner"
        others = [each.post.wakeup for each in settings if each is not own]
        worker = GroupLearnerWorker(name, in_group, maker.batches, own, others)
        node = graph.add(
            "learner",
            worker,
            own.post,
            placement,
            restart,
            in_checkpoint=config.serial,
        )
        nodes.append(node)
    return tuple(nodes)
