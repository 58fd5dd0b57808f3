"""The settings of learning from recorded actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import check_range
from sampleforge.data.config import StoredConfig


@dataclass(frozen=True)
class ImitationConfig(StoredConfig):
    """Behaviour cloning and advantage-weighted learning from recorded data. The defaults of options
    that are None depend on the observations (`sampleforge.topologies.pairings.marwil_defaults`)."""

    advantage_exponent: float = 1.0
    """Weight each recorded action by exp(this * A / c), A being its advantage and c the moving norm
    of the advantages; 0 is behaviour cloning, in which all actions count alike."""
    max_advantage_weight: float = 20.0
    """Largest weight of an action, at least 1."""
    advantage_norm_decay: float = 0.99
    """Decay rate of the moving average of squared advantages per gradient step, 0 to 1."""
    value_coeff: float = 0.5
    """Weight of the value loss, at least 0. Behaviour cloning learns no value function."""
    learning_rate: float | None = None
    """Step size of Adam (default: 3e-4 for images, else 1e-3)."""
    lr_schedule: Literal["constant", "linear", "cooldown"] = "constant"
    """linear: falls to zero at the stop condition; cooldown: in the last quarter before it."""
    adam_eps: float = 1e-5
    """Added to the denominator of Adam's step, above 0."""
    max_grad_norm: float = 10.0
    """Norm that gradients are clipped to (0: no clipping)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "max_advantage_weight", low=1)
        check_range(self, "advantage_norm_decay", low=0, high=1)
        check_range(self, "advantage_exponent value_coeff max_grad_norm", low=0)
        check_range(self, "learning_rate adam_eps", low=0, above=True)
