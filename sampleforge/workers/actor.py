"""The actor worker: steps environments and fills trajectory slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import monotonic, perf_counter
from typing import Any

import numpy as np

from sampleforge.env.guard import NotFiniteError
from sampleforge.env.interface import told_of_rows
from sampleforge.env.vector import EnvVector, Episode, StepOut
from sampleforge.runtime.torch_settings import limit_threads
from sampleforge.shared.events import send
from sampleforge.shared.records import Episodes
from sampleforge.workers.callback import WorkerCallbacks
from sampleforge.workers.frozen import FrozenPort, FrozenStream
from sampleforge.workers.hooks import rollout_hooks, watch_episodes
from sampleforge.workers.policy_mapping import PolicyMapping, only_policy
from sampleforge.workers.split import Split, Stepping
from sampleforge.workers.stream import MAX_IN_A_ROW, REWARD, PolicyPort, Stream, lease
from sampleforge.workers.worker import MODEL_TIMEOUT, EventDriven, Post

END_RECORDING = "end_recording"
"""The kind of a request; see `ActorWorker.handle`."""


def looks_at_bounds(rollouts: int) -> bool:
    """Return whether the bounds of observations are looked at in a stream's rollout of this number:
    1, 2, 4, ... and every 1,024th. In every env step it would cost more than a fast simulator."""
    return rollouts & (rollouts - 1) == 0 or rollouts % 1024 == 0


class ActorWorker(EventDriven):
    """Advances each of its splits as soon as the split's actions, or the results of its environment
    step, are there. ``stepping`` says which splits may begin a rollout and step, and when a rollout
    ends (None: they step in turn, and rollouts end when their slots are full).

    If the simulator steps in the calling thread, the other splits' inference runs meanwhile in a
    policy worker; if it steps in threads of its own (``spec.asynchronous``), the other splits'
    inference runs meanwhile in this process.

    ``ports``: one per policy group, in the groups' order, and then one per frozen policy.
    ``mapping`` picks the policy of each seat where a rollout begins. If a picked group has no free
    slot, the split waits. So the amount of experience of a group does not depend on the speed of
    the other groups' learners. ``callbacks``: those with hooks in workers, if there are any.
    """

    def __init__(
        self,
        index: int,
        make_envs: Sequence[Callable[[], EnvVector]],
        ports: Sequence[PolicyPort | FrozenPort],
        episodes: Episodes,
        post: Post,
        mapping: PolicyMapping = only_policy,
        *,
        stepping: Stepping | None = None,
        callbacks: WorkerCallbacks | None = None,
    ) -> None:
        super().__init__(f"actor {index}", post)
        self._index = index
        self._make_envs = make_envs
        self._ports = ports
        self._episodes = episodes
        self._progress = post.progress
        self._mapping = mapping
        self._stepping = stepping or Stepping()
        self._callbacks = callbacks
        self._splits: list[Split] = []
        self._recording_ended = False
        self._told_of_bounds = False
        self._told_of_far: set[str] = set()

    def recover(self) -> None:
        """Take over the slots of the previous life, in the exchange of every policy group: hand
        over the complete ones, and write the incomplete ones again."""
        for port in self._ports:
            if isinstance(port, PolicyPort):
                port.exchange.take_over(self._index)

    def start(self) -> None:
        super().start()
        self._count["heartbeat"][0] = monotonic()
        self._count["starting"][0], self._count["started_rows"][0] = 1, 0
        # Not 0 in a later life, which continues the policy mapping of the previous one.
        rollouts = int(self._count["rollouts"][0]) // len(self._make_envs)
        for index, make in enumerate(self._make_envs):
            with told_of_rows(self._row_started):
                env = make()
            self._splits.append(Split(self._index, index, env, rollouts))
        self._stepping.start(self._splits)
        self._tell_of_rollout = rollout_hooks(self._callbacks)
        if self._callbacks is not None:
            for split in self._splits:
                watch_episodes(split, self._callbacks)
        limit_threads(1)  # also of libraries that the environments have loaded
        self._count["heartbeat"][0] = monotonic() + MODEL_TIMEOUT
        for port in self._ports:
            port.inference.start()
        self._count["heartbeat"][0] = monotonic()
        for split in self._splits:
            try:
                for seat in split.seats:
                    seat.env.reset(seat.carry)
            except NotFiniteError as error:
                raise self._named(split, error) from None
        self._count["started_rows"][0] = sum(split.env.num_rows for split in self._splits)
        self._count["starting"][0] = 0

    def _row_started(self) -> None:
        self._count["started_rows"] += 0.5  # constructed, and then reset
        self._count["heartbeat"][0] = monotonic()

    def _beat(self) -> None:
        self._count["heartbeat"][0] = self.alive_at()

    def handle(self, kind: str, payload: Any) -> Any:
        """``end_recording``: as `end_recording`, and take no further steps, which would be missing
        in the recording."""
        if kind != END_RECORDING:
            return super().handle(kind, payload)
        self.end_recording()
        self._recording_ended = True
        return None

    def end_recording(self) -> None:
        """Send what the rollouts in progress have so far to the recorder, and no more afterwards;
        return when that is done."""
        for split in self._splits:
            for stream in split.learning:
                stream.end_recording(self._beat)
        for port in self._ports:
            if isinstance(port, PolicyPort) and port.recorder is not None:
                port.recorder.end()

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
        """Return the time (of ``monotonic``) at which this actor was last known to be alive: when
        the oldest step in progress began, or now if none has to be waited for."""
        at = monotonic()
        for split in self._splits:
            if split.stepping and not split.env.ready:
                at = min(at, split.sent_at)
        return at

    def step(self) -> bool:
        """Advance every split as far as is possible without waiting."""
        started = perf_counter()
        self._beat()
        if self._progress.clock.halted or self._recording_ended:
            return False  # nothing is learned any more
        if self._stepping.together:
            self._answer()
        self._stepping.decide()
        moved = any([self._advance(split) for split in self._splits])
        self._count["step_s"][0] += perf_counter() - started
        return moved

    def _advance(self, split: Split) -> bool:
        moved, stepping = False, self._stepping
        if split.stepping and stepping.may_collect(split):
            moved = self._collect(split)
        if split.valuing and split.is_answered():
            moved = self._next(split)
        if split.stream.slot is None:
            moved = self._begin(split) or moved
        if split.stream.slot is None or split.valuing or not split.is_answered():
            return moved
        if stepping.ends(split):
            split.end_early()
            return self._next_rollout(split)
        if not split.stepping:
            moved = self._act(split)
            if not split.env.spec.asynchronous:
                self._collect(split)
        return moved

    def _begin(self, split: Split) -> bool:
        """Begin a rollout, if the run goes on and the policy group that is picked for each seat has
        a free slot: all seats begin, or none."""
        if self._progress.done or not self._stepping.may_begin(split):
            return False
        picked = [self._ports[self._mapping(seat.id, seat.rollouts)] for seat in split.seats]
        trained = [port for port in picked if isinstance(port, PolicyPort)]
        if not trained:
            raise ValueError(f"{self.name}: the policy mapping gives all seats frozen policies")
        slots = lease(trained, self._index)
        if slots is None:
            return False
        split.begin(picked, slots, self._progress.env_steps)
        self._stepping.begun(split)
        self._ask(split)
        return True

    def _next(self, split: Split) -> bool:
        """Go on to t + 1, or, at the end of the rollout, to the next rollout."""
        for stream in split.learning:
            stream.valuing = False
            stream.t += 1
        if split.stream.t < split.stream.slots.shape.rollout:
            self._ask(split)
            return True
        return self._next_rollout(split)

    def _next_rollout(self, split: Split) -> bool:
        """Hand the complete rollouts over, and begin others."""
        self._stepping.ended(split)
        self._hand_over(split)
        self._begin(split)
        return True

    def _ask(self, split: Split) -> None:
        started = perf_counter()
        split.ask()
        self._count["infer_s"][0] += perf_counter() - started
        if len(split.streams) > 1:
            self._answer()

    def _answer(self) -> None:
        """Compute the actions that are requested together."""
        started = perf_counter()
        for port in self._ports:
            port.inference.answer()
        self._count["infer_s"][0] += perf_counter() - started

    def _act(self, split: Split) -> bool:
        """Send the actions at (slot, t) to the environments."""
        started = perf_counter()
        for stream in split.streams:
            stream.env.send(stream.actions())
        split.stepping, split.sent_at = True, monotonic()
        self._count["env_s"][0] += perf_counter() - started
        return True

    def _collect(self, split: Split) -> bool:
        """Receive the environments' step directly into the slots."""
        started = perf_counter()
        outs = [stream.step_out() for stream in split.streams]
        ended = [self._recv(split, s, out) for s, out in zip(split.streams, outs, strict=True)]
        split.stepping = False
        self._stepping.stepped(split)
        self._count["env_s"][0] += perf_counter() - started
        self._count["split_steps"][0] += 1
        self._count_rebuilt(split)
        for stream, out in zip(split.streams, outs, strict=True):
            if isinstance(stream, Stream):
                stream.keep(out)
                self._account(split, stream, out)
                stream.ask_final(out)
        if records := split.records(outs, ended):
            self._count["episodes"] += sum(not record.more for record in records)
            self._episodes.put(records, self._beat)
        return True if split.valuing else self._next(split)

    def _recv(self, split: Split, stream: Stream | FrozenStream, out: StepOut) -> list[Episode]:
        try:
            return stream.env.recv(out)
        except NotFiniteError as error:
            taken = stream.actions().values()
            if all(np.isfinite(leaf).all() for leaf in taken):
                raise self._named(split, error) from None
            why = NotFiniteError(
                f"{error.event}; the policy's actions were not finite, so that the training has "
                "diverged: lower --learning-rate or --max-grad-norm"
            )
            raise self._named(split, why) from None

    def _named(self, split: Split, error: NotFiniteError) -> NotFiniteError:
        """Return the same error with the name of this actor and the split."""
        return NotFiniteError(f"{self.name}, split {split.index}, {error}")

    def _account(self, split: Split, stream: Stream, out: StepOut) -> None:
        """Count a step of one seat."""
        steps = np.count_nonzero(out.valid)
        self._count["env_steps"][0] += steps
        self._count["env_frames"][0] += steps * split.env.spec.frame_skip
        guard = stream.env.guard
        if guard.dropped_steps != stream.dropped_steps:
            self._count_dropped(split, guard.dropped_steps - stream.dropped_steps, guard.first)
            stream.dropped_steps = guard.dropped_steps

    def _count_rebuilt(self, split: Split) -> None:
        if split.env.rebuilt != split.rebuilt:
            faults = self._progress.counters.first_fault
            faults.put(self._post.row, f"{split.env.fault}", monotonic())
            self._count["env_restarts"] += split.env.rebuilt - split.rebuilt
            split.rebuilt = split.env.rebuilt

    def _count_dropped(self, split: Split, steps: int, why: str) -> None:
        """Count env steps that were dropped because a value was not finite. The driver shows
        ``why`` the first time."""
        self._progress.counters.note(self._post.row, f"{self.name}, split {split.index}, {why}")
        self._count["nonfinite_steps"] += steps

    def _hand_over(self, split: Split) -> None:
        for stream in split.learning:
            stream.keep_end()
            dropped, why = stream.drop_bad_outputs()
            if why:
                why = f"{split.env.spec.env_id}, {why}"
                self._count_bad_outputs(split, stream, dropped, why)
            if self._tell_of_rollout is not None:
                self._tell_of_rollout(stream)
            if looks_at_bounds(stream.rollouts):
                self._look_at_bounds(split, stream)
            stream.hand_over(self._beat)
            self._tell_of_far_values(split, stream)
        self._count["rollouts"] += 1

    def _tell_of_far_values(self, split: Split, stream: Stream) -> None:
        """Count the numbers that were far beyond all others, and warn of the first one of each leaf
        and of the first reward."""
        guard = stream.env.guard
        self._count["far_values"] += guard.far_values + stream.far_values
        guard.far_values = stream.far_values = 0
        for what, text in {**stream.first_far, **guard.first_far}.items():
            if what in self._told_of_far:
                continue
            self._told_of_far.add(what)
            meant = "scale the rewards" if what == REWARD else f"scale leaf {what!r}"
            remedy = (
                "such numbers are counted as far_values; correct the environment, or, if it is "
                f"meant, {meant}, so that numbers differ by less than 100 times"
            )
            send("log", ("warning", f"{self.name}, split {split.index}, {text}; {remedy}"))

    def _look_at_bounds(self, split: Split, stream: Stream) -> None:
        """Warn once of an observation that is outside of its bounds; training goes on with it."""
        if not self._told_of_bounds and (fault := stream.out_of_bounds()) is not None:
            self._told_of_bounds = True
            text = (
                f"{self.name}, split {split.index}, {fault.text} "
                "(`sampleforge check-env` shows how often it happens)"
            )
            send("log", ("warning", text))

    def _count_bad_outputs(self, split: Split, stream: Stream, steps: int, why: str) -> None:
        """Count the dropped steps of rows with policy outputs that are not finite. Raises
        NotFiniteError if that happens in too many successive rollouts."""
        self._count_dropped(split, steps, why)
        if stream.bad_rollouts == MAX_IN_A_ROW:
            raise NotFiniteError(
                f"{self.name}, split {split.index}, {why}, in {MAX_IN_A_ROW} rollouts in a row; "
                "are observations far too large, or has the training diverged? Scale them in the "
                "environment, use --model.normalise-observations, or lower --learning-rate; an "
                "encoder or head of your own may do that as well"
            )
