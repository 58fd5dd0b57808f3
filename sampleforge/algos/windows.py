"""The n-step windows of the rewards that are learned from, and the first priorities of
sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sampleforge.algos.config import DqnConfig
from sampleforge.ops.n_step import Flags, Floats, Windows, n_step_windows
from sampleforge.ops.r2d2 import sequence_priority
from sampleforge.ops.rewards import learned_rewards
from sampleforge.rollouts.slots import TrajectorySlots


@dataclass(frozen=True)
class MakeWindows:
    """Makes the n-step windows of scaled and clipped rewards; all arrays are [T, rows].

    ``config`` has its defaults resolved; ``drop_truncated``: see
    `sampleforge.ops.n_step.n_step_windows`."""

    config: DqnConfig
    drop_truncated: bool

    @property
    def gamma(self) -> float:
        assert self.config.gamma is not None
        return self.config.gamma

    def rewards(self, reward: Floats) -> Floats:
        """Return the rewards scaled and clipped, as they are learned from."""
        config = self.config
        assert config.reward_clip != "auto"
        return learned_rewards(reward, config.reward_scale, config.reward_clip)

    def __call__(
        self, reward: Floats, terminated: Flags, truncated: Flags, valid: Flags
    ) -> Windows:
        """Return the windows of raw rewards, as the environment gave them."""
        config = self.config
        assert config.n_step is not None
        return n_step_windows(
            self.rewards(reward),
            terminated,
            truncated,
            valid,
            config.n_step,
            self.gamma,
            drop_truncated=self.drop_truncated,
        )


def finish_sequences(slots: TrajectorySlots, slot: int, errors: Floats, counted: Flags) -> None:
    """Write each sequence's first priority into the slot, from the errors [T, rows] of its steps
    after the burn-in.

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
