"""The learners of one policy group: one, or several that take each gradient step together, each of
which is replaced if its process is killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from sampleforge.algorithms.averaging import Averaging
from sampleforge.algorithms.captured import CudaGraphs
from sampleforge.algorithms.experience import WHOLE, Share
from sampleforge.algorithms.learning import Tensors
from sampleforge.models.forward import compile_passes
from sampleforge.peers.boards import GroupEpoch
from sampleforge.peers.group import join_solo
from sampleforge.rollouts.batch_source import Batches
from sampleforge.runtime.machine import human_bytes
from sampleforge.runtime.numa import NumaNode
from sampleforge.shared.newest import SharedWeights, StateSnapshot
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.builders import NetworkMaker, gradient_bytes, make_learner, new_state
from sampleforge.topologies.config import ReplayRunConfig, SlotsRunConfig
from sampleforge.topologies.devices import GroupRendezvous, local_rendezvous, uses_cuda_graphs
from sampleforge.topologies.graph import EVERYWHERE, GraphBuilder, Node
from sampleforge.topologies.members import MemberChannels, begin_with
from sampleforge.topologies.restarts import RestartInGroup
from sampleforge.topologies.starts import PolicyStart
from sampleforge.workers.group_learner import GroupLearnerWorker
from sampleforge.workers.group_member import GroupMember, Membership
from sampleforge.workers.learner import LearnerSettings, LearnerWorker, NoLearner
from sampleforge.workers.worker import Placement, Post


class Learners(NamedTuple):
    """The learners of one policy, with the state and the resources that they share."""

    nodes: tuple[Node, ...]
    snapshot: StateSnapshot | None = None
    notes: tuple[str, ...] = ()
    resources: tuple[object, ...] = ()

    def with_notes(self, before: Sequence[str]) -> Learners:
        """Return them with notes ``before`` their own."""
        return self._replace(notes=(*before, *self.notes))


@dataclass(frozen=True)
class LearnerMaker:
    """Makes one of the learners of a policy, in its own process.

    ``plan``: the topology's. ``batches``: what it learns from, on its device. ``share``: its part
    of each batch. ``varies``: the number of env steps of a batch varies. ``fit(learner, batches)``:
    called with a new learner, unless it resumes (None: nothing is).
    """

    network: NetworkMaker
    plan: Any
    policy: PolicyStart
    batches: Batches
    share: Share = WHOLE
    varies: bool = False
    fit: Callable[[Any, Any], None] | None = None

    def __call__(self, averaging: Averaging) -> Any:
        """Return the learner with its initial state, or that of the checkpoint."""
        start, device = self.policy.start, self.batches.device
        learner = make_learner(
            self.network,
            self.plan,
            start,
            averaging,
            varies=self.varies,
            share=self.share,
            device=str(device),
        )
        _compile_or_capture(self.network.config, learner, device)
        if start.resume is None:
            if self.fit is not None:
                self.fit(learner, self.batches)
            begin_with(learner, self.policy.hyperparameters)
        return learner

    def new_state(self) -> Tensors:
        """Return the tensors of the state of a new learner."""
        return new_state(self.network, self.plan, self.policy.start)

    def gradient_bytes(self) -> int:
        """Return the bytes of the gradients of all networks that the learner trains."""
        return gradient_bytes(self.network, self.plan, self.policy.start)


def _compile_or_capture(config: Any, learner: Any, device: torch.device) -> None:
    """Compile the passes of a learner with --compile, and have it launch its work by graphs if it
    can."""
    if getattr(config, "compile", False):
        compile_passes(learner.model)
    runs = isinstance(config, SlotsRunConfig | ReplayRunConfig)
    if runs and uses_cuda_graphs(config, str(device)):
        learner.use_graphs(CudaGraphs(device))


def placement_on(node: NumaNode | None) -> Placement:
    """Return the placement of a worker on a NUMA node (None: anywhere)."""
    return EVERYWHERE if node is None else Placement(node.cores)


def add_sink(
    graph: GraphBuilder, new_sink: Callable[[Post], NoLearner], wakeup: Wakeup
) -> Learners:
    """Add what stands for the learner of a run that only collects experience."""
    post = graph.post(wakeup)
    return Learners((graph.add("learner", new_sink(post), post),))


def learner_makers(
    network: NetworkMaker, plan: Any, policy: PolicyStart, batches: Sequence[Batches]
) -> list[LearnerMaker]:
    """Return what makes the learners of a policy, one for each of ``batches``, of which each is an
    equal part of every batch."""
    return [
        LearnerMaker(network, plan, policy, own, Share(index, len(batches)))
        for index, own in enumerate(batches)
    ]


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
    nodes = _add_group(
        graph, config, placement_on(node), makers, settings, snapshot, rendezvous, member
    )
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
    restart = RestartInGroup(epoch, "learners" if rendezvous else "learner")
    nodes = []
    for index, (maker, own) in enumerate(zip(makers, settings, strict=True)):
        join = rendezvous.members[index].join if rendezvous else join_solo
        first_row = settings[0].post.row
        in_group = GroupMember(
            Membership(index, join, epoch, graph.stop, graph.counters, first_row),
            maker,
            own,
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
