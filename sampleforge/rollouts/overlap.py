"""What one rollout of a split shares with the next: the steps that begin its sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.rollouts.slots import TrajectorySlots

Array = npt.NDArray[Any]


class Overlap:
    """Of one split: the last steps of its last rollout, and the recurrent states in them.

    The slot that held them belongs to the replay as soon as it is complete, and may be evicted
    before this split has its next one: so they are copied out, and into the next one. Only the
    actor has it. The first rollout begins with nothing, and so takes longer.
    """

    def __init__(self, slots: TrajectorySlots) -> None:
        sequences = slots.shape.sequences
        assert sequences is not None
        self._slots = slots
        self._sequences = sequences
        self._new = slots.shape.rollout - sequences.overlap
        """Where the next rollout begins, in the steps of this one."""
        self._columns: dict[str, Array] = {}
        self._first_stacks: dict[str, Array] = {}
        self._states: list[npt.NDArray[np.float32]] = []

    def keep_state(self, slot: int, t: int, state: npt.NDArray[np.float32]) -> None:
        """Note ``state`` [rows, S], which is that before obs[t], if a sequence begins there: one of
        this slot, or one of the next."""
        start, rest = divmod(t, self._sequences.stride)
        if rest:
            return
        if start < self._slots.shape.starts:
            self._slots.states[slot, start] = state
        if t >= self._new:
            self._states.append(state.copy())

    def keep(self, slot: int) -> None:
        """Copy the last steps out of a slot that is complete."""
        new, end = self._new, self._slots.shape.rollout
        if new == end:
            return
        for name, column in self._of_steps().items():
            self._columns[name] = column[slot, new:end].copy()
        for name, stacks in self._slots.stacks.items():
            found = stacks.read_rows(np.array([slot]), np.array([new]))
            self._first_stacks[name] = found.numpy()
            self._columns[f"obs/{name}"] = stacks.newest(slot, new + 1, end).copy()

    def zero_states(self, rows: list[int]) -> None:
        """Zero the recurrent states of ``rows`` that the next rollout begins with."""
        for state in self._states:
            state[rows] = 0.0

    def restore(self, slot: int) -> int:
        """Copy what was kept into a new slot; returns the step that comes next, 0 the first time.
        Its observation is not among them."""
        if not self._columns:
            return 0
        overlap = self._sequences.overlap
        for name, column in self._of_steps().items():
            column[slot, :overlap] = self._columns[name]
        for name, stacks in self._slots.stacks.items():
            stacks.begin(slot, self._first_stacks[name])
            stacks.newest(slot, 1, overlap)[...] = self._columns[f"obs/{name}"]
        states, self._states = self._states, []
        for start, state in enumerate(states):
            self.keep_state(slot, start * self._sequences.stride, state)
        return overlap

    def _of_steps(self) -> dict[str, Array]:
        """The columns [slots, T or T+1, rows, ...] but for frames."""
        slots = self._slots
        skip = {
            *("states", "sequence_error", "sequence_usable"),
            *(f"obs/{n}" for n in slots.stacks),
        }
        return {n: column.numpy() for n, column in slots.columns().items() if n not in skip}
