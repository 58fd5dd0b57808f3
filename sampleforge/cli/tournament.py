"""The command `sampleforge tournament RUN_DIR ...`: policies play each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from sampleforge.cli.flags import parse
from sampleforge.cli.outputs import check_given_once, check_out
from sampleforge.cli.play_flags import WatchedFlags
from sampleforge.config import ConfigError, check_range, check_seed
from sampleforge.runtime.files import to_json


@dataclass(frozen=True)
class TournamentFlags(WatchedFlags):
    run_dirs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR ...")
    ] = ()
    """Folders of runs on the same multi-agent environment. All policies of each take part."""
    episodes: int = 100
    """Episodes that each pair of players plays; they change sides after each."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Which checkpoint of each policy plays."""
    snapshots: bool = False
    """The snapshots in the pool of self-play runs take part, too."""
    stochastic: bool = True
    """Sample the actions, as in training; off: take the most likely actions."""
    out: str | None = None
    """Draw win rates and ratings into this file: .png, .pdf or .svg."""
    seed: int = 0
    """Seed of the episodes."""


def run(args: Sequence[str]) -> int:
    """Play all games, and print the standings, as one JSON object in the last line. Raises
    ConfigError."""
    text = (
        "Let every pair of policies play episodes on their multi-agent environment; print win "
        "rates and ratings as a table, and as one line of JSON."
    )
    flags = parse(TournamentFlags, args, "sampleforge tournament", text)
    check_range(flags, "episodes", low=1)
    check_seed(flags)
    if not flags.run_dirs:
        raise ConfigError(
            "Give the folders of the runs that play: sampleforge tournament runs/a runs/b"
        )
    run_dirs = [Path(run_dir) for run_dir in flags.run_dirs]
    check_given_once(run_dirs, "play against itself")
    out = None if flags.out is None else check_out(flags.out)
    from sampleforge.tools.tournament.tournament import play_tournament

    with flags.watched("tournament") as (display, alive):
        standings = play_tournament(
            run_dirs,
            flags.episodes,
            which=flags.checkpoint,
            snapshots=flags.snapshots,
            stochastic=flags.stochastic,
            seed=flags.seed,
            trust=flags.trusted,
            display=display,
            alive=alive,
        )
    plain = {"env": standings.env, "episodes": flags.episodes, **standings.plain()}
    if not flags.quiet:
        show(plain)
    print(to_json(plain), flush=True)  # whatever becomes of the figure
    if out is not None:
        from sampleforge.tools.plots.win_rates import draw_win_rates

        draw_win_rates(standings.drawn(), out)
    return 0


def show(plain: Mapping[str, Any]) -> None:
    """Print the standings as a table: ratings, and the win rates of each pair where the terminal is
    wide enough."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    names = plain["players"]
    table = Table(
        title=f"{plain['env']}, {plain['episodes']:,} episodes a pair", title_justify="left"
    )
    for name in ("", "player", "Elo", "± 95%", "win rate"):
        table.add_column(name, justify="left" if name == "player" else "right", no_wrap=True)
    matrix = len(names) * 6 + max(map(len, names)) + 36 <= console.width
    for number in range(len(names)) if matrix else ():
        table.add_column(f"vs {number + 1}", justify="right", no_wrap=True)
    for number, name in enumerate(names):
        against = plain["win_rates"][name]
        cells = [f"{against[o]:.0%}" if o in against else "" for o in names] if matrix else []
        table.add_row(
            f"{number + 1}",
            name,
            f"{plain['elo'][name]:,.0f}",
            f"{1.96 * plain['elo_error'][name]:,.0f}",
            f"{plain['win_rate'][name]:.1%}",
            *cells,
        )
    console.print(table)
