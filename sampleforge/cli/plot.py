"""The command `sampleforge plot FOLDER ...`: the figure that fits what is in the folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sampleforge.cli.flags import parse
from sampleforge.cli.outputs import check_given_once, check_out, warn
from sampleforge.config import ConfigError, check_range, typed

CURVES_ONLY = ("group", "smooth", "log_x", "log_y")
"""Flags of the learning curves."""


def _curves(folders: Sequence[Path], out: Path, flags: PlotFlags) -> None:
    from sampleforge.tools.plots.curves import Look, draw

    draw(folders, out, Look(flags.smooth, flags.log_x, flags.log_y, flags.group), warn)


def _lineage(folders: Sequence[Path], out: Path) -> None:
    from sampleforge.tools.plots.lineage import draw_lineage

    draw_lineage(folders[0], out)


def _self_play(folders: Sequence[Path], out: Path) -> None:
    from sampleforge.tools.plots.win_rates import draw_self_play

    draw_self_play(folders[0], out)


def _sweep(folders: Sequence[Path], out: Path) -> None:
    from sampleforge.tools.plots.sweep import draw_sweep, picture

    draw_sweep(picture(folders[0]), out)


FIGURES = {
    "lineage": ("lineage.jsonl", _lineage),
    "self-play": ("self_play.json", _self_play),
    "sweep": ("study.db", _sweep),
}
"""Name -> the file by which a folder is recognised, and what draws it, in the order in which a
folder is tried; `curves` is for any run folder."""


@dataclass(frozen=True)
class PlotFlags:
    folders: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER ...")
    ] = ()
    """Run folders, all of whose curves are drawn into the same axes; or one folder of a
    population, of self-play or of a sweep."""
    out: str = "runs.png"
    """File to write: .png, .pdf or .svg."""
    figure: Literal["auto", "curves", "lineage", "self-play", "sweep"] = "auto"
    """curves: learning curves; lineage: who copied whom in a population, its returns and
    hyperparameters; self-play: win rates against the snapshots of the policy, and ratings;
    sweep: parallel coordinates, importances and results (auto: by what is in the folder)."""
    group: bool = True
    """Learning curves: draw the runs that differ only in their seeds as their mean, with its 95%
    interval; off: each run by itself."""
    smooth: float = 0.0
    """Learning curves: weight of the exponential moving average over the reports, such as 0.9 (0:
    not smoothed)."""
    log_x: bool = False
    """Learning curves: logarithmic env steps and time."""
    log_y: bool = False
    """Learning curves: logarithmic returns, losses and rates; of values on both sides of zero the
    middle of the axis is linear."""


def run(args: Sequence[str]) -> int:
    """Draw the figure. Raises ConfigError."""
    text = (
        "Draw one or several runs (returns, losses, throughput, policy lag; the mean over the "
        "seeds of a setting), a population (lineage, returns, hyperparameters), self-play (win "
        "rates, ratings), or a sweep."
    )
    flags = parse(PlotFlags, args, "sampleforge plot", text)
    folders = [Path(folder) for folder in flags.folders]
    if not folders:
        raise ConfigError("There is no run to draw; give a run folder: sampleforge plot runs/a")
    check_range(flags, "smooth", low=0, high=0.9999)
    out = check_out(flags.out)
    name: str = flags.figure
    if name == "auto":
        fitting = [each for each, (file, _) in FIGURES.items() if (folders[0] / file).is_file()]
        name = fitting[0] if fitting and len(folders) == 1 else "curves"
    if name == "curves":
        check_given_once(folders, "count as two seeds")
        _curves(folders, out, flags)
    else:
        _check(folders, name, flags)
        FIGURES[name][1](folders, out)
    print(out)
    return 0


def _check(folders: Sequence[Path], name: str, flags: PlotFlags) -> None:
    """Raise ConfigError unless ``folders`` is one folder that the figure ``name`` fits, and no flag
    of learning curves is given."""
    if len(folders) > 1:
        raise ConfigError(f"--figure {name}: draws one folder, and {len(folders)} were given")
    file, _ = FIGURES[name]
    if not (folders[0] / file).is_file():
        raise ConfigError(
            f"--figure {name}: there is no {file} in {folders[0]}; leave it out to "
            "draw learning curves"
        )
    for flag in CURVES_ONLY:
        if (value := getattr(flags, flag)) != getattr(PlotFlags, flag):
            raise ConfigError(
                f"{typed(flag, value)} is for learning curves, not for --figure {name}; leave it "
                "out, or add --figure curves"
            )
