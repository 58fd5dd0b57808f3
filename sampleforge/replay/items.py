"""What the end of a rollout writes into its slot for a replay: the n-step window of each step, and
the first priority of each item, which is a transition or a sequence.

How windows and first priorities follow from a rollout is up to the algorithm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.ops.q_learning import Flags, Floats, Windows, sequence_priority
from sampleforge.rollouts.slots import TrajectorySlots

ITEM_COLUMNS = {
    "returns": "float32",  # this and the next two: the n-step window, see ops.q_learning
    "discount": "float32",
    "steps": "uint8",
    "td_error": "float32",  # the error that the first priority is made from
}
"""The columns [T, rows] of slots from which transitions are drawn. Slots from which sequences are
drawn have others (`SlotShape.sequences`), and the reader makes their windows."""


def write_items(slots: TrajectorySlots, slot: int, windows: Windows, errors: Floats) -> None:
    """Complete the rollout in ``slot``: write its windows, and the first priorities that follow
    from the absolute ``errors`` of its steps, float32 [T, rows]. A step without a window cannot be
    learned from."""
    if slots.shape.sequences is not None:
        _write_sequences(slots, slot, errors, windows.steps > 0)
        return
    for name, column in windows._asdict().items():
        slots.extras[name][slot] = column
    slots.extras["td_error"][slot] = errors


def _write_sequences(slots: TrajectorySlots, slot: int, errors: Floats, counted: Flags) -> None:
    """Write each sequence's first error, from those of its steps after the burn-in.

    The windows of these errors may reach beyond the sequence; those that are learned from end with
    it.
    """
    sequences = slots.shape.sequences
    assert sequences is not None
    for start in range(slots.shape.starts):
        begin = start * sequences.stride
        learned = slice(begin + sequences.burn_in, begin + sequences.length)
        of_steps, mask = torch.from_numpy(errors[learned]), torch.from_numpy(counted[learned])
        slots.sequence_error[slot, start] = sequence_priority(of_steps, mask).numpy()
        slots.sequence_usable[slot, start] = counted[learned].any(0)


def first_estimates(slots: TrajectorySlots) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Return what was written for each item, [slots, items] each: a number above 0 if the item can
    be learned from, and the absolute error."""
    if slots.shape.sequences is None:
        usable, errors = slots.extras["steps"], slots.extras["td_error"]
    else:
        usable, errors = slots.sequence_usable, slots.sequence_error
    return usable.reshape(slots.count, -1), errors.reshape(slots.count, -1)
