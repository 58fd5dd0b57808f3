"""The configuration of recordings and of training from data. It imports no torch, so that flags
parse fast."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sampleforge.config import Checked, ConfigError, check_range, typed

LIVE = "live"
"""The name of the environment among the sources of experience."""


@dataclass(frozen=True)
class RecordConfig(Checked):
    record: str | None = None
    """Folder into which a recorder writes all that the actors sample, as a dataset in Minari's
    format, behind the episodes that it has (default: nothing is recorded)."""
    record_max_gb: float = 20.0
    """Gigabytes after which recording ends; training goes on."""
    record_segment_mb: float = 128.0
    """Megabytes after which a segment of the dataset, which is in memory, is written, and at the
    latest after a minute: a killed run loses the open segment and the unfinished episodes."""
    record_compression: Literal["none", "lzf", "gzip"] = "none"
    """Compression of the recorded observations: it takes time of a core. If the recorder is not
    fast enough, rollouts are left out and counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "record_max_gb record_segment_mb", low=0, above=True)
        for name in ("record_max_gb", "record_segment_mb", "record_compression"):
            value = getattr(self, name)
            if self.record is None and value != getattr(RecordConfig, name):
                raise ConfigError(
                    f"{typed(name, value)}: nothing is recorded; add --record DIR, or leave it out"
                )


class Source(NamedTuple):
    """A source of experience: `LIVE` or a dataset, and its share of the experience."""

    name: str
    weight: float


@dataclass(frozen=True)
class InputConfig(Checked):
    input: tuple[str, ...] = ()
    """Where the experience comes from: live (the environment), the folder of a dataset or the id of
    one of Minari's, or several of these, each with =WEIGHT, such as live=0.5 data/expert=0.5
    (default: live). Without live no actor samples, and --env is for the evaluator."""
    shuffle_buffer: int = 50_000
    """Env steps of a dataset from whose episodes the next one is drawn; they are read in a random
    order, again in each pass."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "shuffle_buffer", low=1)
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ConfigError(f"{typed('input', self.input)}: a source is given twice")
        if not self.datasets:  # live alone is the default
            object.__setattr__(self, "input", ())
        if not self.datasets and self.shuffle_buffer != InputConfig.shuffle_buffer:
            raise ConfigError(
                f"{typed('shuffle_buffer', self.shuffle_buffer)}: --input names no dataset; leave "
                "it out"
            )

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources, with weights that add up to 1. Raises ConfigError for a wrong weight."""
        given = [_source(text, self.input) for text in self.input] or [Source(LIVE, 1.0)]
        total = sum(source.weight for source in given)
        return tuple(Source(source.name, source.weight / total) for source in given)

    @property
    def datasets(self) -> tuple[Source, ...]:
        """The sources that are datasets."""
        return tuple(source for source in self.sources if source.name != LIVE)

    @property
    def is_live(self) -> bool:
        """Whether the environment is a source."""
        return len(self.datasets) < len(self.sources)


def _source(text: str, given: tuple[str, ...]) -> Source:
    """Return the source and its weight (1 if none is given) of ``NAME=WEIGHT``."""
    match = re.fullmatch(r"(.+)=([^=/]*)", text)
    if match is None:
        return Source(text, 1.0)
    try:
        weight = float(match[2])
    except ValueError:
        weight = -1.0
    if not 0 < weight < float("inf"):
        raise ConfigError(
            f"{typed('input', given)}: the weight {match[2]!r} of {match[1]} must be a number "
            "above 0, such as live=0.5 data/expert=0.5"
        )
    return Source(match[1], weight)


@dataclass(frozen=True)
class StoredConfig(Checked):
    """How a learner reads recorded data that are in memory."""

    batch_size: int | None = None
    """Recorded env steps per gradient step (default: 512 for images, else 256)."""
    sequence_length: int | None = None
    """With a recurrent core: consecutive steps of an episode that are learned from together,
    beginning with a state of zero (default: 32)."""
    gamma: float = 0.99
    """Discount per env step, 0 to 1."""
    reward_scale: float = 1.0
    """Factor of rewards for learning."""
    reward_clip: float | None = None
    """Clip scaled rewards to +- this value for learning (default: no clipping)."""
    learner_threads: int | None = None
    """Threads of the learner on a CPU (default: 1; with convolutions one per core, at
    most 4 for planes that are no pixels)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "batch_size sequence_length learner_threads", low=1)
        check_range(self, "gamma", low=0, high=1)
        check_range(self, "reward_scale reward_clip", low=0, above=True)
