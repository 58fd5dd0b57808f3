"""The complete config of a run, for each topology; an algorithm on it has a class of its own.

It inherits the config dataclasses of the parts of a run. An object gets the whole config, typed as
the config of its own part. Nothing is the config of a topology alone, so those classes are made
without == and repr, half of the time that a class of 100 fields takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from sampleforge.algorithms.config import LearnerConfig
from sampleforge.config import ConfigError, typed
from sampleforge.data.config import InputConfig, RecordConfig, StoredConfig
from sampleforge.env.config import EnvConfig
from sampleforge.models.config import CompilerConfig, ModelConfig
from sampleforge.replay.config import ReplayConfig
from sampleforge.rollouts.sequence_shape import SequenceShape
from sampleforge.runtime.config import RunConfig
from sampleforge.topologies.exclusions import check_exclusions
from sampleforge.topologies.population_config import PbtConfig
from sampleforge.workers.config import (
    EvaluatorConfig,
    LearnerProcessConfig,
    LearnersConfig,
    PoliciesConfig,
    RanksConfig,
    SamplerConfig,
    WorkersConfig,
)

if TYPE_CHECKING:
    from sampleforge.topologies.pairings.critics_config import CrossqConfig as CrossqConfig
    from sampleforge.topologies.pairings.critics_config import SacConfig as SacConfig
    from sampleforge.topologies.pairings.critics_config import Td3Config as Td3Config
    from sampleforge.topologies.pairings.ddppo_config import DdppoConfig as DdppoConfig
    from sampleforge.topologies.pairings.dqn_config import ApexConfig as ApexConfig
    from sampleforge.topologies.pairings.marwil_config import MarwilConfig as MarwilConfig
    from sampleforge.topologies.pairings.ppo_config import AppoConfig as AppoConfig
    from sampleforge.topologies.pairings.pqn_config import PqnConfig as PqnConfig


@dataclass(frozen=True, repr=False, eq=False)
class SlotsRunConfig(
    CompilerConfig,
    LearnerConfig,
    LearnersConfig,
    PbtConfig,
    PoliciesConfig,
    SamplerConfig,
    EvaluatorConfig,
    RecordConfig,
    RunConfig,
    EnvConfig,
):
    """What all algorithms have whose actors hand rollouts to learners, in slots."""

    algo: ClassVar[str]
    pairing: ClassVar[str]
    topology: ClassVar[str] = "slots"
    model: ModelConfig = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_exclusions(self)
        _check_population(self)


@dataclass(frozen=True, repr=False, eq=False)
class ReplayRunConfig(
    ReplayConfig,
    LearnersConfig,
    PbtConfig,
    PoliciesConfig,
    SamplerConfig,
    EvaluatorConfig,
    InputConfig,
    RecordConfig,
    RunConfig,
    EnvConfig,
):
    """What all algorithms have whose learners draw from a replay that actors fill."""

    algo: ClassVar[str]
    pairing: ClassVar[str]
    topology: ClassVar[str] = "replay"
    rollout: int = 50
    model: ModelConfig = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_exclusions(self)
        _check_population(self)
        self._check_sequences()
        if self.datasets and self.record is not None and not self.is_live:
            raise ConfigError(
                f"{typed('input', self.input)} {typed('record', self.record)}: without live "
                "nothing is sampled that could be recorded; leave out one of the two"
            )

    @property
    def sequences(self) -> SequenceShape | None:
        """The shape of the sequences that are drawn for a recurrent core; None: single transitions
        are drawn."""
        if self.model.core == "none":
            return None
        stride = self.sequence_length - self.sequence_overlap
        return SequenceShape(self.sequence_length, stride, self.burn_in)

    @property
    def begins_early(self) -> bool:
        """Whether actors hand over the rollouts that are in progress when the run has the env steps
        with which learning begins (--learning-starts). Sequences overlap from rollout to rollout,
        and the goals of --her are those of whole episodes; --serial steps whole rollouts."""
        return not (self.serial or self.her or self.sequences)

    def _check_sequences(self) -> None:
        length, overlap, burn_in = self.sequence_length, self.sequence_overlap, self.burn_in
        if self.model.core == "none":
            for name in ("sequence_length", "sequence_overlap", "burn_in"):
                if getattr(self, name) != getattr(ReplayConfig, name):
                    raise ConfigError(
                        f"{typed(name, getattr(self, name))}: without a recurrent core single "
                        "transitions are drawn; leave it out, or add --model.core gru or lstm"
                    )
        elif overlap >= length:
            raise ConfigError(
                f"--sequence-overlap {overlap}: a sequence has only {length} steps "
                "(--sequence-length) and must begin later than the one before; lower it"
            )
        elif burn_in > overlap:
            raise ConfigError(
                f"--burn-in {burn_in}: a sequence shares only {overlap} steps (--sequence-overlap) "
                f"with the one before, so the other {burn_in - overlap} would never be learned "
                "from; lower it or raise --sequence-overlap"
            )


@dataclass(frozen=True, repr=False, eq=False)
class RanksRunConfig(
    LearnerConfig,
    RanksConfig,
    SamplerConfig,
    EvaluatorConfig,
    RecordConfig,
    RunConfig,
    EnvConfig,
):
    """What all algorithms have whose ranks each sample and learn."""

    algo: ClassVar[str]
    pairing: ClassVar[str]
    topology: ClassVar[str] = "ranks"
    model: ModelConfig = field(default_factory=ModelConfig)
    # Defaults that differ from those of the parts:
    async_rl: bool = False
    worker_niceness: int = 0
    adam_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_exclusions(self)
        for name, reason in _NOT_FOR_RANKS.items():
            value = getattr(self, name)
            if value != RanksRunConfig.__dataclass_fields__[name].default:
                raise ConfigError(f"{typed(name, value)}: with {self.algo} {reason}; leave it out")
        if self.inference == "worker":
            raise ConfigError(
                f"--inference worker: with {self.algo} a rank computes its own actions; leave it "
                "out"
            )
        if self.serial and (self.num_ranks or 1) > 1:
            raise ConfigError(
                f"--serial --num-ranks {self.num_ranks}: serial mode is one process, and ranks "
                "wait for each other; use 1 rank, or leave out --serial"
            )


@dataclass(frozen=True, repr=False, eq=False)
class StoredRunConfig(
    InputConfig,
    StoredConfig,
    LearnerProcessConfig,
    EvaluatorConfig,
    WorkersConfig,
    RunConfig,
    EnvConfig,
):
    """What all algorithms have that learn from recorded data alone."""

    algo: ClassVar[str]
    pairing: ClassVar[str]
    topology: ClassVar[str] = "stored"
    model: ModelConfig = field(default_factory=ModelConfig)
    # Without actors, only evaluations say how good the policy is:
    evaluate_interval: int | None = 50_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_exclusions(self)
        for name in ("benchmark", "sampler_only"):
            if getattr(self, name):
                raise ConfigError(
                    f"{typed(name, True)}: marwil has no actors whose speed could be measured; "
                    "leave it out"
                )
        if self.input and self.is_live:
            raise ConfigError(
                f"{typed('input', self.input)}: marwil learns from recorded data only, without "
                "actors; name datasets, or use apex, which mixes data with live experience"
            )
        if self.shuffle_buffer != InputConfig.shuffle_buffer:
            raise ConfigError(
                f"{typed('shuffle_buffer', self.shuffle_buffer)}: marwil has all data in memory, "
                "and each pass is in a random order of its own; leave it out"
            )
        if self.sequence_length is not None and self.model.core == "none":
            raise ConfigError(
                f"--sequence-length {self.sequence_length}: without a recurrent core single steps "
                "are learned from; leave it out, or add --model.core gru or lstm"
            )


_NOT_FOR_RANKS = {
    "num_workers": "each of the --num-ranks ranks steps its own envs",
    "num_policy_workers": "a rank computes its own actions",
    "async_rl": "a rank learns from its own, newest rollouts",
    "num_batches_to_accumulate": "a rank learns from its own, newest rollouts",
    "max_worker_restarts": "ranks are replaced, --max-rank-restarts times",
    "sampler_only": "sampling and learning take turns",
}
"""Flags that do not apply to ranks, and why."""


def _check_population(config: SlotsRunConfig | ReplayRunConfig) -> None:
    """Raise ConfigError for a population, or a schedule, that the config leaves no room for."""
    policies, reference = config.num_policies, config.pbt_reference
    if config.pbt and policies == 1:
        raise ConfigError(
            "--pbt --num-policies 1: the members of a population copy each other; give "
            "--num-policies 2 or more"
        )
    if config.pbt and reference is not None and reference >= policies:
        raise ConfigError(
            f"--pbt-reference {reference}: the policies are numbered from 0 to {policies - 1} "
            f"(--num-policies {policies})"
        )


SamplingConfig = SlotsRunConfig | ReplayRunConfig | RanksRunConfig
"""The config of an algorithm that samples experience."""
AnyConfig = SamplingConfig | StoredRunConfig
"""The config of any algorithm."""

_HOMES = {
    "appo": "sampleforge.topologies.pairings.ppo_config:AppoConfig",
    "pqn": "sampleforge.topologies.pairings.pqn_config:PqnConfig",
    "apex": "sampleforge.topologies.pairings.dqn_config:ApexConfig",
    "sac": "sampleforge.topologies.pairings.critics_config:SacConfig",
    "crossq": "sampleforge.topologies.pairings.critics_config:CrossqConfig",
    "td3": "sampleforge.topologies.pairings.critics_config:Td3Config",
    "ddppo": "sampleforge.topologies.pairings.ddppo_config:DdppoConfig",
    "marwil": "sampleforge.topologies.pairings.marwil_config:MarwilConfig",
}


class _ConfigClasses(Mapping[str, type[Any]]):
    """A class is made when it is first asked for: that takes 4 ms, and a run has one."""

    def __getitem__(self, algo: str) -> type[Any]:
        found: type[Any] = resolve_name(_HOMES[algo])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


ALGOS: Mapping[str, type[Any]] = _ConfigClasses()
"""Name of an algorithm -> its config class."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return the config class of this name, of one of `ALGOS`."""
        for home in _HOMES.values():
            if home.endswith(f":{name}"):
                return resolve_name(home)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
