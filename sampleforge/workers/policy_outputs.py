"""The check that a policy's outputs are finite, made before a rollout is handed over.

The env vector lets only finite observations through (`sampleforge.env.guard`), but a network
can still overflow on them. Then the row is dropped for that rollout, and its recurrent state is
zeroed; the other rows are kept.
"""

from __future__ import annotations

import numpy as np

from sampleforge.ops.far_values import all_finite, rows_not_finite
from sampleforge.rollouts.slots import TrajectorySlots

MAX_IN_A_ROW = 10
"""Number of successive rollouts of a split with dropped rows that ends the run."""


def outputs_not_finite(slots: TrajectorySlots, slot: int) -> dict[int, str]:
    """Return the rows of a complete rollout with a policy output that is not finite, row -> name of
    the output, such as "value"."""
    bad_outputs: dict[int, str] = {}
    for name in slots.shape.extras:
        column = slots.extras[name]
        if np.issubdtype(column.dtype, np.floating) and not all_finite(column[slot]):
            for row in np.flatnonzero(rows_not_finite(column[slot].swapaxes(0, 1))).tolist():
                bad_outputs.setdefault(row, name)
    if slots.final_value is not None:
        bad = slots.truncated[slot] & ~np.isfinite(slots.final_value[slot])  # used there only
        for row in np.flatnonzero(bad.any(0)).tolist():
            bad_outputs.setdefault(row, "final_value")
    return bad_outputs


def drop_rows(slots: TrajectorySlots, slot: int, rows: list[int]) -> int:
    """Drop ``rows`` of a complete rollout; return the number of their steps that were valid. Their
    floats are set to 0, so that masked steps cannot become NaN in a gradient."""
    dropped = int(np.count_nonzero(slots.valid[slot][:, rows]))
    slots.valid[slot][:, rows] = False
    outputs = [slots.extras[name] for name in slots.shape.extras]
    for column in (slots.reward, *outputs, *slots.obs.values(), *slots.actions.values()):
        if np.issubdtype(column.dtype, np.floating):
            column[slot][:, rows] = 0.0
    if slots.final_value is not None:
        slots.final_value[slot][:, rows] = 0.0
    if slots.shape.sequences is None:
        slots.state[slot][rows] = 0.0
    else:
        slots.states[slot][:, rows] = 0.0
    return dropped
