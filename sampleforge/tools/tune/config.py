"""The configuration of a search of flags (TuneConfig), and the file with what it has found. It
imports no torch.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from sampleforge.config import Checked, ConfigError, UserError, check_range, typed
from sampleforge.presets import preset_values
from sampleforge.runtime.files import write_atomically

if TYPE_CHECKING:
    from rich.console import Console


FOR_RETURN = ("minutes", "jobs", "folder")
FOR_SPEED = ("allow_learning_changes",)
"""Flags of one of the two searches."""


@dataclass(frozen=True)
class TuneConfig(Checked):
    """``goal``: what the flags are for; ``algo``: as for train."""

    env: str
    algo: str
    goal: Literal["speed", "return"] = "speed"
    allow_learning_changes: bool = False
    """For speed: also tune what shapes the learning: numbers of env rows, precision, batch size.
    The fastest of these may learn nothing; off: only how the work is divided."""
    minutes: float | None = None
    """For return: length of the search (default: 30)."""
    seconds_per_trial: float | None = None
    """Seconds of each measurement, not counting start and warm-up (default: 5); for return, of each
    training (default: those of the search in --folder, else a twentieth of the search, at least
    15)."""
    jobs: int | None = None
    """For return: trainings at a time, which share the cores (default: 1)."""
    folder: str | None = None
    """For return: folder of the sweep that searches (default: a new one in sweeps). With that of an
    earlier search of the same kind the search goes on."""
    preset: str | None = None
    """Preset to tune (default: none)."""
    out: str | None = None
    """File to write, for --config (default: <env>-<algo>-tuned.yaml in the working directory). It
    must be new, unless an earlier search in --folder has written it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "seconds_per_trial minutes", low=0, above=True)
        check_range(self, "jobs", low=1)
        others = FOR_SPEED if self.goal == "return" else FOR_RETURN
        for name in others:
            if (value := getattr(self, name)) != getattr(TuneConfig, name):
                wrong = "return" if self.goal == "speed" else "speed"
                raise ConfigError(
                    f"{typed(name, value)} is for --for {wrong}, not for --for {self.goal}; leave "
                    "out one of the two"
                )

    @property
    def file_stem(self) -> str:
        """Environment and algorithm as the beginning of a file's name."""
        return f"{re.sub(r'[^A-Za-z0-9._]+', '-', self.env)}-{self.algo}"

    def preset_values(self) -> dict[str, Any]:
        """Return the settings of the preset, none without one. Raises ConfigError if there is no
        such preset."""
        return preset_values(self.algo, self.preset) if self.preset else {}

    def sweep_folder(self) -> AbstractContextManager[Path]:
        """Return a context with the folder of the search for return; see `given_or_new`."""
        from sampleforge.run.folder.new_folder import given_or_new

        return given_or_new(self.folder, Path("sweeps"), f"{self.file_stem}-tune", "--folder")

    @property
    def for_return(self) -> str:
        """The command of a search for return, as the head of the file that it writes names it."""
        return f"sampleforge tune {self.env} {self.algo} --for return"


FOLDER = "# The search is in "
"""Begins the line with the folder of the search, as JSON, seen from that of the file."""


def folder_of_search(asked: TuneConfig, out: Path) -> Path | None:
    """Return the folder of the search for return, of the same environment and algorithm, that has
    written ``out``; None if none has."""
    try:
        lines = out.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    head = list(takewhile(lambda line: line.startswith("#"), lines))
    seen = [line.removeprefix(FOLDER) for line in head if line.startswith(FOLDER)]
    if not seen or not any(f"`{asked.for_return}`" in line for line in head):
        return None
    with suppress(ValueError, TypeError):
        return Path(os.path.normpath(out.resolve().parent / json.loads(seen[0])))
    return None


def write_tuned(
    console: Console,
    asked: TuneConfig,
    out: Path,
    head: str,
    values: Mapping[str, Any],
    folder: Path | None = None,
) -> None:
    """Write the flags that were found as a YAML file for --config, after the comment ``head``, and
    print the command that trains with it. ``folder``: of the search, if it can go on. Raises
    UserError, with the flags, if the file cannot be written."""
    if folder is not None:
        seen = os.path.relpath(folder.resolve(), out.resolve().parent)
        head += f"{FOLDER}{json.dumps(seen)}\n"
    text = yaml.safe_dump({"algo": asked.algo, "env": asked.env, **values}, sort_keys=False)
    try:
        write_atomically(out, (head + text).encode())
    except OSError as error:
        raise UserError(
            f"--out {out} cannot be written: {error.strerror or error}; what was found is:\n{text}"
        ) from error
    words = ["sampleforge", "train", asked.algo]
    words += ["--preset", asked.preset] if asked.preset else []
    console.print(f"Written to {out}. To train with it:", soft_wrap=True, markup=False)
    print(shlex.join([*words, "--config", str(out)]))
