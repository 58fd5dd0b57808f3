"""Rollouts that end before their slot is full, in a form that all who read slots understand."""

from __future__ import annotations

import numpy as np

from sampleforge.data.slots import PER_ROLLOUT, TrajectorySlots

NOT_TAKEN = -1
"""The policy version of steps that a short rollout does not have."""


def end_rollout(slots: TrajectorySlots, slot: int, t: int) -> None:
    """Make the rollout in ``slot`` end with step ``t - 1``.

    ``obs[t]`` and what the policy said of it (its value is the bootstrap) must be there. They are
    repeated to the end of the slot, so that every number in it is finite and the next rollout finds
    its first observation in the last place; the steps from ``t`` on are not valid, and their
    version is `NOT_TAKEN`.
    """
    for name, column in slots.columns().items():
        if name not in PER_ROLLOUT:
            column[slot, t + 1 :] = column[slot, t].clone()
    for flags in (slots.valid, slots.terminated, slots.truncated):
        flags[slot, t:] = False
    slots.reward[slot, t:] = 0.0
    slots.version[slot, t:] = NOT_TAKEN
    if slots.final_value is not None:
        slots.final_value[slot, t:] = 0.0


def length(slots: TrajectorySlots, slot: int) -> int:
    """Steps that the rollout in ``slot`` has."""
    return int(np.count_nonzero(slots.version[slot, :, 0] != NOT_TAKEN))
