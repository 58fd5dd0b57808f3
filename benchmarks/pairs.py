"""Throughput of runs side by side: `sampleforge train` with several sets of flags, in turn.

    python benchmarks/pairs.py --rounds 5 --run "one: appo --env CartPole-v1" \\
        --run "four: appo --env CartPole-v1 --num-policies 4 --num-envs-per-worker 4"

Each round starts every run once, in the opposite order of the round before. A figure is taken
between two reports, of which the first comes ``--begin`` seconds after the first env steps, so that
the start of the workers does not count. The table has the median of each run, and the median ratio
to the first run within the rounds, with its 95% bootstrap interval. ``--tree LABEL=FOLDER`` starts
the run of that label from another checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from machine import HERE, describe, table


class Measured(NamedTuple):
    """Env steps per second, CPU microseconds per env step, and MiB of all processes (PSS)."""

    rate: float
    cpu_us: float
    memory_mib: float


def last_report(metrics: Path) -> dict[str, float]:
    """Return the last whole report of a run that may still be starting."""
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    whole = [json.loads(line) for line in lines[-20:] if line.endswith("\n")]
    reports: list[dict[str, float]] = [line for line in whole if "env_steps_per_s" in line]
    return reports[-1] if reports else {"wall_s": 0.0, "env_steps": 0.0}


def tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def cpu_seconds(process: psutil.Process) -> float:
    seconds = 0.0
    for one in tree(process):
        with suppress(psutil.Error):
            seconds += sum(one.cpu_times()[:2])
    return seconds


def memory_mib(process: psutil.Process) -> float:
    """Return the proportional set size of a run's processes: shared pages count once."""
    size = 0
    for one in tree(process):
        with suppress(psutil.Error):
            size += one.memory_full_info().pss
    return size / 2**20


def measured(flags: Sequence[str], checkout: Path, begin: float, seconds: float) -> Measured:
    """Return the figures of one run of ``seconds``, which count after ``begin`` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        until = ["--train-for-seconds", str(begin + seconds + 5), "--run-dir", str(run_dir)]
        command = [sys.executable, str(checkout / "train.py"), *flags, *until]
        path = os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])
        more = ["--report-interval", "1", "--quiet"]
        environment = {**os.environ, "PYTHONPATH": path}
        started = subprocess.Popen([*command, *more], cwd=folder, env=environment)
        process, marks = psutil.Process(started.pid), []
        for at in (begin, begin + seconds):
            while (report := last_report(run_dir / "metrics.jsonl"))["wall_s"] < at:
                if started.poll() is not None:
                    raise SystemExit(f"the run ended with exit code {started.returncode}")
                time.sleep(0.02)
            marks.append((report, cpu_seconds(process)))
        memory = memory_mib(process)
        started.terminate()
        started.wait()
    (first, cpu_before), (last, cpu_after) = marks
    steps = last["env_steps"] - first["env_steps"]
    rate = steps / (last["wall_s"] - first["wall_s"])
    return Measured(rate, (cpu_after - cpu_before) / steps * 1e6, memory)


def interval(ratios: Sequence[float]) -> str:
    """Return the median of paired ratios with its 95% bootstrap interval."""
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(draws, 1), [2.5, 97.5])
    return f"{statistics.median(ratios):.3f} ({low:.3f}-{high:.3f})"


def labelled(text: str) -> tuple[str, list[str]]:
    label, colon, flags = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} has no label: write 'LABEL: FLAGS'")
    return label.strip(), shlex.split(flags)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", action="append", type=labelled, required=True, metavar="L: FLAGS")
    parser.add_argument("--tree", action="append", default=[], metavar="LABEL=FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--begin", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=6.0)
    args = parser.parse_args()
    runs: dict[str, list[str]] = dict(args.run)
    folders = {label: Path(folder) for label, _, folder in (t.partition("=") for t in args.tree)}
    print(describe("torch", "gymnasium"), end="\n\n", flush=True)
    found: dict[str, list[Measured]] = {label: [] for label in runs}
    for number in range(args.rounds):
        for label in list(runs)[:: 1 if number % 2 == 0 else -1]:
            checkout = folders.get(label, HERE.parent)
            found[label].append(measured(runs[label], checkout, args.begin, args.seconds))
            print(f"round {number}, {label}: {found[label][-1]}", file=sys.stderr, flush=True)
    base, *_ = found.values()
    rows = []
    for label, own in found.items():
        rate, cpu_us, memory = (statistics.median(column) for column in zip(*own, strict=True))
        rates = [one.rate / other.rate for one, other in zip(own, base, strict=True)]
        cpus = [one.cpu_us / other.cpu_us for one, other in zip(own, base, strict=True)]
        cells = [f"{rate:,.0f}", interval(rates), f"{cpu_us:.2f}", interval(cpus), f"{memory:.0f}"]
        rows.append([label, *cells])
    header = ["run", "env steps/s", "ratio", "CPU us per env step", "ratio", "MiB (PSS)"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
