"""The learners of one policy group: one, or several that take each gradient step together, each of
which is replaced if its process is killed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from sampleforge.algos.averaging import Averaging, Local
from sampleforge.algos.learning import Learner
from sampleforge.distributed.group import join_solo
from sampleforge.distributed.group_epoch import GroupEpoch
from sampleforge.runtime.machine import human_bytes
from sampleforge.shared.state_snapshot import StateSnapshot
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.graph import GraphBuilder, Node
from sampleforge.topologies.members import MemberChannels
from sampleforge.topologies.rendezvous import GroupRendezvous
from sampleforge.topologies.restarts import RestartInGroup
from sampleforge.topologies.sampling import GroupChannels
from sampleforge.workers.group_learner import GroupLearnerWorker, SharingLearner
from sampleforge.workers.group_member import GroupMember


class Learners(NamedTuple):
    """The learners of one policy, with the state and the resources that they share."""

    nodes: tuple[Node, ...]
    snapshot: StateSnapshot | None = None
    notes: tuple[str, ...] = ()
    resources: tuple[object, ...] = ()


class LearnerMaker(Protocol):
    """The parts of a topology's learners, by the index of a learner."""

    def new_learner(self, index: int, averaging: Averaging) -> Learner:
        """Return the learner with its initial state, or that of the checkpoint."""

    def new_worker(
        self, index: int, counter_row: int, *, make_learner: Callable[[], Any], **options: Any
    ) -> SharingLearner:
        """Return the worker around a learner; ``options``: see `GroupLearnerWorker`."""

    def take_over(self, index: int) -> None:
        """Take over from the previous process of a learner what it had of the exchange."""


def add_only_learner(graph: GraphBuilder, wakeup: Wakeup, maker: LearnerMaker) -> Learners:
    """Add the learner of a serial run, which is never replaced."""

    def make_worker(counter_row: int) -> SharingLearner:
        return maker.new_worker(0, counter_row, make_learner=lambda: maker.new_learner(0, Local()))

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
            partial(maker.new_worker, index, counter_row),
            [wakeup for at, wakeup in enumerate(wakeups) if at != index],
            partial(maker.take_over, index),
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
