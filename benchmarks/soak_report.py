"""The tables of soak.py."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import table

Row = dict[str, Any]
MIB = 1 << 20
WITHIN_S = 5.0
"""Seconds in which a run is to be going on again after a SIGKILL (median)."""
END_COLUMNS = [
    *("topology", "minutes", "faults", "per hour", "hung", "exit", "left behind", "restarts"),
    *("env steps", "score", "band of calm runs"),
]
AGAIN_COLUMNS = [
    *("topology", "signal", "faults", "alone", "median", "max"),
    *("all", "median", "max", "<= 5 s", "struck again", "run ended"),
]
ROLE_COLUMNS = ["topology", "role", "signal", "alone", "median", "max", "all", "median", "max"]
FLAT_COLUMNS = [
    *("topology", "driver MiB", "descriptors", "threads"),
    *("run MiB", "descriptors", "threads", "/dev/shm names"),
]
BY_HAND = "## What was found"
"""Heading of the last section of soak.md, which is written by hand and kept."""


def report(runs: Sequence[Row], results: Path) -> None:
    """Write soak.md into ``results``."""
    file = results / "soak.md"
    before = file.read_text() if file.exists() else ""
    by_hand = before[before.index(BY_HAND) :] if BY_HAND in before else ""
    file.write_text("\n\n".join(filter(None, [*sections(runs), by_hand.strip()])) + "\n")
    print(file.read_text())


def sections(runs: Sequence[Row]) -> list[str]:
    ends, again, roles, flat, notes = [], [], [], [], []
    names = list(dict.fromkeys(run["topology"] for run in runs))
    for name in names:
        mine = [run for run in runs if run["topology"] == name]
        calm = [run for run in mine if not run["disturbed"]]
        for run in (run for run in mine if run["disturbed"]):
            ends.append(end_cells(run, calm))
            again += again_cells(run)
            flat.append(flat_cells(run))
            notes.append(f"* {name}: `{run['flags']}`")
            roles += role_cells(run)
    return [
        "# Soak: random workers are killed, and the run goes on",
        conditions(runs),
        "## How the runs ended\n\n" + ENDS,
        table(END_COLUMNS, ends),
        "## Seconds until the run was going on again\n\n" + AGAIN,
        table(AGAIN_COLUMNS, again),
        "By role:",
        table(ROLE_COLUMNS, roles),
        "## Memory, descriptors, threads\n\n" + FLAT,
        table(FLAT_COLUMNS, flat),
        "Flags of each topology:\n\n" + "\n".join(dict.fromkeys(notes)),
    ]


ENDS = (
    "Left behind: processes 5 s after the end, and names in /dev/shm. Score: mean of the "
    "training episodes' returns (Ape-X and R2D2: of the evaluations') over the last third of the "
    "run; the band is that of undisturbed runs of as many env steps."
)
AGAIN = (
    "From the signal until env steps, updates and the victim's own counter have advanced since its "
    "replacement or its SIGCONT, read every 20 ms in the run's shared memory. Alone: no other "
    "fault was open from the signal to the recovery; the longer that takes, the likelier is "
    'another fault, so that these are rather the short ones. "All" has those that overlap as well, '
    "and may wait for another worker that is stopped. Struck again: the same worker, before the "
    "run went on. A stopped actor, policy worker, replay worker or evaluator is replaced after "
    "`--env-timeout` (10 s here, 60 s by default), or, in the seconds after its start, after 30 s "
    "more; a rank after `--env-timeout` or `--rank-timeout` (10 s here, 60 s by default). A single "
    "learner is replaced when it has not answered the driver for 300 s: here it goes on with its "
    "SIGCONT after 20 s."
)
FLAT = (
    "Mean of the first quarter of the samples -> mean of the last quarter. The driver is never "
    "killed; the run is the sum over its processes (memory: PSS, which counts shared pages once)."
)


def conditions(runs: Sequence[Row]) -> str:
    """Return the commands with their commits, the machine, the software, and how far the runs are
    from the target."""
    parts: dict[str, dict[str, None]] = {}  # in the order of the runs, each once
    for run in runs:
        about = dict(line.split(maxsplit=1) for line in run["about"].splitlines())
        command = f"`{about['command']}` (commit {about['commit']})"
        parts.setdefault("commands", {})[command] = None
        parts.setdefault("machine", {})[f"{about['machine']}; {about['software']}"] = None
    loads = [run["load"][1] for run in runs]
    disturbed = [run for run in runs if run["disturbed"]]
    faults = [len(run["faults"]) for run in disturbed]
    minutes = [run["ended_s"] / 60 for run in disturbed]
    return "\n".join(
        [
            *(f"* {command}" for command in parts["commands"]),
            *(f"* {machine}" for machine in parts["machine"]),
            f"* The cores are shared with other programs: load over 5 minutes {min(loads):g} to "
            f"{max(loads):g}.",
            "* Of five faults, four are SIGKILL and one is SIGSTOP for "
            f"{disturbed[0]['stop_s']:g} s; {disturbed[0]['mean_gap']:g} s apart on average.",
            "* The target is 300 faults in an hour per topology. These runs took "
            f"{min(minutes):.1f} to {max(minutes):.1f} minutes each, with {min(faults)} to "
            f"{max(faults)} faults.",
        ]
    )


def end_cells(run: Row, calm: Sequence[Row]) -> list[str]:
    faults, minutes = len(run["faults"]), run["ended_s"] / 60
    scores = [other["score"] for other in calm if other["score"] is not None]
    left = len(run["processes_left"]) + len(run["shm_left"])
    restarts = ", ".join(f"{n} {role}" for role, n in (run["restarts_by_role"] or {}).items())
    return [
        run["topology"],
        f"{minutes:.1f}",
        f"{faults}",
        f"{faults / minutes * 60:.0f}",
        run["hung"] or "no",
        f"{run['exit_code']}",
        f"{left}",
        restarts,
        f"{run['env_steps'] or 0:,}",
        f"{run['score']}",
        f"{min(scores):.4g} to {max(scores):.4g} ({len(scores)} runs)" if scores else "",
    ]


def struck_alone(faults: Sequence[Row]) -> list[Row]:
    """Return the faults from which the run went on without another fault in between or before."""

    def interval(fault: Row) -> tuple[float, float]:
        # What was struck again, or outlived the run, is taken to be open for as long as a SIGSTOP.
        seconds = fault["again_s"] if fault["again_s"] is not None else 30.0
        return fault["at"], fault["at"] + seconds

    def overlap(one: Row, other: Row) -> bool:
        (begin, end), (begin_2, end_2) = interval(one), interval(other)
        return begin < end_2 and begin_2 < end

    seen = [fault for fault in faults if fault["again_s"] is not None]
    return [f for f in seen if not any(overlap(f, g) for g in faults if g is not f)]


def again_cells(run: Row) -> list[list[str]]:
    alone = struck_alone(run["faults"])
    rows = []
    for number in ("SIGKILL", "SIGSTOP"):
        own = [f for f in run["faults"] if f["signal"] == number]
        by_itself = [f["again_s"] for f in alone if f["signal"] == number]
        seen = [f["again_s"] for f in own if f["again_s"] is not None]
        soon = sum(seconds <= WITHIN_S for seconds in seen)
        again = sum(fault["overtaken"] for fault in own)
        rows.append(
            [
                run["topology"],
                number,
                f"{len(own)}",
                f"{len(by_itself)}",
                *median_and_max(by_itself),
                f"{len(seen)}",
                *median_and_max(seen),
                f"{soon / len(seen):.0%}" if seen else "",
                f"{again}",
                f"{len(own) - len(seen) - again}",
            ]
        )
    return rows


def median_and_max(seconds: Sequence[float]) -> list[str]:
    return [f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}"] if seconds else ["", ""]


def role_cells(run: Row) -> list[list[str]]:
    alone = struck_alone(run["faults"])
    seen = [fault for fault in run["faults"] if fault["again_s"] is not None]
    rows = []
    for role, number in sorted({(fault["role"], fault["signal"]) for fault in seen}):
        cells = [run["topology"], role, number]
        for faults in (alone, seen):
            own = [f["again_s"] for f in faults if (f["role"], f["signal"]) == (role, number)]
            cells += [f"{len(own)}", *median_and_max(own)]
        rows.append(cells)
    return rows


def samples_of(run: Row) -> list[Row]:
    """Return the samples of a run that are not of its end, when the driver has gone."""
    return [sample for sample in run["samples"] if "driver_fds" in sample]


def flat_cells(run: Row) -> list[str]:
    samples = samples_of(run)
    quarter = max(1, len(samples) // 4)

    def change(name: str, unit: float = 1.0) -> str:
        ends = [samples[:quarter], samples[-quarter:]]
        first, last = (statistics.mean(s.get(name, 0) for s in part) / unit for part in ends)
        return f"{first:.0f} -> {last:.0f}"

    driver = [change("driver_rss", MIB), change("driver_fds"), change("driver_threads")]
    whole = [change("pss", MIB), change("fds"), change("threads"), change("shm")]
    return [run["topology"], *driver, *whole]
