"""The command `sampleforge tune ID ALGO`: search the fastest flags for an environment, or those
that learn most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sampleforge.cli.flags import parse
from sampleforge.cli.train import config_class
from sampleforge.config import ConfigError
from sampleforge.tools.tune.config import TuneConfig


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
    out = Path(flags.out or f"{flags.file_stem}-tuned.yaml")
    if out.exists() or not out.absolute().parent.is_dir():
        problem = "exists already" if out.exists() else "is in no folder that exists"
        raise ConfigError(f"--out {out} {problem}; give another --out")
    if flags.goal == "return":
        from sampleforge.tools.tune.returns import tune_returns

        return tune_returns(flags, out)
    from sampleforge.tools.tune.speed import tune_speed

    return tune_speed(flags, out)
