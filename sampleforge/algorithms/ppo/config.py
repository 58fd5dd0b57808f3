"""The settings of the loss of PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import Checked, check_range


@dataclass(frozen=True)
class PpoLossConfig(Checked):
    advantage: Literal["vtrace", "gae"] | None = None
    """vtrace: off-policy corrected, recomputed per minibatch; gae: once per batch, from the values
    at sampling (default: gae; with --async-rl vtrace)."""
    vtrace_rho: float = 1.0
    """V-trace: upper limit of the importance weight of each TD error, above 0."""
    vtrace_c: float = 1.0
    """V-trace: upper limit of the importance weight that carries later TD errors back, above 0."""
    gae_lambda: float = 0.95
    """Trace decay of GAE and of V-trace's traces, 0 to 1 (1: V-trace as in its paper)."""
    normalise_advantages: bool = True
    """Subtract the mean of a minibatch's advantages and divide by their standard deviation."""
    advantage_floor: float = 0.1
    """With --normalise-returns: advantages are divided by no less than this fraction of the
    standard deviation of the returns, so that the noise of a solved task is not magnified (0: no
    limit)."""
    clip_ratio: float = 0.2
    """Clip the probability ratio to the behaviour policy to [1/(1+e), 1+e], e above 0."""
    value_clip: float | None = None
    """Distance that value predictions may move from those at sampling within a batch, in units of
    the normalised returns (default: no limit)."""
    value_coeff: float = 0.5
    """Weight of the value loss, at least 0."""
    exploration: Literal["entropy", "symmetric_kl"] = "entropy"
    """Bonus that keeps the policy random: its entropy, or the symmetric KL to the uniform
    policy."""
    exploration_coeff: float | None = None
    """Weight of the bonus of --exploration, at least 0 (default: 0.003, for images 0.01; for Box
    actions 0, but with --async-rl and without images 0.003)."""
    noise_correlation: float = 0.7
    """Box actions: every fourth environment explores with noise of this correlation from step to
    step, 0 to 1 (0: all noise is independent)."""
    kl_coeff: float | None = None
    """Weight of a penalty on KL(behaviour, policy), at least 0: it holds a policy where nothing is
    left to learn (default: 0.2; 0 for images, and with --async-rl)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "vtrace_rho vtrace_c clip_ratio value_clip", low=0, above=True)
        check_range(self, "gae_lambda noise_correlation", low=0, high=1)
        check_range(self, "value_coeff exploration_coeff kl_coeff advantage_floor", low=0)
