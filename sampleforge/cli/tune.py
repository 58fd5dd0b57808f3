"""The command `sampleforge tune ID ALGO`: search the fastest flags for an environment."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from sampleforge.cli.flags import parse
from sampleforge.cli.train import config_class
from sampleforge.config import Checked, ConfigError, check_range

if TYPE_CHECKING:
    from sampleforge.cli.tuning import Flags, Search, Trial

STOP_GRACE = 5.0
"""Seconds within which a trial must end after Ctrl-C."""
LEARNING = (
    "precision, batch_size, num_workers and num_envs_per_worker may change what is learned, not "
    "only how fast: compare the returns before you rely on them."
)


@dataclass(frozen=True)
class TuneFlags(Checked):
    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ID")]
    """Environment, as for --env."""
    algo: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ALGO")]
    """Algorithm, as for train."""
    seconds_per_trial: float = 5.0
    """Seconds of each measurement, not counting start and warm-up."""
    preset: str | None = None
    """Preset to tune (default: none)."""
    out: str | None = None
    """File to write, for --config (default: <env>-<algo>-tuned.yaml in the working directory)."""


def run(args: Sequence[str]) -> int:
    """Search, print a table and write the file. Raises ConfigError."""
    text = "Find the fastest flags for an environment on this machine by short benchmarks."
    flags = parse(TuneFlags, args, "sampleforge tune", text)
    check_range(flags, "seconds_per_trial", low=0, above=True)
    config_class(flags.algo)  # raises ConfigError for an unknown name
    env = re.sub(r"[^A-Za-z0-9._]+", "-", flags.env)
    out = Path(flags.out or f"{env}-{flags.algo}-tuned.yaml")
    if out.exists() or not out.absolute().parent.is_dir():
        problem = "exists already" if out.exists() else "is in no folder that exists"
        raise ConfigError(f"--out {out} {problem}; give another --out")
    with tempfile.TemporaryDirectory(prefix="sampleforge-tune-") as scratch:
        tuner = Tuner(flags, Path(scratch))
        return tuner.run(out)


class Tuner:
    """Runs the trials one after another, each as a benchmark in a process of its own."""

    def __init__(self, flags: TuneFlags, scratch: Path) -> None:
        from rich.console import Console

        from sampleforge.runtime.interrupts import Interrupts

        self._flags = flags
        self._scratch = scratch
        self._console = Console(highlight=False)
        self._trial: subprocess.Popen[str] | None = None
        self._interrupts = Interrupts(self._kill)

    def run(self, out: Path) -> int:
        """Run the search and write ``out``; return the exit code. After Ctrl-C the best flags so
        far are written, and the exit code is 130."""
        from sampleforge.cli.tuning import Search

        search = Search(self._run_trial)
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
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        from sampleforge.cli.tuning import ORDER

        bar = Progress(
            *(TextColumn("{task.description}"), BarColumn(32), TimeElapsedColumn()),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        with bar:
            task = bar.add_task("defaults", total=len(ORDER) + 1)
            for trial in search.trials():
                if self._interrupts.received is not None:
                    search.done.remove(trial)
                    return
                bar.console.print(_line(trial, search), highlight=False, markup=False)
                done = 1 + ORDER.index(trial.tuned) if trial.tuned in ORDER else 1
                bar.update(task, completed=done, description=f"after {trial.tuned}")

    def _run_trial(self, tuned: str, flags: Flags) -> Trial:
        """Run one benchmark. An interrupted trial has no result."""
        from sampleforge.cli.tuning import Trial

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
            return Trial(tuned, flags, json.loads((folder / "benchmark.json").read_text()))
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
        asked = self._flags
        words = [*(sys.executable, "-m", "sampleforge.cli", "train", asked.algo)]
        words += ["--env", asked.env, "--run-dir", str(folder), "--quiet", "--benchmark"]
        words += ["--no-benchmark-peak", "--benchmark-seconds", str(asked.seconds_per_trial)]
        words += ["--preset", asked.preset] if asked.preset else []
        for name, value in flags.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return words

    def _print_results(self, search: Search) -> None:
        """Print all trials, the fastest first, and the flags of the best."""
        from rich import box
        from rich.table import Table

        from sampleforge.benchmark.table import OTHERS, OTHERS_WARNING
        from sampleforge.cli.tuning import flags_of
        from sampleforge.reporting.progress import number

        table = Table(box=box.SIMPLE_HEAD)
        for name in ("sampled/s", "trained/s", "bottleneck", "flags"):
            table.add_column(name, justify="right" if name.endswith("/s") else "left")
        for trial in sorted(search.done, key=lambda trial: -trial.score):
            if trial.result is None:
                table.add_row("-", "-", "failed", f"{_words(trial.flags)}: {trial.error}")
                continue
            rates = (number(trial.result[name]) for name in ("sampled_per_s", "trained_per_s"))
            table.add_row(*rates, trial.result["verdict"]["bottleneck"], _words(trial.flags))
        self._console.print(table)
        assert search.best is not None
        defaults = search.done[0].score
        gain = f", {search.best.score / defaults:.2f}x the defaults" if defaults else ""
        if self._interrupts.received is not None:
            self._console.print("interrupted: this is the best so far")
        best = _words(flags_of(search.best))
        self._console.print(f"best{gain}: {best}", soft_wrap=True)
        self._console.print(LEARNING, soft_wrap=True)
        results = [trial.result for trial in search.done if trial.result is not None]
        if (
            max(result["others_cores"] for result in results)
            > OTHERS * search.best.setting["cores"]
        ):
            self._console.print(OTHERS_WARNING, soft_wrap=True)

    def _write(self, out: Path, best: Trial) -> None:
        """Write the best flags as a YAML file for --config."""
        import yaml

        from sampleforge.cli.tuning import flags_of
        from sampleforge.folder.atomic_file import write_atomically

        values: dict[str, Any] = {"algo": self._flags.algo, "env": self._flags.env}
        text = yaml.safe_dump({**values, **flags_of(best)}, sort_keys=False)
        head = (
            f"# Fastest on {best.setting['cores']} cores: {best.score:,.0f} env steps/s trained, "
        )
        head += f"by `sampleforge tune`.\n# {LEARNING}\n"
        write_atomically(out, (head + text).encode())
        preset = f" --preset {self._flags.preset}" if self._flags.preset else ""
        self._console.print(
            f"Written. To use it: sampleforge train {self._flags.algo}{preset} --config {out}",
            soft_wrap=True,
        )


def _line(trial: Trial, search: Search) -> str:
    """Return the line that is printed when a trial ends."""
    if trial.result is None:
        return f"{'failed':>12}  {_words(trial.flags)}: {trial.error}"
    mark = " *" if trial is search.best else "  "
    return f"{trial.score:>10,.0f}/s{mark} {_words(trial.flags)}"


def _words(flags: Flags) -> str:
    """Return flags as they are typed on the command line."""
    given = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in flags.items())
    return given or "(the defaults)"
