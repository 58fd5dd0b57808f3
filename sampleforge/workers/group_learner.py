"""A learner worker that continues in a new process after its process was killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sampleforge.distributed.group import RankLost
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.group_member import GroupMember
from sampleforge.workers.rank import POLL_INTERVAL, NewLearnerWorker


class GroupLearnerWorker:
    """One of the learners of a policy, or the only one. They take each gradient step together: each
    learns from its own share of the slots, and gradients are averaged.

    If a learner is replaced, the surviving learners drop the batch that they are learning from. All
    learners continue from the newest state of a survivor, or, if there is none, from the state in
    shared memory.
    """

    def __init__(
        self,
        name: str,
        member: GroupMember,
        new_learner_worker: NewLearnerWorker,
        exchange: SlotExchange,
        others: Sequence[Wakeup] = (),
    ) -> None:
        """Store the arguments. ``others``: the wake-ups of the other learners."""
        self.name = name
        self._member = member
        self._new_learner_worker = new_learner_worker
        self._exchange = exchange
        self._others = others
        self._worker: Any = None

    def recover(self) -> None:
        """Give back the slots that the previous life was reading: their steps are not learned
        from."""
        self._exchange.give_back_all(self._member.index)

    def start(self) -> None:
        learner = self._member.start()
        self._worker = self._new_learner_worker(
            make_learner=lambda: learner,
            may_update=self._may_update,
            after_update=self._member.agree,
        )
        self._worker.start()
        self._member.take_over()

    def step(self) -> bool:
        """Gather a slot, or learn from a complete batch together with the other learners."""
        if self._member.ended:
            return False
        try:
            if self._member.must_regroup:
                self._member.regroup()
            return bool(self._worker.step())
        except RankLost as error:
            self._worker.abandon()
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
        self._worker.wait(min(timeout, POLL_INTERVAL))

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._member.close()

    def handle(self, kind: str, payload: Any) -> Any:
        """Return the answer to a request of the driver; see `LearnerWorker.handle`."""
        if kind == "save":
            self._member.publish_state()  # so that the snapshot is never older than a checkpoint
        return self._worker.handle(kind, payload)
