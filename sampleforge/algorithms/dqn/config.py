"""The settings of Q-learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import ConfigError, check_range
from sampleforge.models.config import QHeadsConfig
from sampleforge.replay.config import ReplayConfig


@dataclass(frozen=True)
class DqnConfig(QHeadsConfig, ReplayConfig):
    """Q-learning, with or without a recurrent core. The defaults of options that are None depend on
    the observations (`sampleforge.topologies.pairings.dqn_defaults`)."""

    double: bool = True
    """Double Q-learning: the online network chooses the action that the target network values."""
    dueling: bool = True
    """Separate heads for the state's value and the actions' advantages."""
    head_size: int | None = None
    """Width of a hidden layer in each head, 0 for no such layer (default: 512 for images, else
    0)."""
    huber_delta: float = 1.0
    """TD errors beyond this value count linearly (0: all count squared)."""
    value_rescaling: bool | None = None
    """Learn squashed values h(Q) instead of clipping rewards (default: with a recurrent core)."""
    optimiser: Literal["auto", "adam", "rmsprop"] = "auto"
    """rmsprop: centred, as in the paper (auto: rmsprop for images without a core, else adam)."""
    learning_rate: float | None = None
    """Step size of the optimiser (default: 6.25e-5 for images, with a recurrent core 1e-4; for
    grids that are not pixels, and with a core, 5e-4; else 2e-3)."""
    lr_schedule: Literal["constant", "linear", "cooldown"] = "constant"
    """linear: falls to zero at the stop condition; cooldown: in the last quarter before it."""
    optimiser_eps: float | None = None
    """Added to the denominator of the step (default: for images 3.9e-4 with rmsprop, 1.5e-4 with
    adam, 1e-3 with a recurrent core; else 1e-6)."""
    rmsprop_decay: float = 0.95
    """Decay rate of RMSProp's average of squared gradients, 0 to 1."""
    max_grad_norm: float = 40.0
    """Norm that gradients are clipped to (0: no clipping)."""
    target_update_interval: int | None = None
    """Gradient steps between copies of the network to the target network (default: 2500 for images,
    else 100)."""
    normalise_returns: bool | None = None
    """Learn returns of rewards divided by their running root mean square, so that rewards of any
    size fit (default: yes, except for clipped rewards and for c51)."""
    epsilon_base: float | None = None
    """Environment i of N explores with epsilon = base ** (1 + exponent * i / (N - 1)), 0 to 1
    (default: 0.4, or 0 with --noisy-nets)."""
    epsilon_exponent: float = 7.0
    """The exponent in that formula, at least 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "target_update_interval", low=1)
        check_range(self, "epsilon_base", low=0, high=1)
        check_range(self, "rmsprop_decay", low=0, high=1)
        check_range(self, "head_size huber_delta max_grad_norm", low=0)
        check_range(self, "epsilon_exponent", low=0)
        check_range(self, "learning_rate optimiser_eps", low=0, above=True)
        if self.normalise_returns and self.value_distribution == "c51":
            raise ConfigError(
                "--normalise-returns --value-distribution c51: returns of c51 lie between --v-min "
                "and --v-max in the rewards' own unit, and cannot be normalised; leave out "
                "--normalise-returns, or use --value-distribution quantile"
            )

    @property
    def base_epsilon(self) -> float:
        """``epsilon_base``, or its default."""
        if self.epsilon_base is not None:
            return self.epsilon_base
        return 0.0 if self.noisy_nets else 0.4
