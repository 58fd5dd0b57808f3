"""The overlap: the steps that one rollout of a split shares with the next one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.rollouts.slots import TrajectorySlots

Array = npt.NDArray[Any]


class Overlap:
    """Keeps the last steps of a split's last rollout, and the recurrent states before them, for
    sequences that overlap.

    A complete slot belongs to the replay, which may evict it before the split has its next slot.
    So the actor copies the steps out of the complete slot and later into the next one. The first
    rollout begins without such steps, so the split takes all of its steps.
    """

    def __init__(self, slots: TrajectorySlots) -> None:
        sequences = slots.shape.sequences
        assert sequences is not None
        self._slots = slots
        self._sequences = sequences
        self._new = slots.shape.rollout - sequences.overlap
        """The step of a rollout at which the next rollout begins."""
        self._columns: dict[str, Array] = {}
        self._first_stacks: dict[str, Array] = {}
        self._states: list[npt.NDArray[np.float32]] = []

    def keep_state(self, slot: int, t: int, state: npt.NDArray[np.float32]) -> None:
        """Store ``state`` [rows, S], the recurrent state before obs[t], if a sequence of this slot
        or of the next one begins there."""
        start, rest = divmod(t, self._sequences.stride)
        if rest:
            return
        if start < self._slots.shape.starts:
            self._slots.states[slot, start] = state
        if t >= self._new:
            self._states.append(state.copy())

    def keep(self, slot: int) -> None:
        """Copy the last steps out of a complete slot."""
        new, end = self._new, self._slots.shape.rollout
        if new == end:
            return
        for name, column in self._step_columns().items():
            self._columns[name] = column[slot, new:end].copy()
        for name, stacks in self._slots.stacks.items():
            self._first_stacks[name] = stacks.read_rows(np.array([slot]), np.array([new])).numpy()
            self._columns[f"obs/{name}"] = stacks.newest(slot, new + 1, end).copy()

    def zero_states(self, rows: list[int]) -> None:
        """Zero the stored recurrent states of ``rows``."""
        for state in self._states:
            state[rows] = 0.0

    def restore(self, slot: int) -> int:
        """Copy the stored steps into a new slot. Return the index of the next step to write (0 in
        the first rollout); the caller writes its observation."""
        if not self._columns:
            return 0
        overlap = self._sequences.overlap
        for name, column in self._step_columns().items():
            column[slot, :overlap] = self._columns[name]
        for name, stacks in self._slots.stacks.items():
            stacks.begin(slot, self._first_stacks[name])
            stacks.newest(slot, 1, overlap)[...] = self._columns[f"obs/{name}"]
        states, self._states = self._states, []
        for start, state in enumerate(states):
            self.keep_state(slot, start * self._sequences.stride, state)
        return overlap

    def _step_columns(self) -> dict[str, Array]:
        """Return the columns [slots, T or T+1, rows, ...] with an entry per step, except frames."""
        slots = self._slots
        stacks = {f"obs/{n}" for n in slots.stacks}
        skip = {"states", "sequence_error", "sequence_usable"} | stacks
        return {n: column.numpy() for n, column in slots.columns().items() if n not in skip}
