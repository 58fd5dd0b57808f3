"""A learner worker that continues in a new process after its process was killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sampleforge.distributed.group import RankLost
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.group_member import GroupMember
from sampleforge.workers.learner import do_nothing
from sampleforge.workers.rank import POLL_INTERVAL
from sampleforge.workers.state_load import REQUEST
from sampleforge.workers.worker import Worker


class SharingLearner(Worker, Protocol):
    """A learner worker of one topology, which takes each gradient step together with the others."""

    def abandon(self) -> None:
        """Drop the update that was begun, because another learner was lost."""

    def begin_again(self) -> None:
        """Prepare for a new group of learners, which is formed next."""

    def plain_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the learner's state, as values for JSON."""


class GroupLearnerWorker:
    """One of the learners of a policy, or the only one. They take each gradient step together: each
    learns from its own share of the batch, and gradients are averaged.

    If a learner is replaced, the surviving learners drop the batch that they are learning from. All
    learners continue from the newest state of a survivor, or, if there is none, from the state in
    shared memory. ``new_worker`` makes the topology's own worker, given ``make_learner``,
    ``may_update`` and ``after_update``. ``others``: the wake-ups of the other learners.
    ``take_over`` is called first in each life but the first.
    """

    def __init__(
        self,
        name: str,
        member: GroupMember,
        new_worker: Callable[..., SharingLearner],
        others: Sequence[Wakeup] = (),
        take_over: Callable[[], None] = do_nothing,
    ) -> None:
        self.name = name
        self._member = member
        self._new_worker = new_worker
        self._others = others
        self._take_over = take_over
        self._worker: SharingLearner | None = None

    def recover(self) -> None:
        self._take_over()

    def start(self) -> None:
        learner = self._member.start()
        worker = self._new_worker(
            make_learner=lambda: learner,
            may_update=self._may_update,
            after_update=self._member.agree,
        )
        self._worker = worker
        worker.start()
        self._member.plain_state = worker.plain_state
        self._member.take_over()

    def step(self) -> bool:
        """Gather a part of a batch, or learn from a complete batch with the other learners."""
        worker = self._worker
        assert worker is not None
        try:
            if self._member.must_regroup:  # also at the end, so that a new learner can join
                worker.begin_again()
                self._member.regroup()
            return not self._member.ended and worker.step()
        except RankLost as error:
            worker.abandon()
            self._member.wait_for_replacement(error)
            return True

    def _may_update(self) -> bool:
        """Return whether all learners have their parts of the batch. If so, wake the other
        learners."""
        ready = self._member.has_batch()
        if ready:
            for wakeup in self._others:
                wakeup.set()
        return ready

    def wait(self, timeout: float) -> None:
        assert self._worker is not None
        self._worker.wait(min(timeout, POLL_INTERVAL))

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._member.close()

    def handle(self, kind: str, payload: Any) -> Any:
        """Return the answer to a request of the driver; see `LearnerWorker.handle`. "publish" makes
        the state in shared memory the newest one, and returns None. "load": see
        `GroupMember.load`."""
        assert self._worker is not None
        if kind == REQUEST:
            return self._member.load(payload)
        if kind in ("save", "publish"):
            self._member.publish_state()  # so that the snapshot is never older than a checkpoint
        if kind == "publish":
            return None
        return self._worker.handle(kind, payload)
