"""The result of a benchmark as text."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sampleforge.run.reports.system import MIB
from sampleforge.run.reports.verdict import CHANGES_LEARNING
from sampleforge.run.screen.progress import number
from sampleforge.runtime.machine import human_bytes

WIDTH = 100
OTHERS = 0.15
"""Share of the cores used by other programs from which on the figures are doubtful."""
OTHERS_WARNING = "other programs use this machine: measure again when it is idle"


def render(result: dict[str, Any]) -> str:
    """Return rates, stage table, queues, processes and verdict as text, `WIDTH` columns wide."""
    out = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    out.print(_rates(result))
    out.print(_stages(result))
    for line in _lines(result):
        out.print(line, highlight=False, markup=False)
    assert isinstance(out.file, io.StringIO)
    lines = [line.rstrip() for line in out.file.getvalue().splitlines()]
    return "\n".join(line for line in lines if line)


def sentence(result: dict[str, Any]) -> str:
    """Return the result in one line: rates, bottleneck and the flag to try first."""
    trained, fraction = result["trained_per_s"], result["fraction_of_peak"]
    parts = [f"{number(result['sampled_per_s'])} env steps/s sampled"]
    if trained is not None:
        parts.append(f"{number(trained)} trained")
    parts.append(f"{number(result['frames_per_s'])} frames/s")
    if fraction is not None:
        parts.append(f"{fraction:.0%} of the simulator's own rate")
    verdict = result["verdict"]
    hint = f"; try {verdict['flags'][0]}" if verdict["flags"] else ""
    warned = "".join(f". Warning: {text}" for text in verdict["warnings"])
    return f"{', '.join(parts)}. Bottleneck: {verdict['bottleneck']}{hint}{warned}"


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
        if stage["name"] == "env step" and result["peak_env_step_us"] is not None:
            means += f" (alone: {result['peak_env_step_us']:.2f} us)"
        mark = " <--" if stage["name"] == result["verdict"]["bottleneck"] else ""
        table.add_row(
            stage["name"],
            f"{stage['us']:.2f}",
            f"{stage['role']} {stage['share']:4.0%}",
            means + mark,
        )
    return table


def _lines(result: dict[str, Any]) -> Iterable[str]:
    """Yield the lines below the tables."""
    fill, lag, setting = result["queue_fill"], result["policy_lag"], result["setting"]
    has_queue = not setting["ranks"]  # a rank learns from its own rollouts
    if has_queue:
        yield (
            f"queue      {fill['ready']:.0%} of the rollout slots wait for the learner, "
            f"{fill['free']:.0%} are free for actors (means over time)"
        )
    if has_queue and lag["mean"] is not None:
        yield (
            f"policy lag mean {lag['mean']:.1f}, max {lag['max']:.0f} versions; mean "
            f"{lag['batches_mean']:.1f}, max {lag['batches_max']:.1f} updates of a batch"
        )
    busy = ", ".join(f"{name} {cores:.2f}" for name, cores in result["busy_cores"].items())
    total, others = sum(result["busy_cores"].values()), result["others_cores"]
    yield f"cores used {total:.2f} of {setting['cores']}: {busy}"
    yield f"           {result['idle_cores']:.2f} idle, {others:.2f} used by other programs"
    policy = "" if result["policy_busy"] is None else f"{result['policy_busy']:.0%} of their time"
    if policy and result["rows_per_pass"] is not None:
        policy += f", {result['rows_per_pass']:.1f} rows a pass"
    for device, use in result["gpus"].items():
        load = "" if use["percent"] is None else f"computes {use['percent']:.0f}% of the time, "
        beside = f"; policy workers are busy {policy}" if policy else ""
        memory = human_bytes(use["memory_mib"] * MIB)
        yield f"GPU {device:<7}{load}{memory} of its memory in use{beside}"
    if others > OTHERS * setting["cores"]:
        yield f"           {OTHERS_WARNING}"
    verdict = result["verdict"]
    for warning in verdict["warnings"]:
        yield f"warning    {warning}"
    yield f"bottleneck {verdict['bottleneck']}: {verdict['reason']}"
    advice = ", or ".join(map(_advice, verdict["flags"]))
    yield f"try        {advice or 'nothing: more cores or a faster simulator would help'}"


def _advice(flag: str) -> str:
    changes = flag.split()[0] in CHANGES_LEARNING
    return f"{flag} (may change learning)" if changes else flag
