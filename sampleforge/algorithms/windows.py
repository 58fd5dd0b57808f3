"""The n-step windows of the rewards that are learned from, which actors add to their rollouts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sampleforge.ops.q_learning import Flags, Floats, Windows, n_step_windows
from sampleforge.ops.returns import learned_rewards
from sampleforge.replay.config import ReplayConfig
from sampleforge.replay.items import write_items
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.newest import SharedWeights


@dataclass(frozen=True)
class MakeWindows:
    """Makes the n-step windows of scaled and clipped rewards; all arrays are [T, rows].

    ``config`` has its defaults resolved; ``drop_truncated``: see
    `sampleforge.ops.q_learning.n_step_windows`."""

    config: ReplayConfig
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


@dataclass(frozen=True)
class WriteWindows:
    """Adds n-step windows to an actor's complete rollout. An actor has no critics, from which the
    errors of its transitions would follow."""

    config: ReplayConfig
    weights: SharedWeights | None = None

    def __call__(self, slots: TrajectorySlots, slot: int) -> None:
        make = MakeWindows(self.config, slots.shape.drops_truncated)
        reward = slots.reward[slot]
        windows = make(reward, slots.terminated[slot], slots.truncated[slot], slots.valid[slot])
        write_items(slots, slot, windows, np.zeros_like(reward))
