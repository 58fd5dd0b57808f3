"""Measure how long the web page of `sampleforge serve` takes to show many long runs.

    python benchmarks/serve.py --runs 100 --reports 10000

writes runs into a temporary folder, each with as many reports as given, of about 50 numbers each as
APPO writes them, starts the server in a process of its own, and measures from the outside:

* what a page loads that has just been opened: the list of the runs, and four charts of the eight
  runs that have written last, first of a sample of their reports, then of all;
* the same with one chart of *all* runs, when nothing of the others has been read, and once again;
* the time until every curve was made of all reports;
* the curves after one report more in each run.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlencode

import psutil

NUMBERS = 48
"""Numbers of a report beside env_steps, wall_s and return_mean."""
LINES = 64
"""Different values of these numbers in a run; they repeat."""
CHARTS = ("return_mean", "env_steps_per_s", "loss", "entropy")
SHOWN = 8
"""The charts and the number of runs that a page shows first."""


def report(index: int, numbers: str) -> str:
    """Return line ``index`` of a metrics.jsonl, with ``numbers`` as the end of the object."""
    position = {"env_steps": 2048 * (index + 1), "wall_s": 5.0 * (index + 1)}
    value = json.dumps({**position, "return_mean": 500 * random.random()})
    return f"{value[:-1]}, {numbers}}}\n"


def write_runs(root: Path, runs: int, reports: int) -> int:
    """Write the run folders; return the size of one metrics.jsonl in bytes."""
    names = [f"some_metric_of_a_run_{i}" for i in range(NUMBERS)]
    names[12], names[24], names[36] = CHARTS[1:]
    for run in range(runs):
        folder = root / f"run-{run:03}"
        folder.mkdir()
        (folder / "config.yaml").write_text(f"algo: appo\nenv: CartPole-v1\nseed: {run}\n")
        numbers = [
            json.dumps({name: random.random() for name in names})[1:-1] for _ in range(LINES)
        ]
        file = folder / "metrics.jsonl"
        file.write_text("".join(report(i, numbers[i % LINES]) for i in range(reports)))
    return file.stat().st_size


def append(root: Path, reports: int) -> None:
    """Append one report to each run."""
    for file in root.glob("*/metrics.jsonl"):
        with file.open("a") as out:
            out.write(report(reports, '"loss": 0.5'))


class Page:
    """Asks as the page does."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.stamps: dict[tuple[str, str], str] = {}

    def get(self, path: str, words: list[tuple[str, str]]) -> Any:
        with urllib.request.urlopen(f"{self._url}{path}?{urlencode(words)}") as answer:
            return json.load(answer)

    def runs(self) -> list[str]:
        """Return the ids of all runs."""
        return [run["id"] for run in self.get("api/runs", [])["runs"]]

    def curves(self, runs: list[str], metric: str = CHARTS[0]) -> Mapping[str, Any]:
        """Return the curves of a metric of these runs, or that they have not changed."""
        words = [("metric", metric), ("x", "env_steps")]
        for run in runs:
            words += [("run", run), ("have", self.stamps.get((metric, run), ""))]
        curves: dict[str, Any] = self.get("api/curves", words)["curves"]
        self.stamps |= {(metric, run): curve["stamp"] for run, curve in curves.items()}
        return curves

    def read(self, runs: list[str], metric: str = CHARTS[0]) -> None:
        """Ask for the curves of a metric until they are made of all reports."""
        while not all(curve.get("exact", True) for curve in self.curves(runs, metric).values()):
            pass


class Clock:
    """The seconds since it was made, and those of the processor that the server has used since."""

    def __init__(self, server: int) -> None:
        self._process = psutil.Process(server)
        self._began, self._used = perf_counter(), self._cpu()

    def tell(self, what: str) -> None:
        """Print both."""
        wall, cpu = perf_counter() - self._began, self._cpu() - self._used
        print(f"{what:<36} {wall:6.2f} s   processor of the server {cpu:6.2f} s", flush=True)

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


def measure(page: Page, root: Path, reports: int, server: int) -> None:
    """Measure and print. ``server``: the process id of the server."""
    clock = Clock(server)
    runs = page.runs()
    clock.tell("list of all runs")
    with ThreadPoolExecutor(len(CHARTS)) as pool:
        shown = runs[:SHOWN]
        list(pool.map(lambda metric: page.curves(shown, metric), CHARTS))
        clock.tell("list, and first view of the page")
        list(pool.map(lambda metric: page.read(shown, metric), CHARTS))
        clock.tell("... made of all reports")
    clock = Clock(server)
    page.curves(runs)
    clock.tell("first curves of all runs")
    page.read(runs)
    clock.tell("... made of all reports")
    clock = Clock(server)
    page.stamps.clear()
    page.curves(page.runs())
    clock.tell("list and curves, opened again")
    append(root, reports)
    clock = Clock(server)
    page.curves(page.runs())
    clock.tell("after one report more in each run")


def main() -> None:
    """Write, serve, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--reports", type=int, default=10_000)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        size = write_runs(root, flags.runs, flags.reports)
        print(f"{flags.runs} runs of {flags.reports} reports, {size / 1e6:.1f} MB each")
        words = [sys.executable, "-m", "sampleforge.cli", "serve", folder, "--port", "0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = server.stdout.readline().split(": ")[1].split()[0]
            try:
                measure(Page(url), root, flags.reports, server.pid)
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
