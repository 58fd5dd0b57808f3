"""What a policy said must be finite, too: the last check before a rollout is handed over.

The env vector lets only finite observations in (`sampleforge.env.not_finite`), but a network can
still overflow on them. The row is dropped for that rollout then, and its recurrent state is zeroed;
the other rows stay.
"""

from __future__ import annotations

import numpy as np

from sampleforge.ops.finite import all_finite, rows_not_finite
from sampleforge.rollouts.slots import TrajectorySlots

SAID = ("log_prob", "value", "taken", "value_std", "taken_std")
"""The extras that policies write; the others of a slot come later."""
MAX_IN_A_ROW = 10
"""Rollouts of a split in a row with rows that must be dropped; so many end the run."""


def outputs_not_finite(slots: TrajectorySlots, slot: int) -> dict[int, str]:
    """The rows of a complete rollout for which the policy said something that is not finite, and
    what: such as "value"."""
    found: dict[int, str] = {}
    for name in SAID:
        column = slots.extras.get(name)
        if column is not None and not all_finite(column[slot]):
            for row in np.flatnonzero(rows_not_finite(column[slot].swapaxes(0, 1))).tolist():
                found.setdefault(row, name)
    if slots.final_value is not None:
        bad = slots.truncated[slot] & ~np.isfinite(slots.final_value[slot])  # others mean nothing
        for row in np.flatnonzero(bad.any(0)).tolist():
            found.setdefault(row, "final_value")
    return found


def drop_rows(slots: TrajectorySlots, slot: int, rows: list[int]) -> int:
    """Drop ``rows`` of a complete rollout; returns how many of their steps were valid. Their floats
    are 0 afterwards, so that what is masked cannot become NaN in a gradient."""
    dropped = int(np.count_nonzero(slots.valid[slot][:, rows]))
    slots.valid[slot][:, rows] = False
    said = [slots.extras[name] for name in SAID if name in slots.extras]
    for column in (slots.reward, *said, *slots.obs.values(), *slots.actions.values()):
        if np.issubdtype(column.dtype, np.floating):
            column[slot][:, rows] = 0.0
    if slots.final_value is not None:
        slots.final_value[slot][:, rows] = 0.0
    if slots.shape.sequences is None:
        slots.state[slot][rows] = 0.0
    else:
        slots.states[slot][:, rows] = 0.0
    return dropped
