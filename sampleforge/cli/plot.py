"""The command `sampleforge plot RUN_DIR ...`: draw the learning curves of runs as one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sampleforge.cli.flags import parse
from sampleforge.config import ConfigError

FORMATS = (".png", ".pdf", ".svg")


@dataclass(frozen=True)
class PlotFlags:
    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR ...")
    ] = ()
    """Run folders; all runs are drawn into the same axes."""
    out: str = "runs.png"
    """File to write: .png, .pdf or .svg."""


def run(args: Sequence[str]) -> int:
    """Draw the figure. Raises ConfigError."""
    text = "Return against env steps and time, throughput and policy lag of one or several runs."
    flags = parse(PlotFlags, args, "sampleforge plot", text)
    out = Path(flags.out)
    if not flags.runs:
        raise ConfigError("There is no run to draw; give a run folder: sampleforge plot runs/a")
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {flags.out}: must end in one of {', '.join(FORMATS)}")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {flags.out}: there is no folder {out.parent}")
    from sampleforge.reporting.plots import draw

    draw([Path(run_dir) for run_dir in flags.runs], out)
    print(out)
    return 0
