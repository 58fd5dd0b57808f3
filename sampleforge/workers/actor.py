"""The actor worker: steps environments and fills trajectory slots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter, time
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.env.not_finite import NotFiniteError
from sampleforge.env.vector import EnvVector, Episode, StepOut
from sampleforge.rollouts.exchange import RolloutExchange
from sampleforge.rollouts.overlap import Overlap
from sampleforge.rollouts.slots import end_rollout
from sampleforge.runtime.threads import limit_threads
from sampleforge.shared.counters import Progress
from sampleforge.shared.records import Episodes
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.inference import Inference
from sampleforge.workers.policy_outputs import MAX_IN_A_ROW, drop_rows, outputs_not_finite
from sampleforge.workers.worker import EventDriven

Array = npt.NDArray[Any]


class Split:
    """One part of an actor's env vector, and the progress of its rollout.

    ``slot`` is None between two rollouts. ``stepping``: the environments are taking a step;
    ``valuing``: values of final observations have been requested. ``carry`` holds the last
    observation of a rollout, with which the next one begins, because the slot belongs to the
    learner by then. Leaves that the slots store as single frames are written to ``carry`` at every
    step. ``overlap``: the steps that the next rollout begins with, if sequences are drawn.
    ``before``: the recurrent state of the last request. ``rollouts``: number of rollouts begun.
    ``dropped_steps``: dropped steps of its environments that are counted already;
    ``bad_rollouts``: number of successive rollouts with policy outputs that are not finite.
    """

    def __init__(
        self, index: int, env: EnvVector, overlap: Overlap | None, state_size: int
    ) -> None:
        self.index = index
        self.env = env
        self.overlap = overlap
        self.slot: int | None = None
        self.rollouts = 0
        self.t = 0
        self.stepping = False
        self.valuing = False
        self.rebuilt = 0
        self.dropped_steps = 0
        self.bad_rollouts = 0
        self.carry = {
            name: np.zeros((env.num_rows, *leaf.shape), leaf.dtype)
            for name, leaf in env.spec.observations.items()
        }
        self.carry_first = np.ones(env.num_rows, np.bool_)
        self.before = np.zeros((env.num_rows, state_size), np.float32)


def never(t: int) -> bool:
    """Return False: rollouts do not end before their slot is full."""
    return False


class ActorWorker(EventDriven):
    """Steps each of its splits as soon as the split has its actions, or its environments are done.

    If the simulator steps in the calling thread, the other splits' inference runs meanwhile in a
    policy worker; if it steps in threads of its own (``spec.asynchronous``), the other splits'
    inference runs meanwhile in this process.
    """

    def __init__(
        self,
        index: int,
        make_envs: Sequence[Callable[[], EnvVector]],
        exchange: RolloutExchange,
        inference: Inference,
        episodes: Episodes,
        wakeup: Wakeup,
        progress: Progress,
        counter_row: int,
        ends_early: Callable[[int], bool] = never,
    ) -> None:
        self.name = f"actor {index}"
        self._index = index
        self._make_envs = make_envs
        self._exchange = exchange
        self._inference = inference
        self._episodes = episodes
        self._wakeup = wakeup
        self._progress = progress
        self._counter_row = counter_row
        self._ends_early = ends_early
        self._splits: list[Split] = []

    def recover(self) -> None:
        """Take over the slots of the previous life: hand over the complete ones, and write the
        incomplete ones again."""
        self._exchange.take_over(self._index)

    def start(self) -> None:
        self._count = self._progress.counters.row(self._counter_row)
        self._count["heartbeat"][0] = time()
        slots = self._exchange.slots
        for index, make in enumerate(self._make_envs):
            overlap = Overlap(slots) if slots.shape.sequences else None
            self._splits.append(Split(index, make(), overlap, slots.shape.state_size))
        limit_threads(1)  # also of libraries that the environments have loaded
        self._count["heartbeat"][0] = math.inf  # a model may be compiled first
        self._inference.start()
        self._count["heartbeat"][0] = time()
        for split in self._splits:
            try:
                split.env.reset(split.carry)
            except NotFiniteError as error:
                raise self._named(split, error) from None

    def step(self) -> bool:
        """Advance every split as far as is possible without waiting."""
        started = perf_counter()
        self._count["heartbeat"][0] = self.alive_at()
        self._ending = self._is_ending()
        moved = any([self._advance(split) for split in self._splits])
        self._count["step_s"] += perf_counter() - started
        return moved

    def close(self) -> None:
        for split in self._splits:
            split.env.close()

    @property
    def idle(self) -> bool:
        """Whether no rollout is in progress: the learner has the batch."""
        return all(split.slot is None for split in self._splits)

    def alive_at(self) -> float:
        """Return the time (seconds since the epoch) at which this actor was last known to be alive:
        now, for an actor that waits for its environments."""
        return time()

    def _is_ending(self) -> bool:
        """Return whether all rollouts end with the steps that they have, or that are in progress.
        It is decided before each round of steps, so that all of them have the same number."""
        steps = [split.t for split in self._splits if split.slot is not None]
        return bool(steps) and self._ends_early(min(steps))

    def _advance(self, split: Split) -> bool:
        moved = False
        if split.stepping and split.env.spec.asynchronous:
            moved = self._collect(split)
        if split.valuing and self._inference.is_answered(split.index):
            moved = self._next(split)
        if split.slot is None:
            moved = self._begin(split)
        waits = split.slot is not None and not (split.stepping or split.valuing)
        if waits and self._inference.is_answered(split.index):
            if self._ending and split.t:
                return self._end_early(split)
            moved = self._act(split)
            if not split.env.spec.asynchronous:
                self._collect(split)
        return moved

    def _begin(self, split: Split) -> bool:
        """Start a rollout where the last one ended, if there is a free slot and the run goes on."""
        if self._progress.done or not self._is_next(split):
            return False
        slot = self._exchange.take_free(self._index)
        if slot is None:
            return False
        split.rollouts += 1
        slots = self._exchange.slots
        t = 0 if split.overlap is None else split.overlap.restore(slot)
        for name, leaf in slots.obs.items():
            leaf[slot, t] = split.carry[name]
        for name, column in slots.stacks.items():
            column.put(slot, t, split.carry[name]) if t else column.begin(slot, split.carry[name])
        slots.first[slot, t] = split.carry_first
        if split.overlap is None:
            slots.state[slot] = self._inference.state[split.index]
        split.slot, split.t = slot, t
        self._ask(split)
        return True

    def _is_next(self, split: Split) -> bool:
        """Return whether no other split without a slot has begun fewer rollouts. Otherwise the
        first split would take all slots when they come one at a time."""
        return all(s.slot is not None or s.rollouts >= split.rollouts for s in self._splits)

    def _ask(self, split: Split) -> None:
        assert split.slot is not None
        started = perf_counter()
        if split.overlap is not None:
            split.overlap.keep_state(split.slot, split.t, self._inference.state[split.index])
        split.before[...] = self._inference.state[split.index]
        self._inference.ask(split.index, split.slot, split.t)
        self._count["infer_s"] += perf_counter() - started

    def _act(self, split: Split) -> bool:
        """Send the actions at (slot, t) to the environments."""
        started = perf_counter()
        actions = self._exchange.slots.actions
        split.env.send({name: leaf[split.slot, split.t] for name, leaf in actions.items()})
        split.stepping = True
        self._count["env_s"] += perf_counter() - started
        return True

    def _collect(self, split: Split) -> bool:
        """Receive the environments' step directly into the slot."""
        started = perf_counter()
        slots, slot, t = self._exchange.slots, split.slot, split.t
        out = StepOut(
            reward=slots.reward[slot, t],
            terminated=slots.terminated[slot, t],
            truncated=slots.truncated[slot, t],
            valid=slots.valid[slot, t],
            obs={name: leaf[slot, t + 1] for name, leaf in slots.obs.items()} | self._whole(split),
            first=slots.first[slot, t + 1],
            final_obs={n: leaf[split.index] for n, leaf in self._inference.final_obs.items()},
        )
        ended = self._recv(split, out)
        split.stepping = False
        self._count["env_s"] += perf_counter() - started
        self._keep_frames(split)
        self._keep_final(split, out)
        self._account(split, out, len(ended))
        if ended:
            self._episodes.put(self._index, split.index, ended)
        if slots.final_value is not None and out.truncated.any():
            assert slot is not None
            split.valuing = True
            self._inference.ask_final(split.index, slot, t)
            return True
        return self._next(split)

    def _recv(self, split: Split, out: StepOut) -> list[Episode]:
        try:
            return split.env.recv(out)
        except NotFiniteError as error:
            raise self._named(split, error) from None

    def _named(self, split: Split, error: NotFiniteError) -> NotFiniteError:
        """Return the same error with the name of this actor and the split."""
        return NotFiniteError(f"{self.name}, split {split.index}, {error}")

    def _whole(self, split: Split) -> dict[str, Array]:
        """Return the arrays for whole stacks of frames, of which the slot stores the newest
        frame."""
        return {name: split.carry[name] for name in self._exchange.slots.stacks}

    def _keep_frames(self, split: Split) -> None:
        """Write the newest frames into the slot. At the rollout's end, compare the stacks with
        those that are read from the slot, so that an environment whose metadata is wrong about its
        stacks is noticed."""
        slots, slot, t = self._exchange.slots, split.slot, split.t + 1
        for name, column in slots.stacks.items():
            assert slot is not None
            column.put(slot, t, split.carry[name])
            if slots.debug or t == slots.shape.rollout:
                column.check(slot, t, split.carry[name])

    def _keep_final(self, split: Split, out: StepOut) -> None:
        """Write the final observations after truncated steps into the slot, if the slot stores them
        apart from ``obs``."""
        slots = self._exchange.slots
        if not slots.final_obs or not out.truncated.any():
            return
        assert out.final_obs is not None
        for name, column in slots.final_obs.items():
            seen = out.final_obs[name][out.truncated]
            column[split.slot, split.t, out.truncated] = (
                seen[:, -1] if name in slots.stacks else seen
            )

    def _account(self, split: Split, out: StepOut, episodes: int) -> None:
        steps = np.count_nonzero(out.valid)
        self._count["env_steps"] += steps
        self._count["env_frames"] += steps * split.env.spec.frame_skip
        self._count["episodes"] += episodes
        self._count["split_steps"] += 1
        if split.env.rebuilt != split.rebuilt:
            faults = self._progress.counters.first_fault
            faults.put(self._counter_row, f"{split.env.fault}", time())
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
        """Go on to t + 1, or, at the end of the rollout, hand the slot over and begin another."""
        split.valuing = False
        split.t += 1
        slots, slot = self._exchange.slots, split.slot
        assert slot is not None
        if split.t < slots.shape.rollout:
            self._ask(split)
            return True
        self._hand_over(split)
        self._begin(split)
        return True

    def _hand_over(self, split: Split) -> None:
        """Hand a complete rollout over, and keep its last observation for the next one."""
        slots, slot = self._exchange.slots, split.slot
        assert slot is not None
        for name, leaf in slots.obs.items():
            split.carry[name][...] = leaf[slot, -1]
        split.carry_first[...] = slots.first[slot, -1]
        self._drop_bad_outputs(split, slot)
        if split.overlap is not None:
            split.overlap.keep(slot)
        self._exchange.hand_over(self._index, slot)
        self._count["rollouts"] += 1
        split.slot = None

    def _drop_bad_outputs(self, split: Split, slot: int) -> None:
        """Drop the rows of the rollout with policy outputs that are not finite. Raises
        NotFiniteError if that happens in too many successive rollouts."""
        bad_outputs = outputs_not_finite(self._exchange.slots, slot)
        if not bad_outputs:
            split.bad_rollouts = 0
            return
        rows = list(bad_outputs)
        steps = drop_rows(self._exchange.slots, slot, rows)
        self._inference.state[split.index][rows] = 0.0
        if split.overlap is not None:
            split.overlap.zero_states(rows)
        env, row = split.env.spec.env_id, rows[0]
        output = bad_outputs[row]
        why = f"{env}, row {row}: the policy's {output} is not finite for a finite observation"
        self._count_dropped(split, steps, why)
        split.bad_rollouts += 1
        if split.bad_rollouts == MAX_IN_A_ROW:
            raise NotFiniteError(
                f"{self.name}, split {split.index}, {why}, in {MAX_IN_A_ROW} rollouts in a row; "
                "are observations far too large, or has the training diverged? Scale them in the "
                "environment, use --model.normalise-observations, or lower --learning-rate"
            )

    def _end_early(self, split: Split) -> bool:
        """End the rollout before step t, for which the policy's output is in the slot: the learner
        bootstraps from its value. The next rollout begins with the same observation and the same
        recurrent state, and requests actions again."""
        assert split.slot is not None
        self._inference.state[split.index] = split.before
        end_rollout(self._exchange.slots, split.slot, split.t)
        self._hand_over(split)
        self._begin(split)
        return True
