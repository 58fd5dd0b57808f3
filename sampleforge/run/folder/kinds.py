"""The kinds of folders with results: of a run, of a sweep and of a population of runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from sampleforge.config import ConfigError

STUDY, POPULATION = "study.db", "population.json"
"""The files by which the folders of sweeps and of populations of runs are recognised."""
Kind = Literal["run", "sweep", "population of runs"]
_KINDS: dict[str, Kind] = {
    "config.yaml": "run",
    "sweep.yaml": "sweep",
    STUDY: "sweep",
    POPULATION: "population of runs",
}
"""File -> the kind of folder that has it."""


def check_kind(folder: Path, kind: Kind, flag: str) -> None:
    """Raise ConfigError if ``folder`` is of another kind than the one that is to be written there:
    each would overwrite results of the other. ``flag``: the flag that names the folder."""
    for name, other in _KINDS.items():
        if other != kind and os.path.exists(folder / name):
            raise ConfigError(
                f"{flag} {folder} is the folder of a {other} (it has {name}), not of a {kind}; "
                "give another folder"
            )
