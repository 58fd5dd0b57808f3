"""The configuration of networks: the model, its compilation, and the heads of Q-networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from sampleforge.config import Checked, ConfigError, check_range, typed
from sampleforge.encoding import EMBED_ABOVE, EMBEDDING_SIZE, Encoding, check_kinds, encodings

if TYPE_CHECKING:
    from sampleforge.spec import ArraySpec


@dataclass(frozen=True)
class ModelConfig(Checked):
    flag_prefix: ClassVar[str] = "model."
    """What stands before the names of these flags."""

    encoder: str = "auto"
    """auto (mlp for vectors, nature_cnn for pixels and planes), mlp, dqn_cnn, nature_cnn, doom_cnn,
    impala_resnet, a registered name, or package.module:EncoderClass."""
    encode: dict[str, str] = field(default_factory=dict)
    """How observation leaves are encoded, LEAF=pixels|planes|vector|codes, in place of the rule,
    which the opening lines and check-env explain."""
    embed_above: int | None = EMBED_ABOVE
    """Codes with more values than this are embedded instead of one-hot encoded."""
    embedding_size: int = EMBEDDING_SIZE
    """Numbers that stand for an embedded code."""
    hidden_sizes: tuple[int, ...] | None = None
    """Widths of the MLP encoder's layers (default: 64 64; with sac, crossq and td3 256 256, also of
    the critics)."""
    cnn_features: int = 512
    """Width of the layer after the convolutions of an image encoder."""
    activation: Literal["auto", "tanh", "relu", "elu", "silu"] = "auto"
    """auto: tanh for the MLP (with sac, crossq and td3 relu), relu for the CNNs."""
    layer_norm: bool | None = None
    """Normalise the outputs of the encoder's layers before their activations (LayerNorm;
    convolutions over channels and pixels; default: with pqn)."""
    core: Literal["none", "gru", "lstm"] = "none"
    """Recurrent core between encoder and heads."""
    core_size: int = 256
    """Width of the recurrent core's state."""
    head: str | None = None
    """A policy head of your own, package.module:Class, with other layers or another distribution of
    actions: a class derived from PolicyHead, see docs/models.md (default: a linear layer, and
    categorical or normal distributions)."""
    separate_critic: bool | None = None
    """The value function has its own encoder and core (default: yes without pixels or planes and
    without a core)."""
    normalise_observations: bool | None = None
    """Normalise vectors by their running mean and standard deviation (pixels are divided by their
    largest bound, planes stay as they are, codes are one-hot encoded or embedded; default: yes,
    with sac, crossq and td3 no)."""
    normalise_images: bool | None = None
    """Normalise pixels too, each by its own running mean and standard deviation (default: with
    appo and ddppo)."""
    action_std: Literal["learned", "state"] = "learned"
    """Box actions: one learned standard deviation per dimension, or a function of the state."""
    squash_actions: bool = False
    """Box actions: squash them into the bounds by tanh, instead of clipping them."""
    initial_log_std: float | None = None
    """Box actions: log of the standard deviation at the start (default: 0; with appo and ddppo
    minus half of the log of the number of action elements, so that the noise of a whole action has
    a root mean square norm of 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "cnn_features core_size embed_above embedding_size", low=1)
        check_kinds(self.encode)
        check_range(self, "initial_log_std", low=-10, high=4)  # MIN_LOG_STD, MAX_LOG_STD
        if self.head is not None and not all(self.head.partition(":")):
            raise ConfigError(
                f"{typed('model.head', self.head)}: must be package.module:Class, such as "
                "my_model:BetaHead"
            )
        if any(width < 1 for width in self.widths):
            raise ConfigError(
                f"{typed('model.hidden_sizes', self.hidden_sizes)}: a layer has at least 1 unit; "
                "for no hidden layers leave the list empty"
            )

    def encodings(self, observations: Mapping[str, ArraySpec]) -> dict[str, Encoding]:
        """Return how each observation leaf is encoded. Raises ConfigError for a kind that a leaf
        cannot have."""
        return encodings(
            observations,
            self.encode,
            normalise_vectors=self.normalise_observations is not False,
            normalise_pixels=self.normalise_images is True,
            embed_above=self.embed_above,
            embedding_size=self.embedding_size,
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """``hidden_sizes``, or their default."""
        return (64, 64) if self.hidden_sizes is None else self.hidden_sizes

    @property
    def has_own_code(self) -> bool:
        """Whether the network has an encoder or a head of the user's own."""
        return ":" in self.encoder or self.head is not None

    def has_pixels(self, observations: Mapping[str, ArraySpec]) -> bool:
        """Return whether an observation leaf is encoded as pixels."""
        return any(leaf.kind == "pixels" for leaf in self.encodings(observations).values())

    def has_convolved(self, observations: Mapping[str, ArraySpec]) -> bool:
        """Return whether an observation leaf is encoded as pixels or planes, which the default
        encoder convolves."""
        return any(leaf.is_convolved for leaf in self.encodings(observations).values())

    @property
    def state_size(self) -> int:
        """Floats of recurrent state per row: an LSTM has two parts, and a separate critic has its
        own core."""
        parts = {"none": 0, "gru": 1, "lstm": 2}[self.core]
        return parts * self.core_size * (2 if self.separate_critic else 1)


@dataclass(frozen=True)
class CompilerConfig(Checked):
    compile: bool = False
    """Compile the networks' passes (torch.compile) in the learner (sac, crossq, td3: on the CPU
    alone), and for inference (appo); needs a C++ compiler, and time at the start."""


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
