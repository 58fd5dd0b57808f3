"""The search of `sampleforge tune --for speed`: its trials are short benchmarks, each in a process
of its own."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sampleforge.config import typed
from sampleforge.run.folder.stored_config import read_yaml
from sampleforge.run.screen.progress import number
from sampleforge.run.screen.progress_bar import progress_bar
from sampleforge.runtime.interrupts import Interrupts
from sampleforge.tools.benchmark.table import OTHERS, OTHERS_WARNING
from sampleforge.tools.tune.config import TuneConfig
from sampleforge.tools.tune.search import PINNED, Flags, Search, Trial, flags_of
from sampleforge.tools.tune.written import write_tuned

SECONDS = 5.0
"""Default length of a measurement, not counting start and warm-up."""
STOP_GRACE = 5.0
"""Seconds within which a trial must end after Ctrl-C."""
KEPT = (
    "The flags keep what shapes the learning: precision, env rows over all workers, rollout, "
    "batch, minibatch, epochs. --allow-learning-changes tunes these, too."
)
CHANGED = (
    "precision, batch_size, num_workers and num_envs_per_worker may change what is learned, not "
    "only how fast: compare the returns before you rely on them."
)


def tune_speed(asked: TuneConfig, out: Path) -> int:
    """Search, print a table and write ``out``; return the exit code. After Ctrl-C the best flags
    so far are written, and the exit code is 130."""
    with tempfile.TemporaryDirectory(prefix="sampleforge-tune-") as scratch:
        return Tuner(asked, Path(scratch)).run(out)


class Tuner:
    """Runs the trials one after another, each as a benchmark in a process of its own."""

    def __init__(self, asked: TuneConfig, scratch: Path) -> None:
        self._asked = asked
        self._scratch = scratch
        self._console = Console(highlight=False)
        self._trial: subprocess.Popen[str] | None = None
        self._interrupts = Interrupts(self._kill)

    def run(self, out: Path) -> int:
        """Run the search and write ``out``; return the exit code. After Ctrl-C the best flags so
        far are written, and the exit code is 130."""
        search = Search(self._run_trial, self._asked.allow_learning_changes)
        with self._interrupts:
            self._interrupts.defer()
            self._search(search)
        if search.best is None:
            reason = search.done[0].error if search.done else "interrupted before the first trial"
            self._console.print(f"nothing found: {reason}", markup=False, soft_wrap=True)
            return self._interrupts.exit_code or 1
        self._print_results(search)
        self._write(out, search.best)
        return self._interrupts.exit_code

    def _search(self, search: Search) -> None:
        with progress_bar(self._console) as bar:
            task = bar.add_task("defaults", total=None)
            order: list[str] = []
            for trial in search.trials():
                if self._interrupts.received is not None:
                    search.done.remove(trial)
                    return
                bar.console.print(_line(trial, search), highlight=False, markup=False)
                if trial.result is not None:
                    order = order or search.order(trial.setting)
                done = 1 + order.index(trial.tuned) if trial.tuned in order else 1
                text = f"after {trial.tuned}"
                bar.update(task, completed=done, total=1 + len(order), description=text)

    def _run_trial(self, tuned: str, flags: Flags) -> Trial:
        """Run one benchmark. An interrupted trial has no result."""
        folder = self._scratch / str(len(list(self._scratch.iterdir())))
        with subprocess.Popen(
            self._command(flags, folder),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            self._trial = process
            errors = self._wait(process)
            self._trial = None
        if process.returncode == 0:
            return Trial(tuned, flags, _result(folder))
        last = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        return Trial(tuned, flags, error=last[0])

    def _wait(self, process: subprocess.Popen[str]) -> str:
        """Wait for the end of a trial and return its stderr; end the trial on an interrupt."""
        left: float | None = None
        while True:
            try:
                return process.communicate(timeout=0.1)[1]
            except subprocess.TimeoutExpired:
                pass
            if self._interrupts.received is None:
                continue
            if left is None:
                left = STOP_GRACE
                process.send_signal(signal.SIGTERM)
            left -= 0.1
            if left < 0:
                process.kill()

    def _kill(self) -> None:
        if self._trial is not None:
            self._trial.kill()

    def _command(self, flags: Flags, folder: Path) -> list[str]:
        asked = self._asked
        words = [sys.executable, "-m", "sampleforge", "train", asked.algo]
        words += ["--env", asked.env, "--run-dir", str(folder), "--quiet", "--benchmark"]
        words += [
            "--no-benchmark-peak",
            "--benchmark-seconds",
            str(asked.seconds_per_trial or SECONDS),
        ]
        words += ["--preset", asked.preset] if asked.preset else []
        return [*words, *shlex.split(_words(flags) if flags else "")]

    def _print_results(self, search: Search) -> None:
        """Print all trials, the fastest first, and the flags of the best."""
        table = Table(box=box.SIMPLE_HEAD)
        for name in ("sampled/s", "trained/s", "bottleneck", "flags"):
            table.add_column(name, justify="right" if name.endswith("/s") else "left")
        for trial in sorted(search.done, key=lambda trial: -trial.score):
            if trial.result is None:
                table.add_row("-", "-", "failed", f"{_told(trial, search)}: {trial.error}")
                continue
            rates = (number(trial.result[name]) for name in ("sampled_per_s", "trained_per_s"))
            table.add_row(*rates, trial.result["verdict"]["bottleneck"], _told(trial, search))
        self._console.print(table)
        assert search.best is not None
        defaults = search.done[0].score
        gain = f", {search.best.score / defaults:.2f}x the defaults" if defaults else ""
        if self._interrupts.received is not None:
            self._console.print("interrupted: this is the best so far")
        best = _words(flags_of(search.best))
        self._console.print(f"best{gain}: {best}", soft_wrap=True)
        self._console.print(self._about_learning, soft_wrap=True)
        results = [trial.result for trial in search.done if trial.result is not None]
        if (
            max(result["others_cores"] for result in results)
            > OTHERS * search.best.setting["cores"]
        ):
            self._console.print(OTHERS_WARNING, soft_wrap=True)

    def _write(self, out: Path, best: Trial) -> None:
        """Write the best flags as a YAML file for --config."""
        head = (
            f"# Fastest on {best.setting['cores']} cores: {best.score:,.0f} env steps/s trained, "
        )
        head += f"by `sampleforge tune`.\n# {self._about_learning}\n"
        write_tuned(self._console, self._asked, out, head, flags_of(best))

    @property
    def _about_learning(self) -> str:
        """What the flags mean for the learning."""
        return CHANGED if self._asked.allow_learning_changes else KEPT


def _line(trial: Trial, search: Search) -> str:
    """Return the line that is printed when a trial ends."""
    if trial.result is None:
        return f"{'failed':>12}  {_told(trial, search)}: {trial.error}"
    mark = " *" if trial is search.best else "  "
    return f"{trial.score:>10,.0f}/s{mark} {_told(trial, search)}"


def _told(trial: Trial, search: Search) -> str:
    """Return the flags of a trial that differ from the defaults."""
    first = search.done[0]
    default = {} if first.result is None else first.setting
    return _words({n: v for n, v in trial.flags.items() if n not in default or default[n] != v})


def _words(flags: Flags) -> str:
    """Return flags as they are typed on the command line."""
    return " ".join(typed(name, value) for name, value in flags.items()) or "(the defaults)"


def _result(folder: Path) -> dict[str, Any]:
    """Return the contents of a trial's benchmark.json. Its ``setting`` also has the flags that
    shape the learning, as the run has resolved them."""
    result: dict[str, Any] = json.loads((folder / "benchmark.json").read_text())
    config = read_yaml(folder / "config.yaml")
    setting = {**result["setting"], **{name: config.get(name) for name in PINNED}}
    if setting["ranks"]:
        setting["num_ranks"] = setting["num_workers"]
    return {**result, "setting": setting}
