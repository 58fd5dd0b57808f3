"""The actor worker: steps environments and fills trajectory slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import monotonic, perf_counter

import numpy as np

from sampleforge.env.not_finite import NotFiniteError
from sampleforge.env.starting import told_of_rows
from sampleforge.env.vector import EnvVector, Episode, StepOut
from sampleforge.runtime.threads import limit_threads
from sampleforge.shared.counters import Progress
from sampleforge.shared.records import Episodes
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.policy_mapping import PolicyMapping, StreamId, only_policy
from sampleforge.workers.policy_outputs import MAX_IN_A_ROW
from sampleforge.workers.stream import PolicyPort, Stream, lease
from sampleforge.workers.worker import MODEL_TIMEOUT, EventDriven


class Split:
    """One part of an actor's env vector, whose environments step together.

    It has a stream per seat. A single-agent environment has one seat; for several, ``_act`` and
    ``_collect`` are where the seats' actions and steps would be joined. ``stepping``: whether its
    environments are taking a step. ``dropped_steps`` and ``rebuilt``: the numbers of dropped env
    steps and of rebuilt environments that the counters already include.
    """

    def __init__(self, actor: int, index: int, env: EnvVector, rollouts: int) -> None:
        self.index = index
        self.env = env
        self.stream = Stream(StreamId(actor, index, seat=0), index, env, rollouts)
        self.streams = (self.stream,)
        self.stepping = False
        self.rebuilt = 0
        self.dropped_steps = 0


def never(t: int) -> bool:
    """Return False: rollouts do not end before their slot is full."""
    return False


class ActorWorker(EventDriven):
    """Advances each of its splits as soon as the split's actions, or the results of its environment
    step, are there.

    If the simulator steps in the calling thread, the other splits' inference runs meanwhile in a
    policy worker; if it steps in threads of its own (``spec.asynchronous``), the other splits'
    inference runs meanwhile in this process.

    ``ports``: one per policy group, in the groups' order. ``mapping`` picks the group of each
    stream where a rollout begins. If the picked group has no free slot, the stream waits. So the
    amount of experience of a group does not depend on the speed of the other groups' learners.
    """

    def __init__(
        self,
        index: int,
        make_envs: Sequence[Callable[[], EnvVector]],
        ports: Sequence[PolicyPort],
        episodes: Episodes,
        wakeup: Wakeup,
        progress: Progress,
        counter_row: int,
        mapping: PolicyMapping = only_policy,
        ends_early: Callable[[int], bool] = never,
    ) -> None:
        self.name = f"actor {index}"
        self._index = index
        self._make_envs = make_envs
        self._ports = ports
        self._episodes = episodes
        self._wakeup = wakeup
        self._progress = progress
        self._counter_row = counter_row
        self._mapping = mapping
        self._ends_early = ends_early
        self._splits: list[Split] = []

    def recover(self) -> None:
        """Take over the slots of the previous life, in the exchange of every policy group: hand
        over the complete ones, and write the incomplete ones again."""
        for port in self._ports:
            port.exchange.take_over(self._index)

    def start(self) -> None:
        self._count = self._progress.counters.row(self._counter_row)
        self._count["heartbeat"][0] = monotonic()
        self._count["started_rows"][0] = 0
        # Not 0 in a later life, which continues the policy mapping of the previous one.
        rollouts = int(self._count["rollouts"][0]) // len(self._make_envs)
        for index, make in enumerate(self._make_envs):
            with told_of_rows(self._row_started):
                env = make()
            self._splits.append(Split(self._index, index, env, rollouts))
        limit_threads(1)  # also of libraries that the environments have loaded
        self._count["heartbeat"][0] = monotonic() + MODEL_TIMEOUT
        for port in self._ports:
            port.inference.start()
        self._count["heartbeat"][0] = monotonic()
        for split in self._splits:
            try:
                split.env.reset(split.stream.carry)
            except NotFiniteError as error:
                raise self._named(split, error) from None
        self._count["started_rows"][0] = sum(split.env.num_rows for split in self._splits)

    def _row_started(self) -> None:
        self._count["started_rows"] += 0.5  # constructed, and then reset
        self._count["heartbeat"][0] = monotonic()

    def _beat(self) -> None:
        self._count["heartbeat"][0] = self.alive_at()

    def step(self) -> bool:
        """Advance every split as far as is possible without waiting."""
        started = perf_counter()
        self._beat()
        self._ending = self._is_ending()
        moved = any([self._advance(split) for split in self._splits])
        self._count["step_s"] += perf_counter() - started
        return moved

    def close(self) -> None:
        """Close all environments, even where the ``close`` of one of them raises."""
        with ExitStack() as stack:
            for split in reversed(self._splits):
                stack.callback(split.env.close)

    @property
    def idle(self) -> bool:
        """Whether no rollout is in progress: the learner has the batch."""
        return all(split.stream.slot is None for split in self._splits)

    def alive_at(self) -> float:
        """Return the time (of ``monotonic``) at which this actor was last known to be alive: now,
        for an actor that waits for its environments."""
        return monotonic()

    def _is_ending(self) -> bool:
        """Return whether all rollouts end now, with any step in progress. This is decided before
        each round of steps, so that all rollouts have the same number of steps."""
        steps = [split.stream.t for split in self._splits if split.stream.slot is not None]
        return bool(steps) and self._ends_early(min(steps))

    def _advance(self, split: Split) -> bool:
        stream, moved = split.stream, False
        if split.stepping and split.env.spec.asynchronous:
            moved = self._collect(split)
        if stream.valuing and stream.is_answered():
            moved = self._next(split)
        if stream.slot is None:
            moved = self._begin(split)
        waits = stream.slot is not None and not (split.stepping or stream.valuing)
        if waits and stream.is_answered():
            if self._ending and stream.t:
                stream.end_early()
                return self._next_rollout(split)
            moved = self._act(split)
            if not split.env.spec.asynchronous:
                self._collect(split)
        return moved

    def _begin(self, split: Split) -> bool:
        """Begin a rollout of each stream, if the run goes on and the policy group that is picked
        for each stream has a free slot: all streams begin, or none."""
        if self._progress.done or not self._is_next(split):
            return False
        streams = split.streams
        ports = [self._ports[self._mapping(each.id, each.rollouts)] for each in streams]
        slots = lease(ports, self._index)
        if slots is None:
            return False
        for stream, port, slot in zip(streams, ports, slots, strict=True):
            stream.begin(port, slot)
            self._ask(stream)
        return True

    def _is_next(self, split: Split) -> bool:
        """Return whether no other split without a slot has begun fewer rollouts. Otherwise the
        first split would take all slots when they come one at a time."""
        begun = split.stream.rollouts
        streams = (other.stream for other in self._splits)
        return all(other.slot is not None or other.rollouts >= begun for other in streams)

    def _ask(self, stream: Stream) -> None:
        started = perf_counter()
        stream.ask()
        self._count["infer_s"] += perf_counter() - started

    def _act(self, split: Split) -> bool:
        """Send the actions at (slot, t) to the environments."""
        started = perf_counter()
        split.env.send(split.stream.actions())
        split.stepping = True
        self._count["env_s"] += perf_counter() - started
        return True

    def _collect(self, split: Split) -> bool:
        """Receive the environments' step directly into the slot."""
        started = perf_counter()
        stream = split.stream
        out = stream.step_out()
        ended = self._recv(split, out)
        split.stepping = False
        self._count["env_s"] += perf_counter() - started
        stream.keep(out)
        self._account(split, out, len(ended))
        if ended:
            self._episodes.put(self._index, split.index, ended, stream.policy, self._beat)
        stream.ask_final(out)
        return True if stream.valuing else self._next(split)

    def _recv(self, split: Split, out: StepOut) -> list[Episode]:
        try:
            return split.env.recv(out)
        except NotFiniteError as error:
            raise self._named(split, error) from None

    def _named(self, split: Split, error: NotFiniteError) -> NotFiniteError:
        """Return the same error with the name of this actor and the split."""
        return NotFiniteError(f"{self.name}, split {split.index}, {error}")

    def _account(self, split: Split, out: StepOut, episodes: int) -> None:
        steps = np.count_nonzero(out.valid)
        self._count["env_steps"] += steps
        self._count["env_frames"] += steps * split.env.spec.frame_skip
        self._count["episodes"] += episodes
        self._count["split_steps"] += 1
        if split.env.rebuilt != split.rebuilt:
            faults = self._progress.counters.first_fault
            faults.put(self._counter_row, f"{split.env.fault}", monotonic())
            self._count["env_restarts"] += split.env.rebuilt - split.rebuilt
            split.rebuilt = split.env.rebuilt
        events = split.env.not_finite
        if events.dropped_steps != split.dropped_steps:
            self._count_dropped(split, events.dropped_steps - split.dropped_steps, events.first)
            split.dropped_steps = events.dropped_steps

    def _count_dropped(self, split: Split, steps: int, why: str) -> None:
        """Count env steps that were dropped because a value was not finite. The driver shows
        ``why`` the first time."""
        self._progress.counters.note(self._counter_row, f"{self.name}, split {split.index}, {why}")
        self._count["nonfinite_steps"] += steps

    def _next(self, split: Split) -> bool:
        """Go on to t + 1, or, at the end of the rollout, to the next rollout."""
        stream = split.stream
        stream.valuing = False
        stream.t += 1
        if stream.t < stream.slots.shape.rollout:
            self._ask(stream)
            return True
        return self._next_rollout(split)

    def _next_rollout(self, split: Split) -> bool:
        """Hand the complete rollout over, and begin another."""
        self._hand_over(split)
        self._begin(split)
        return True

    def _hand_over(self, split: Split) -> None:
        stream = split.stream
        stream.keep_end()
        dropped, why = stream.drop_bad_outputs()
        if why:
            self._count_bad_outputs(split, dropped, f"{split.env.spec.env_id}, {why}")
        stream.hand_over()
        self._count["rollouts"] += 1

    def _count_bad_outputs(self, split: Split, steps: int, why: str) -> None:
        """Count the dropped steps of rows with policy outputs that are not finite. Raises
        NotFiniteError if that happens in too many successive rollouts."""
        self._count_dropped(split, steps, why)
        if split.stream.bad_rollouts == MAX_IN_A_ROW:
            raise NotFiniteError(
                f"{self.name}, split {split.index}, {why}, in {MAX_IN_A_ROW} rollouts in a row; "
                "are observations far too large, or has the training diverged? Scale them in the "
                "environment, use --model.normalise-observations, or lower --learning-rate"
            )
