"""A member of a group that learns one policy: a rank, or one of several learners. It exchanges its
state with the other members, and joins one group after the other, because a new one is formed when
a member was replaced."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import safetensors.torch
import torch

from sampleforge.algorithms.averaging import Averaging, DataParallel
from sampleforge.algorithms.learning import Learner, release_when_due
from sampleforge.peers.boards import GroupEpoch
from sampleforge.peers.group import RankGroup, RankLost, SoloGroup
from sampleforge.shared.counters import Counters
from sampleforge.shared.events import Event, EventList
from sampleforge.shared.newest import SharedWeights, StateSnapshot
from sampleforge.shared.records import EpisodeList, EpisodeRecord
from sampleforge.workers.learner_change import ChangeFollower, ChangeRequest
from sampleforge.workers.worker import Post, StopFlag

POLL_INTERVAL = 0.05
"""Seconds between the checks of a waiting member on the progress of the others."""
REPLACEMENT_TIMEOUT = 5.0
"""Seconds to wait for the driver to replace a member that has died."""


class Membership:
    """The ``index``-th member of the group.

    ``join(generation)`` returns the group of that generation. ``counters``: of the run, in which
    the members have rows one by one, from ``first_row`` on. ``patience``: seconds to wait for the
    driver to replace another member. ``generation``: of the group that was joined last.
    """

    def __init__(
        self,
        index: int,
        join: Callable[[int], RankGroup],
        epoch: GroupEpoch,
        stop: StopFlag,
        counters: Counters,
        first_row: int,
        patience: float = REPLACEMENT_TIMEOUT,
    ) -> None:
        self.index = index
        self.epoch = epoch
        self._join = join
        self._stop = stop
        self._counters = counters
        self._first_row = first_row
        self._patience = patience
        self._group: RankGroup | None = None

    @property
    def group(self) -> RankGroup:
        assert self._group is not None, "join_newest comes first"
        return self._group

    @property
    def is_outdated(self) -> bool:
        """Whether the driver has replaced another member, so that a new group is formed."""
        return self.epoch.generation != self.generation

    @property
    def is_over(self) -> bool:
        """Whether the run ends, so that the other members have left regularly."""
        return self._stop.is_set()

    def join_newest(self) -> None:
        """Join the newest group, or a newer one if another member is replaced meanwhile. Raises
        RankLost if no group is formed."""
        while True:
            self.generation = self.epoch.generation
            try:
                self._group = self._join(self.generation)
                return
            except RankLost as error:
                if not self.is_renewed(error):  # if all members are new, no other one reports it
                    raise

    def change(self) -> None:
        """Leave the group, and join the newest one. Raises RankLost if it is not formed."""
        self.epoch.mark_batch(self.index, 0)
        self.leave()
        self.generation = self.epoch.generation
        self._group = self._join(self.generation)

    def is_renewed(self, error: RankLost) -> bool:
        """Return whether the driver has replaced the member by which the group was lost, waiting
        for it up to ``patience`` seconds. The driver is told of a silent member, because it sees by
        itself only those that have died."""
        if error.silent is not None and not self.is_outdated:
            self._counters.row(self._first_row + error.silent)["silent_s"][0] = error.seconds
        give_up_at = perf_counter() + self._patience
        while not self.is_outdated:
            if self._stop.is_set() or perf_counter() > give_up_at:
                return False
            sleep(0.02)
        return True

    def leave(self) -> None:
        """Leave the group, if there is one."""
        if self._group is not None:
            self._group.close()


class MetricsSync:
    """Copies the counters and episodes of all ranks to every rank, and their events to the one with
    a driver. A rank's own row of ``counters`` is always current, the other rows are those of the
    last exchange.

    ``played``: the queue of this rank's actor; ``known``: that of all ranks' episodes, if this
    process has a driver that reads it. ``events`` are those of this process, and where a driver
    takes them those of all ranks. All ranks call `exchange` together.
    """

    def __init__(
        self, counters: Counters, played: EpisodeList, known: EpisodeList | None = None
    ) -> None:
        self.events = EventList()
        self._counters = counters
        self._played = played
        self._known = known

    def exchange(self, group: RankGroup) -> None:
        played = self._played.take()  # before the events, which have their statistics
        told = b"" if self._known is not None else json.dumps(self.events.take()).encode()
        row = self._counters.row(group.rank)
        own = np.concatenate([*row.values(), [len(told), len(played)]])
        gathered = group.all_gather(torch.from_numpy(own)).numpy()
        self._counters.set_remote(gathered[:, :-2], keep=group.rank)
        sizes, episodes = gathered[:, -2:].astype(int).T.tolist()
        if max(sizes) > len("[]"):
            self._exchange_events(group, told, sizes)
        if any(episodes):
            self._exchange_episodes(group, played, episodes)

    def _exchange_events(self, group: RankGroup, told: bytes, sizes: list[int]) -> None:
        """Send every rank's events, of so many bytes, to all ranks."""
        words = -(-max(sizes) // 4)  # of four bytes, which a float64 holds exactly
        own = np.frombuffer(told.ljust(4 * words), "<u4").astype(np.float64)
        gathered = group.all_gather(torch.from_numpy(own)).numpy().astype("<u4")
        for text, size in zip(gathered, sizes, strict=True) if self._known is not None else ():
            if size:
                events = json.loads(text.tobytes()[:size])
                self.events.extend(Event(source, kind, tuple(x)) for source, kind, x in events)

    def _exchange_episodes(
        self, group: RankGroup, played: list[EpisodeRecord], counts: list[int]
    ) -> None:
        """Send every rank's episodes to all ranks, in messages of equal size, which collectives
        require."""
        own = torch.zeros(max(counts), len(EpisodeRecord._fields) + 1, dtype=torch.float64)
        for at, record in enumerate(played):
            halves = divmod(record.stats, _HALF)
            own[at] = torch.tensor([*record._replace(stats=0), *halves][1:], dtype=torch.float64)
        gathered = group.all_gather(own.flatten()).view(group.size, *own.shape)
        if self._known is None:
            return
        for rank, count in enumerate(counts):
            for split, row, ret, length, policy, *_, high, low in gathered[rank, :count].tolist():
                numbers = int(length), int(policy)
                stats = int(high) * _HALF + int(low)
                record = EpisodeRecord(rank, int(split), int(row), ret, *numbers, stats=stats)
                self._known.extend([record])


class RanksDiverged(RuntimeError):
    """The ranks do not hold the same weights, optimiser state and statistics."""


def share_state(learner: Learner, group: RankGroup, source: int = 0) -> None:
    """Copy the whole learner state of rank ``source`` to every rank, and check that all have it.
    All ranks call this together."""
    if group.rank == source:
        tensors, plain = learner.state()
        group.broadcast(safetensors.torch.save(tensors), source)
        group.broadcast(json.dumps(plain).encode(), source)
    else:
        tensors = safetensors.torch.load(group.broadcast(None, source))
        learner.load(tensors, json.loads(group.broadcast(None, source)))
    check_same_state(learner, group)


def check_same_state(learner: Learner, group: RankGroup) -> None:
    """Compare the state of all ranks by checksum. Raises RanksDiverged, on every rank."""
    sums = group.all_gather(torch.tensor([checksum(learner)], dtype=torch.float64))[:, 0].tolist()
    if len(set(sums)) > 1:
        shown = ", ".join(f"rank {rank}: {int(value):012x}" for rank, value in enumerate(sums))
        raise RanksDiverged(
            f"after update {learner.version} the ranks do not hold the same weights and statistics "
            f"(checksums {shown}); unless the model keeps statistics of its own, as BatchNorm "
            "does, this is a bug of SampleForge or a fault of this machine"
        )


def checksum(learner: Learner) -> int:
    """Return a checksum of all tensors and plain values of the state, of 48 bits, which float64
    holds exactly."""
    tensors, plain = learner.state()
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return int.from_bytes(digest.digest()[:6], "big")


_HALF = 1 << 31
"""The number of an episode's statistics is sent as two numbers below this, which a float64 holds
exactly."""
SNAPSHOT_SHARE = 0.0025
"""Largest fraction of the first member's processor time that publishing its state may take. It is
not a fraction of the seconds that pass, because on busy cores an update waits longer than the short
publication."""


class StateLost(RuntimeError):
    """After a restart the group holds an older state than the snapshot that was stored for it."""


class GroupMember:
    """Makes the learner of a member, exchanges its state with the other members, and agrees with
    them after each update whether to end; again in the new group when another one was replaced.

    ``post``, ``weights``: those of the member's `LearnerWorker`. ``snapshot`` holds a recent state
    of member 0: if no member survives, the new members resume from it. ``metrics_sync`` is needed
    if the members share no memory. ``iteration`` counts the updates of the group from 1; ``ended``:
    whether all members have agreed that the run is done, which they do after the same update.
    ``plain_state()``: what the snapshot holds beside the learner's state. ``changes`` are applied
    to the learner between two updates, by all members after the same one (None: there are no others
    than the driver's requests). ``debug``: states are compared after each update.
    """

    def __init__(
        self,
        membership: Membership,
        new_learner: Callable[[Averaging], Learner],
        post: Post,
        weights: SharedWeights | None,
        *,
        debug: bool,
        snapshot: StateSnapshot | None = None,
        metrics_sync: MetricsSync | None = None,
        changes: ChangeFollower | None = None,
    ) -> None:
        self.index = membership.index
        self.iteration = 1
        self.ended = False
        self.plain_state: Callable[[], dict[str, Any]] = dict
        self._membership = membership
        self._epoch = membership.epoch
        self._new_learner = new_learner
        self._counter_row = post.row
        self._progress = post.progress
        self._weights = weights
        self._debug = debug
        self._snapshot = snapshot
        self._metrics_sync = metrics_sync
        self._changes = changes or ChangeFollower()
        self._published_at = self._publishing_took = 0.0  # seconds of processor time

    @property
    def events(self) -> EventList:
        """The events of this process, where the ranks share no memory; see `MetricsSync`."""
        assert self._metrics_sync is not None, "processes that share memory have queues"
        return self._metrics_sync.events

    def start(self) -> Learner:
        """Join the group and return the learner, which averages its gradients over the group."""
        self._count = self._progress.counters.row(self._counter_row)
        self._count["heartbeat"][0] = math.inf  # it may wait for other members without a limit
        self._epoch.mark_batch(self.index, 0)
        self._membership.join_newest()
        group = self._membership.group
        solo = isinstance(group, SoloGroup)
        self._averaging = Averaging() if solo else DataParallel(group)
        self._learner = self._new_learner(self._averaging)
        if self._snapshot is not None and self._snapshot.version > self._learner.version:
            self._learner.load(*self._snapshot.read())
        return self._learner

    def take_over(self) -> None:
        """Exchange the newest state with the other members before the first update; again if
        another member is replaced meanwhile."""
        while not self.ended:
            try:
                return self._exchange_state()
            except RankLost as error:
                if not self._stop_or_new_group(error):
                    raise
                if not self.ended:
                    self._membership.join_newest()
                    self._average_over_group()

    @property
    def must_regroup(self) -> bool:
        """Whether the driver has replaced another member."""
        return self._membership.is_outdated

    def regroup(self) -> None:
        """Join the new group, in which the member with the most gradient steps gives its state to
        all members."""
        self._count["heartbeat"][0] = math.inf
        self._membership.change()
        self._average_over_group()
        self._exchange_state()

    def wait_for_replacement(self, error: RankLost, hint: Callable[[], str] = str) -> None:
        """Wait, after a member was lost, until the driver has replaced it, or the run has ended.
        Raises RankLost, with the ``hint`` at its end, if neither happens."""
        if not self._stop_or_new_group(error):
            raise RankLost(f"{error}{hint()}") from error

    def has_batch(self) -> bool:
        """Record that this member has its part of the next batch. Return whether all members have
        theirs. No member begins an update before, so that each member answers the driver while
        another one still waits for experience."""
        return self._epoch.mark_batch(self.index, self.iteration)

    def agree(self) -> None:
        """Complete an update together with the other members: exchange metrics, decide whether to
        end, and, with --debug, compare states."""
        group = self._membership.group
        self._epoch.set_agreed_version(self.index, self._learner.version)
        if self._publishing_is_due():
            self.publish_state()
        self.iteration += 1
        if self._metrics_sync is not None:
            self._metrics_sync.exchange(group)
        changes, learner = self._changes, self._learner
        steps = self._progress.env_steps
        own = [self._progress.done, changes.count(learner), steps, *changes.due(learner)]
        done, counts, of_run, *dues = group.all_gather(torch.tensor(own, dtype=torch.float64)).T
        self._end(bool(done.any()))
        release_when_due(learner, float(of_run.max()))
        if changes.is_member:
            learner.env_steps = int(counts[0])
        self._apply_changes(changes.agreed(dues))
        if self._debug:
            if group.size > 1:
                check_same_state(self._learner, group)
            self._count["checksums_compared"] += self.index == 0  # one member counts for all

    def _apply_changes(self, numbers: Sequence[int]) -> None:
        """Apply the changes up to the ``numbers``, which all members have seen, and publish what
        was changed. The state in shared memory comes first: with it the change is made, wherever a
        member is killed from then on."""
        if self._changes.apply(self._learner, numbers):
            if self.index == 0:
                self.publish_state()
            self._epoch.set_agreed_version(self.index, self._learner.version)
            if self._weights is not None:
                self._weights.publish(self._learner.model.state_dict(), self._learner.version)
        self._changes.confirm(self._learner)

    def change(self, request: ChangeRequest) -> bool:
        """Change the learner as the driver asks: at once if it is alone, else after the update by
        whose end all members were asked for it. Return whether it has done so."""
        if not self._changes.has_applied(self._learner, request):
            self._changes.ask(request)
            if self._membership.group.size == 1:
                self._apply_changes(self._changes.due(self._learner))
        return self._changes.has_applied(self._learner, request)

    def take_waited(self) -> float:
        """Return the seconds that this member has waited for other members since the last call; NaN
        where it does not know them, see `RankGroup`."""
        group = self._membership.group
        waited = group.waited
        if not math.isnan(waited):
            group.waited = 0.0
        return waited

    def publish_state(self) -> None:
        """Copy the learner's state into the snapshot, from which new members resume if no member
        survives."""
        if self._snapshot is None:
            return
        started, cpu_started = perf_counter(), process_time()
        tensors, plain = self._learner.state()
        self._snapshot.publish(tensors, {**plain, **self.plain_state()})
        self._published_at = process_time()
        self._publishing_took = self._published_at - cpu_started
        self._count["publish_s"] += perf_counter() - started

    def close(self) -> None:
        """Leave the group."""
        self._membership.leave()

    def _end(self, ended: bool) -> None:
        self.ended = ended
        self._count["ended"][0] = ended

    def _average_over_group(self) -> None:
        """Average gradients over the group that was joined."""
        assert isinstance(self._averaging, DataParallel), "a group of one is never formed again"
        self._averaging.group = self._membership.group

    def _stop_or_new_group(self, error: RankLost) -> bool:
        """Return, after a member was lost, whether a new group is formed, or the run has ended."""
        if self._membership.is_renewed(error):
            return True
        if self._membership.is_over:
            self._end(True)
        return self.ended

    def _exchange_state(self) -> None:
        """Give all members the state of the member with the most gradient steps. All members have
        agreed on each of these steps, because a step comes after a complete all-reduce of
        gradients. Raises StateLost if no member is as far as the snapshot.

        If later steps are lost with the members that had taken them, their versions are skipped:
        the version never goes back, so that behaviour is never newer than the policy."""
        group = self._membership.group
        own = (self._learner.version, self.iteration, self._progress.done)
        versions, iterations, done = group.all_gather(torch.tensor(own)).T.tolist()
        self._end(any(done))  # at once in a resumed run that has already reached its limit
        newest, agreed = int(max(versions)), self._epoch.agreed_version
        self._check_against_snapshot(newest)
        share_state(self._learner, group, source=versions.index(max(versions)))
        self._learner.version = max(self._learner.version, agreed)
        self.iteration = int(max(iterations))
        # After all members have read the version that was agreed on before:
        self._epoch.set_agreed_version(self.index, self._learner.version)
        if self._weights is not None:
            self._weights.publish(self._learner.model.state_dict(), self._learner.version)
        if self.index == 0:
            self.publish_state()
            if self._membership.generation:
                self._epoch.report_resumed(newest, max(0, agreed - newest))
        self._changes.confirm(self._learner)

    def _check_against_snapshot(self, newest: int) -> None:
        stored = -1 if self._snapshot is None else self._snapshot.version
        if newest < stored:
            raise StateLost(
                f"after a restart, the group holds the weights of update {newest}, but those of "
                f"update {stored} were stored for it; start the same command again: it resumes "
                "from the newest checkpoint"
            )

    def _publishing_is_due(self) -> bool:
        """Return whether enough processor time has passed for publishing to stay within
        `SNAPSHOT_SHARE`."""
        passed = process_time() - self._published_at
        return self.index == 0 and passed * SNAPSHOT_SHARE >= self._publishing_took
