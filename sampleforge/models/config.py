"""The configuration of networks: the model, its compilation, and the heads of Q-networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sampleforge.config import Checked, ConfigError, check_range, typed


@dataclass(frozen=True)
class ModelConfig(Checked):
    flag_prefix: ClassVar[str] = "model."
    """What stands before the names of these flags."""

    encoder: str = "auto"
    """auto (mlp for vectors, nature_cnn for images), mlp, dqn_cnn, nature_cnn, doom_cnn,
    impala_resnet, a registered name, or package.module:EncoderClass."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the MLP encoder's layers."""
    cnn_features: int = 512
    """Width of the layer after the convolutions of an image encoder."""
    activation: Literal["auto", "tanh", "relu", "elu", "silu"] = "auto"
    """auto: tanh for the MLP, relu for the CNNs."""
    layer_norm: bool = False
    """Normalise the outputs of the encoder's layers before their activations (LayerNorm;
    convolutions over channels and pixels)."""
    core: Literal["none", "gru", "lstm"] = "none"
    """Recurrent core between encoder and heads."""
    core_size: int = 256
    """Width of the recurrent core's state."""
    separate_critic: bool | None = None
    """The value function has its own encoder and core (default: yes without images and without a
    core)."""
    normalise_observations: bool = True
    """Normalise observations of floats or bytes by their running mean and standard deviation
    (images are divided by 255, categories one-hot encoded)."""
    normalise_images: bool = False
    """Normalise images too, each pixel by its own running mean and standard deviation."""
    action_std: Literal["learned", "state"] = "learned"
    """Box actions: one learned standard deviation per dimension, or a function of the state."""
    squash_actions: bool = False
    """Box actions: squash them into the bounds by tanh, instead of clipping them."""
    initial_log_std: float = 0.0
    """Box actions: log of the standard deviation at the start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "cnn_features core_size", low=1)
        check_range(self, "initial_log_std")
        if any(width < 1 for width in self.hidden_sizes):
            raise ConfigError(
                f"{typed('model.hidden_sizes', self.hidden_sizes)}: a layer has at least 1 unit; "
                "for no hidden layers leave the list empty"
            )

    @property
    def state_size(self) -> int:
        """Floats of recurrent state per row: an LSTM has two parts, and a separate critic has its
        own core."""
        parts = {"none": 0, "gru": 1, "lstm": 2}[self.core]
        return parts * self.core_size * (2 if self.separate_critic else 1)


@dataclass(frozen=True)
class CompilerConfig(Checked):
    compile: bool = False
    """Compile the model's passes (torch.compile) in the learner and for inference; needs a C++
    compiler, and time at the start."""


@dataclass(frozen=True)
class QHeadsConfig(Checked):
    """The heads of a Q-network. The defaults of ``v_min`` and ``v_max`` depend on the observations;
    they are resolved with those of Ape-X."""

    noisy_nets: bool = False
    """Explore by Gaussian noise of a learned size on the weights of the heads; evaluation uses no
    noise."""
    noisy_sigma: float = 0.5
    """Initial size of that noise, times sqrt(inputs of the layer)."""
    value_distribution: Literal["none", "c51", "quantile"] = "none"
    """Learn the distribution of returns. c51: probabilities of --num-atoms returns from --v-min to
    --v-max (no Huber loss); quantile: --num-atoms quantiles."""
    num_atoms: int = 51
    """Number of atoms of c51, or of quantiles, whose loss costs their square (200 in their
    paper)."""
    v_min: float | None = None
    """c51: the lowest return, of scaled and clipped rewards (default: -10 for images)."""
    v_max: float | None = None
    """c51: the highest return, of scaled and clipped rewards (default: 10 for images)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "noisy_sigma", low=0, above=True)
        check_range(self, "num_atoms", low=2, high=1000)
        check_range(self, "v_min v_max")
        for name in ("v_min", "v_max"):
            value = getattr(self, name)
            if value is not None and self.value_distribution != "c51":
                raise ConfigError(
                    f"{typed(name, value)}: --value-distribution {self.value_distribution} has no "
                    "atoms to spread; use --value-distribution c51 or leave it out"
                )
        if self.v_min is not None and self.v_max is not None and self.v_min >= self.v_max:
            raise ConfigError(
                f"--v-min {self.v_min:g}: must be less than --v-max {self.v_max:g}, because the "
                "atoms lie between them"
            )
