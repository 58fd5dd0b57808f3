"""The measured scores of the presets: ``scores.jsonl`` beside them, which
``benchmarks/preset_scores.py`` writes: a line per preset, and another for each variant of
its environment in which it was measured too."""

from __future__ import annotations

import hashlib
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from sampleforge import presets
from sampleforge.config import ConfigError, from_plain, to_plain
from sampleforge.runtime.files import to_json, write_atomically

NAME = "scores.jsonl"
Key = tuple[str, str, str]
"""Algorithm, preset and variant."""


@dataclass(frozen=True)
class PresetScore:
    """A measurement of a preset. ``variant``: a word for what the flags in ``command`` change of
    its environment, such as "gymnax", the protocol of another library; ``returns``: the mean return
    of the evaluation of each of the ``seeds``, raw; ``seconds``: how long each training took, from
    the start of the command to its end; ``env_steps``: how many each training made; ``episodes``:
    how many each evaluation played; ``settings``: the `digest` of the preset that was measured;
    ``same_at``: a later commit whose code begins the training with the same weights, to the bit."""

    algo: str
    preset: str
    env: str
    seeds: tuple[int, ...]
    returns: tuple[float, ...]
    seconds: tuple[float, ...]
    env_steps: tuple[int, ...]
    episodes: int
    protocol: str
    command: str
    machine: str
    software: str
    commit: str
    date: str
    settings: str
    variant: str = ""
    same_at: str = ""

    def __post_init__(self) -> None:
        lengths = {len(each) for each in (self.seeds, self.returns, self.seconds, self.env_steps)}
        if lengths != {len(self.seeds)} or not self.seeds:
            raise ConfigError(
                f"the score of {self.algo} {self.preset} needs a return, seconds and env steps for "
                f"each of its seeds {self.seeds}"
            )

    @property
    def key(self) -> Key:
        return self.algo, self.preset, self.variant

    @property
    def score(self) -> float:
        """The median of the returns over the seeds."""
        return statistics.median(self.returns)

    @property
    def time(self) -> float:
        """The median of the seconds over the seeds."""
        return statistics.median(self.seconds)

    @property
    def is_current(self) -> bool:
        """Whether the preset still has the settings that were measured."""
        names = presets.preset_names(self.algo)
        return self.preset in names and digest(self.algo, self.preset) == self.settings


def digest(algo: str, preset: str) -> str:
    """Return a short checksum of the settings of a preset."""
    values = json.dumps(presets.preset_values(algo, preset), sort_keys=True, default=str)
    return hashlib.sha256(values.encode()).hexdigest()[:12]


def read_scores() -> dict[Key, PresetScore]:
    """Return the scores by algorithm, preset and variant, in this order. Raises ConfigError if
    the file is damaged."""
    path = _path()
    if not path.is_file():
        return {}
    try:
        scores = [
            from_plain(PresetScore, json.loads(line), str(path))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {error}; install SampleForge again") from error
    return {score.key: score for score in sorted(scores, key=lambda score: score.key)}


def write_score(score: PresetScore) -> None:
    """Add a score to the file, in the place of an earlier one of the same preset and
    variant."""
    scores = {**read_scores(), score.key: score}
    lines = [to_json(to_plain(scores[key])) + "\n" for key in sorted(scores)]
    write_atomically(_path(), "".join(lines).encode())


def _path() -> Path:
    return presets.FOLDER / NAME


def duration(seconds: float) -> str:
    """Return seconds as text, such as "12 s" or "29 min"."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
