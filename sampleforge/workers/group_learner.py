"""A learner worker that continues in a new process after its process was killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sampleforge.peers.group import RankLost
from sampleforge.rollouts.batch_source import Batches
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.group_member import GroupMember
from sampleforge.workers.learner import LearnerSettings, LearnerWorker
from sampleforge.workers.learner_change import LOAD
from sampleforge.workers.rank import POLL_INTERVAL


class GroupLearnerWorker:
    """One of the learners of a policy, or the only one. They take each gradient step together: each
    learns from its own share of the batch, and gradients are averaged.

    If a learner is replaced, the surviving learners drop the batch that they are learning from. All
    learners continue from the newest state of a survivor, or, if there is none, from the state in
    shared memory. ``batches``, ``settings``: see `LearnerWorker`. ``others``: the wake-ups of the
    other learners.
    """

    def __init__(
        self,
        name: str,
        member: GroupMember,
        batches: Batches,
        settings: LearnerSettings,
        others: Sequence[Wakeup] = (),
    ) -> None:
        self.name = name
        self._member = member
        self._batches = batches
        self._settings = settings
        self._others = others
        self._worker: LearnerWorker | None = None

    def recover(self) -> None:
        self._batches.take_over()

    def start(self) -> None:
        learner = self._member.start()
        worker = LearnerWorker(
            lambda: learner,
            self._batches,
            self._settings,
            self._may_update,
            self._member.agree,
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
        if kind == LOAD:
            return self._member.load(payload)
        if kind in ("save", "publish"):
            self._member.publish_state()  # so that the snapshot is never older than a checkpoint
        if kind == "publish":
            return None
        return self._worker.handle(kind, payload)
