"""What the heads of a Q-network say of each action, and whether their weights are noisy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import Checked, ConfigError, check_range


@dataclass(frozen=True)
class QHeadsConfig(Checked):
    """``v_min`` and ``v_max`` left open are fitted to the observations with the rest of Ape-X."""

    noisy_nets: bool = False
    """Explore by Gaussian noise on the weights of the heads, whose size is learned; evaluation has
    none."""
    noisy_sigma: float = 0.5
    """Size of that noise at the start, times sqrt(inputs of the layer)."""
    value_distribution: Literal["none", "c51", "quantile"] = "none"
    """Learn how returns are distributed: c51: probabilities of --num-atoms returns from --v-min to
    --v-max (no Huber loss); quantile: --num-atoms quantiles."""
    num_atoms: int = 51
    """Atoms of c51, or quantiles, whose loss costs their square (the paper of the latter: 200)."""
    v_min: float | None = None
    """c51: the least return, of scaled and clipped rewards (none: -10 for images)."""
    v_max: float | None = None
    """c51: the largest return (none: 10 for images)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "noisy_sigma", low=0, above=True)
        check_range(self, "num_atoms", low=2, high=1000)
        check_range(self, "v_min v_max")
        for name in ("v_min", "v_max"):
            value = getattr(self, name)
            if value is not None and self.value_distribution != "c51":
                raise ConfigError(
                    f"{name} is {value:g}, but value_distribution is "
                    f"{self.value_distribution!r}, which has no atoms to spread; use 'c51', or "
                    f"leave {name} out"
                )
        if self.v_min is not None and self.v_max is not None and self.v_min >= self.v_max:
            raise ConfigError(
                f"v_min is {self.v_min:g}, but must be less than v_max {self.v_max:g}: the atoms "
                "lie between them; lower v_min or raise v_max"
            )
