"""The command `sampleforge presets [NAME ...]`: list the presets with their measured scores, or
print some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from sampleforge.cli.flags import parse
from sampleforge.config import ConfigError
from sampleforge.names import nearest
from sampleforge.presets import preset_file, preset_names, preset_values
from sampleforge.tools.jobs.jobs import FILE_WIDTH
from sampleforge.topologies.config import ALGOS

if TYPE_CHECKING:
    from sampleforge.presets.scores import PresetScore

UNMEASURED = "not measured"
WIDE = 100
"""Columns from which the table has the environments."""


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
        named = [(algo, name) for algo, name in presets if name == wanted]
        if not named:
            near = nearest(wanted, [name for _, name in presets])
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(f"Unknown preset {wanted}.{hint} `sampleforge presets` lists them")
        for algo, name in named:
            for score in scores_of(algo, name):
                print(f"# {algo}, {score.env}: {_shown(score)} on {score.date}; {score.protocol}")
            print(preset_file(algo, name).read_text(encoding="utf-8"), end="")
    return 0


def scores_of(algo: str, preset: str) -> list[PresetScore]:
    """Return the measurements of a preset, one per variant of its environment."""
    from sampleforge.presets.scores import read_scores

    scores = read_scores().values()
    return [score for score in scores if (score.algo, score.preset) == (algo, preset)]


def _shown(score: PresetScore) -> str:
    mark = "" if score.is_current else "*"
    return f"{score.score:,.5g}{mark} ({len(score.seeds)})"


def show(presets: Sequence[tuple[str, str]]) -> None:
    """Print the table of presets, each given by algorithm and name; without the environments where
    the terminal has no room for them."""
    from rich.console import Console
    from rich.table import Table

    from sampleforge.presets.scores import duration

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    wide = console.width >= WIDE
    for title in ("algo", "preset", *["environment"] * wide, "score", "time"):
        table.add_column(title, overflow="fold", justify="right" if title == "time" else "left")
    older = False
    for algo, name in presets:
        scores = scores_of(algo, name)
        env = str(preset_values(algo, name).get("env", ""))
        if not scores:
            table.add_row(algo, name, *[env] * wide, UNMEASURED, "")
        for score in scores:
            older = older or not score.is_current
            time = duration(score.time)
            table.add_row(algo, name, *[score.env] * wide, _shown(score), time)
    console.print(table)
    console.print(
        "score: median over the seeds (their number); time: of a training. `sampleforge presets "
        "NAME` prints a preset, and how it was measured.",
        style="dim",
    )
    if older:
        console.print("* measured before the settings of the preset were changed")
