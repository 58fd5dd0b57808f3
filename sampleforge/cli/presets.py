"""The command `sampleforge presets [NAME ...]`: list the presets with their measured scores, or
print some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from sampleforge.cli.flags import parse
from sampleforge.config import ConfigError, nearest
from sampleforge.presets import preset_file, preset_names, preset_values
from sampleforge.tools.jobs.jobs import FILE_WIDTH
from sampleforge.topologies.config import ALGOS

UNMEASURED = "not measured"


@dataclass(frozen=True)
class PresetFlags:
    names: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]")
    ] = ()
    """Presets to print (default: list them all)."""


def run(args: Sequence[str]) -> int:
    """List the presets or print those that are named. Raises ConfigError for an unknown name."""
    text = (
        "List the presets with their measured scores, or print some: sampleforge train ALGO "
        "--preset NAME uses one."
    )
    flags = parse(PresetFlags, args, "sampleforge presets", text)
    presets = [(algo, name) for algo in ALGOS for name in preset_names(algo)]
    if not flags.names:
        show(presets)
    for wanted in flags.names:
        paths = [preset_file(algo, name) for algo, name in presets if name == wanted]
        if not paths:
            near = nearest(wanted, [name for _, name in presets])
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(f"Unknown preset {wanted}.{hint} `sampleforge presets` lists them")
        for path in paths:
            print(path.read_text(encoding="utf-8"), end="")
    return 0


def show(presets: Sequence[tuple[str, str]]) -> None:
    """Print the table of presets, each given by algorithm and name."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from sampleforge.presets.scores import duration, read_scores

    scores = read_scores()
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("topology", "preset", "environment", "score", "time", "date", "protocol"):
        table.add_column(title, overflow="fold")
    older = False
    for algo, name in presets:
        env = str(preset_values(algo, name).get("env", ""))
        of_this = [score for score in scores.values() if (score.algo, score.preset) == (algo, name)]
        if not of_this:
            table.add_row(algo, name, env, UNMEASURED, "", "", "")
        for score in of_this:
            mark = "" if score.is_current else "*"
            older = older or not score.is_current
            seeds = len(score.seeds)
            shown = f"{score.score:,.5g}{mark} ({seeds} seed{'s' if seeds > 1 else ''})"
            time = duration(score.time)
            table.add_row(algo, name, score.env, shown, time, score.date, score.protocol)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    console.print(table)
    console.print("score: median over the seeds; time: median of the trainings", style="dim")
    if older:
        console.print("* measured before the settings of the preset were changed")
