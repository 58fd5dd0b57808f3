"""The shape of the actor-critic network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import Checked, ConfigError, check_range


@dataclass(frozen=True)
class ModelConfig(Checked):
    encoder: str = "auto"
    """auto (mlp for vectors, nature_cnn for images), mlp, nature_cnn, doom_cnn, impala_resnet, a
    registered name, or package.module:EncoderClass."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the MLP encoder's layers."""
    cnn_features: int = 512
    """Width of the layer after the convolutions of an image encoder."""
    activation: Literal["auto", "tanh", "relu", "elu", "silu"] = "auto"
    """auto: tanh for the MLP, relu for the CNNs."""
    core: Literal["none", "gru", "lstm"] = "none"
    """Recurrent core between encoder and heads."""
    core_size: int = 256
    """Width of the recurrent core's state."""
    separate_critic: bool | None = None
    """An encoder and a core of its own for the value function (none: without images and without a
    core)."""
    normalise_observations: bool = True
    """Running mean and standard deviation for observations of floats or bytes (images are divided
    by 255, categories one-hot encoded)."""
    action_std: Literal["learned", "state"] = "learned"
    """Box actions: one learned standard deviation per dimension, or a function of the state."""
    squash_actions: bool = False
    """Box actions: tanh-squashed into the bounds, instead of clipped by the environment."""
    initial_log_std: float = 0.0
    """Box actions: log of the standard deviation at the start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "cnn_features core_size", low=1)
        check_range(self, "initial_log_std")
        if any(width < 1 for width in self.hidden_sizes):
            raise ConfigError(
                f"hidden_sizes is {self.hidden_sizes}, but a layer has at least 1 unit; "
                "for no hidden layers leave the list empty"
            )

    @property
    def state_size(self) -> int:
        """Floats of recurrent state per row: LSTM has two parts, a separate critic its own core."""
        parts = {"none": 0, "gru": 1, "lstm": 2}[self.core]
        return parts * self.core_size * (2 if self.separate_critic else 1)


@dataclass(frozen=True)
class CompilerConfig(Checked):
    compile: bool = False
    """Compile the model's passes (torch.compile), in the learner and where actions are computed:
    needs a C++ compiler, and time at the start."""
