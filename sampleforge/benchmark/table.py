"""A benchmark's result as people read it."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sampleforge.benchmark.verdict import CHANGES_LEARNING
from sampleforge.reporting.progress import number

WIDTH = 100
OTHERS = 0.15
"""Share of the cores from which on other programs make the figures doubtful."""
OTHERS_WARNING = "other programs are running here: measure again on an idle machine"


def render(result: dict[str, Any]) -> str:
    """Rates, stage table, queues, processes and verdict, `WIDTH` columns wide."""
    out = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    out.print(_rates(result))
    out.print(_stages(result))
    for line in _lines(result):
        out.print(line, highlight=False, markup=False)
    assert isinstance(out.file, io.StringIO)
    lines = [line.rstrip() for line in out.file.getvalue().splitlines()]
    return "\n".join(line for line in lines if line)


def sentence(result: dict[str, Any]) -> str:
    """One line: what was reached, and what to do about it."""
    trained, fraction = result["trained_per_s"], result["fraction_of_peak"]
    parts = [f"{number(result['sampled_per_s'])} env steps/s sampled"]
    if trained is not None:
        parts.append(f"{number(trained)} trained")
    parts.append(f"{number(result['frames_per_s'])} frames/s")
    if fraction is not None:
        parts.append(f"{fraction:.0%} of the simulator's own rate")
    found = result["verdict"]
    hint = f"; try {found['flags'][0]}" if found["flags"] else ""
    warned = "".join(f". Warning: {text}" for text in found["warnings"])
    return f"{', '.join(parts)}. Bottleneck: {found['bottleneck']}{hint}{warned}"


def _rates(result: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(_title(result))
    for name in ("env steps/s", "trained/s", "frames/s"):
        table.add_column(name, justify="right")
    peak = (result["peak_sampled_per_s"], None, result["peak_frames_per_s"])
    if result["peak_frames_per_s"] is not None:
        table.add_row("simulator alone", *map(number, peak))
    names = ("sampled_per_s", "trained_per_s", "frames_per_s")
    table.add_row("system", *(number(result[name]) for name in names))
    if result["fraction_of_peak"] is not None:
        table.add_row("fraction of peak", "", "", f"{result['fraction_of_peak']:.1%}")
    return table


def _title(result: dict[str, Any]) -> str:
    return f"{result['env']}, {result['topology']}, over {result['seconds']:.1f} s"


def _stages(result: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("stage", no_wrap=True)
    table.add_column("us per env step", justify="right")
    table.add_column("of its time", justify="right")
    table.add_column("")
    for stage in result["stages"]:
        means = stage["means"]
        if stage["name"] == "emulate" and result["peak_emulate_us"] is not None:
            means += f" (alone: {result['peak_emulate_us']:.2f} us)"
        mark = " <--" if stage["name"] == result["verdict"]["bottleneck"] else ""
        table.add_row(
            stage["name"],
            f"{stage['us']:.2f}",
            f"{stage['role']} {stage['share']:4.0%}",
            means + mark,
        )
    return table


def _lines(result: dict[str, Any]) -> Iterable[str]:
    """What is no table."""
    fill, lag, setting = result["queue_fill"], result["policy_lag"], result["setting"]
    apart = not setting["ranks"]  # nothing is queued between a rank's actor and its learner
    if apart:
        yield (
            f"slots      {fill['free']:.0%} free, {fill['ready']:.0%} waiting for the learner "
            "(means over time)"
        )
    if apart and lag["mean"] is not None:
        yield (
            f"policy lag mean {lag['mean']:.1f}, max {lag['max']:.0f} versions; mean "
            f"{lag['batches_mean']:.1f}, max {lag['batches_max']:.1f} updates of a batch"
        )
    busy = ", ".join(f"{name} {cores:.2f}" for name, cores in result["busy_cores"].items())
    total, others = sum(result["busy_cores"].values()), result["others_cores"]
    yield f"cores used {total:.2f} of {setting['cores']}: {busy}"
    yield f"           {result['idle_cores']:.2f} idle, {others:.2f} used by others"
    if others > OTHERS * setting["cores"]:
        yield f"           {OTHERS_WARNING}"
    found = result["verdict"]
    for warning in found["warnings"]:
        yield f"warning    {warning}"
    yield f"bottleneck {found['bottleneck']}: {found['reason']}"
    advice = ", or ".join(map(_advice, found["flags"]))
    yield f"try        {advice or 'nothing: more cores or a faster simulator would help'}"


def _advice(flag: str) -> str:
    changes = flag.split()[0] in CHANGES_LEARNING
    return f"{flag} (may change learning)" if changes else flag
