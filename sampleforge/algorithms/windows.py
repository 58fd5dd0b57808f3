"""The n-step windows of the rewards that are learned from."""

from __future__ import annotations

from dataclasses import dataclass

from sampleforge.ops.n_step import Flags, Floats, Windows, n_step_windows
from sampleforge.ops.rewards import learned_rewards
from sampleforge.replay.config import ReplayConfig


@dataclass(frozen=True)
class MakeWindows:
    """Makes the n-step windows of scaled and clipped rewards; all arrays are [T, rows].

    ``config`` has its defaults resolved; ``drop_truncated``: see
    `sampleforge.ops.n_step.n_step_windows`."""

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
