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
    """Run folders, which are drawn into the same axes, or the folder of one sweep."""
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
    from sampleforge.populations.folder import is_sweep
    from sampleforge.reporting.plots import draw

    paths = [Path(run_dir) for run_dir in flags.runs]
    sweeps = [path for path in paths if is_sweep(path)]
    if not sweeps:
        draw(paths, out)
    elif len(paths) > 1:
        raise ConfigError(f"{sweeps[0]} is the folder of a sweep, which is drawn alone")
    else:
        from sampleforge.populations.sweep import picture
        from sampleforge.reporting.sweep_plot import draw_sweep

        draw_sweep(picture(paths[0]), out)
    print(out)
    return 0
