"""The command `sampleforge tune ID ALGO`: search the fastest flags for an environment, or those
that learn most."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sampleforge.cli.flags import parse
from sampleforge.cli.outputs import check_file
from sampleforge.cli.train import config_class
from sampleforge.config import ConfigError
from sampleforge.run.folder.kinds import STUDY
from sampleforge.tools.tune.config import TuneConfig, folder_of_search


@dataclass(frozen=True)
class TuneFlags(TuneConfig):
    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ID")]
    """Environment, as for --env."""
    algo: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ALGO")]
    """Algorithm, as for train."""
    goal: Annotated[Literal["speed", "return"], tyro.conf.arg(name="for")] = "speed"
    """speed: flags with which the same learning takes less time; return: settings that learn more,
    such as the learning rate, by many short trainings (docs/sweeps.md)."""


def run(args: Sequence[str]) -> int:
    """Search, print a table and write the file. Raises ConfigError."""
    text = (
        "Find the fastest flags for an environment on this machine by short benchmarks, or with "
        "--for return the settings that learn most within a budget of minutes."
    )
    flags = parse(TuneFlags, args, "sampleforge tune", text)
    config_class(flags.algo)  # raises ConfigError for an unknown name
    out = _out(flags)
    if flags.goal == "return":
        from sampleforge.tools.tune.returns import tune_returns

        return tune_returns(flags, out)
    from sampleforge.tools.tune.speed import tune_speed

    return tune_speed(flags, out)


def _out(flags: TuneFlags) -> Path:
    """Return the file to write. Raises ConfigError for one that exists, unless a search that goes
    on has written it, and for one that cannot be written."""
    out = check_file("--out", flags.out or f"{flags.file_stem}-tuned.yaml")
    if not out.exists():
        return out
    by = folder_of_search(flags, out) if flags.goal == "return" else None
    if flags.folder is None:
        from sampleforge.run.screen.messages import shown

        hint = f", or --folder {shlex.quote(shown(by))} to go on with its search" if by else ""
        raise ConfigError(f"--out {out} exists already; give another --out{hint}")
    if by == Path(flags.folder).resolve() and (by / STUDY).is_file():
        return out
    raise ConfigError(
        f"--out {out} exists already and does not say that `{flags.for_return}` in "
        f"{flags.folder} has written it; give another --out"
    )
