"""The command `sampleforge compare RUN ...`: aggregate scores of settings with intervals."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sampleforge.cli.flags import parse
from sampleforge.cli.outputs import check_file, check_given_once, check_out, warn
from sampleforge.cli.words import KEY_VALUES, Scalar
from sampleforge.config import Checked, ConfigError, check_range
from sampleforge.runtime.files import to_json, write_atomically
from sampleforge.tools.jobs.jobs import FILE_WIDTH

if TYPE_CHECKING:
    from rich.table import Table

    from sampleforge.tools.compare.comparison import Comparison
    from sampleforge.tools.compare.statistics import Statistic


@dataclass(frozen=True)
class CompareFlags(Checked):
    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")] = ()
    """Run folders: several seeds of one or more settings, in one or more environments."""
    score: Literal["last", "best"] = "last"
    """Evaluation that is the score of a run (see --evaluate-interval of train)."""
    at: int | None = None
    """Use the evaluations up to so many env steps only (default: all)."""
    normalise: Annotated[dict[str, Scalar], KEY_VALUES] = dataclasses.field(default_factory=dict)
    """Returns that count as 0 and as 1, as in CartPole-v1=0..500. Needed if there are several
    environments; Atari games have those of random and human play unless they are given."""
    by: tuple[str, ...] = ()
    """Compare by these settings alone, such as algo or learning-rate (default: by all in which runs
    differ but their seeds)."""
    resamples: int = 5000
    """Resamples of the bootstrap."""
    out: str | None = None
    """Draw the intervals, performance profile and curves into this file: .png, .pdf or .svg."""
    csv: str | None = None
    """Write all estimates into this file, one per line."""
    json: bool = False
    """Print only the last line, the results as one JSON object."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "at", low=0)
        check_range(self, "resamples", low=100)


def run(args: Sequence[str]) -> int:
    """Compare, and print the result as one JSON object in the last line. Raises ConfigError."""
    text = (
        "Compare settings over their seeds and environments: interquartile mean, median, mean, "
        "optimality gap and probability of improvement, with 95% intervals of the stratified "
        "bootstrap (Agarwal et al. 2021). Scores are the runs' evaluations, or, where a run has "
        "none, mean returns of training episodes."
    )
    flags = parse(CompareFlags, args, "sampleforge compare", text)
    if not flags.runs:
        raise ConfigError("There is no run to compare; give run folders, as in compare runs/*")
    paths = [Path(folder) for folder in flags.runs]
    check_given_once(paths, "count as two seeds")
    out = None if flags.out is None else check_out(flags.out)
    estimates = None if flags.csv is None else check_file("--csv", flags.csv)
    if out is not None and estimates is not None and out.resolve() == estimates.resolve():
        raise ConfigError(
            f"--out {flags.out} --csv {flags.csv}: the figure would replace the table; name two "
            "files"
        )
    from sampleforge.tools.compare.comparison import compare
    from sampleforge.tools.compare.scores import ScoreRule, scales
    from sampleforge.tools.plots.curves import read_curves

    runs = [curves for path in paths for curves in read_curves(path, warn)]
    by = tuple(name.removeprefix("--").replace("-", "_") for name in flags.by)
    comparison = compare(
        runs,
        scales((each.env for each in runs), flags.normalise),
        ScoreRule(flags.score, flags.at, by),
        flags.resamples,
    )
    if not flags.json:
        show(comparison)
        for written in (estimates, out):
            if written is not None:
                print(written)
    print(to_json(comparison.plain()), flush=True)  # whatever becomes of the files
    write(comparison, estimates, out)
    return 0


def write(comparison: Comparison, estimates: Path | None, out: Path | None) -> None:
    """Write all estimates as CSV and draw the figure, into the files that were asked for. Raises
    ConfigError if a file cannot be written."""
    from sampleforge.tools.compare.comparison import draw_comparison

    if estimates is not None:
        try:
            write_atomically(estimates, to_csv(comparison).encode())
        except OSError as error:
            raise ConfigError(
                f"--csv {estimates} cannot be written: {error.strerror}; give another file"
            ) from error
    if out is not None:
        draw_comparison(comparison, out)


def show(comparison: Comparison) -> None:
    """Print the tables and the notes."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    for table in tables(comparison):
        console.print(table)
    for note in comparison.notes:
        console.print(note, markup=False, soft_wrap=True)


def tables(comparison: Comparison) -> list[Table]:
    """Return the aggregates, the mean returns in each environment if there are several, and the
    probabilities of improvement if there are several settings."""
    from sampleforge.tools.compare.comparison import TITLES

    settings, pick = comparison.settings, comparison.rule.pick
    until = "" if comparison.rule.at is None else f" up to {comparison.rule.at:,} env steps"
    what = f"{comparison.unit} of the {pick} {comparison.rule.unit}{until}"
    names = list(settings[0].aggregates)
    titles = [TITLES[name] for name in names]
    result = [_table(f"{what}, 95% intervals", "setting", ["seeds", *titles])]
    for setting in settings:
        cells = (cell(setting.aggregates[name]) for name in names)
        result[0].add_row(setting.label, str(setting.scored.seeds), *cells)
    if len(comparison.envs) > 1:
        labels = [setting.label for setting in settings]
        result.append(_table("mean return in each environment", "environment", labels))
        for env in comparison.envs:
            result[-1].add_row(env, *(cell(setting.returns[env]) for setting in settings))
    if comparison.improvements:
        title = "probability that a run of the row is better than one of the column"
        result.append(_table(title, "setting", [setting.label for setting in settings]))
        for one in settings:
            pairs = ((one.label, other.label) for other in settings)
            found = (comparison.improvements.get(pair) for pair in pairs)
            result[-1].add_row(one.label, *("" if p is None else cell(p) for p in found))
    return result


def _table(title: str, first: str, others: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def cell(estimate: Statistic) -> str:
    """Return an estimate as text: its value, and its interval if it has one."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:,.4g}"
    return f"{estimate.value:,.4g} ({estimate.low:,.4g} to {estimate.high:,.4g})"


def to_csv(comparison: Comparison) -> str:
    """Return all estimates as CSV, with a header."""
    text = io.StringIO()
    names = ["setting", "seeds", "environment", "metric", "other", "value", "low", "high"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(comparison.rows())
    return text.getvalue()
