"""The command `sampleforge tune ID ALGO`: search the fastest flags for an environment, or those
that learn most."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from sampleforge.cli.flags import parse
from sampleforge.cli.train import config_class
from sampleforge.config import Checked, ConfigError, check_range, typed

if TYPE_CHECKING:
    from rich.console import Console

    from sampleforge.tools.tune import Flags, Search, Trial

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
FOR_RETURN = ("minutes", "jobs", "folder")
FOR_SPEED = ("allow_learning_changes",)
"""Flags of one of the two searches."""


@dataclass(frozen=True)
class TuneFlags(Checked):
    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ID")]
    """Environment, as for --env."""
    algo: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ALGO")]
    """Algorithm, as for train."""
    goal: Annotated[Literal["speed", "return"], tyro.conf.arg(name="for")] = "speed"
    """speed: flags with which the same learning takes less time; return: settings that learn more,
    such as the learning rate, by many short trainings (docs/sweeps.md)."""
    allow_learning_changes: bool = False
    """For speed: also tune what shapes the learning: numbers of env rows, precision, batch size.
    The fastest of these may learn nothing; off: only how the work is divided."""
    minutes: float | None = None
    """For return: length of the search (default: 30)."""
    seconds_per_trial: float | None = None
    """Seconds of each measurement, not counting start and warm-up (default: 5); for return, of each
    training (default: a twentieth of the search, at least 15)."""
    jobs: int | None = None
    """For return: trainings at a time, which share the cores (default: 1)."""
    folder: str | None = None
    """For return: folder of the sweep that searches (default: a new one in sweeps). With that of an
    earlier search of the same kind the search goes on."""
    preset: str | None = None
    """Preset to tune (default: none)."""
    out: str | None = None
    """File to write, for --config (default: <env>-<algo>-tuned.yaml in the working directory)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "seconds_per_trial minutes", low=0, above=True)
        check_range(self, "jobs", low=1)
        others = FOR_SPEED if self.goal == "return" else FOR_RETURN
        for name in others:
            if (value := getattr(self, name)) != getattr(TuneFlags, name):
                wrong = "return" if self.goal == "speed" else "speed"
                raise ConfigError(
                    f"{typed(name, value)} is for --for {wrong}, not for --for {self.goal}; leave "
                    "out one of the two"
                )


def run(args: Sequence[str]) -> int:
    """Search, print a table and write the file. Raises ConfigError."""
    text = (
        "Find the fastest flags for an environment on this machine by short benchmarks, or with "
        "--for return the settings that learn most within a budget of minutes."
    )
    flags = parse(TuneFlags, args, "sampleforge tune", text)
    config_class(flags.algo)  # raises ConfigError for an unknown name
    out = Path(flags.out or f"{file_stem(flags.env)}-{flags.algo}-tuned.yaml")
    if out.exists() or not out.absolute().parent.is_dir():
        problem = "exists already" if out.exists() else "is in no folder that exists"
        raise ConfigError(f"--out {out} {problem}; give another --out")
    if flags.goal == "return":
        from sampleforge.cli import return_tuning

        return return_tuning.run(flags, out)
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
        from sampleforge.tools.tune import Search

        search = Search(self._run_trial, self._flags.allow_learning_changes)
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

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(32),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        with bar:
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
        from sampleforge.tools.tune import Trial

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
        asked = self._flags
        words = [sys.executable, "-m", "sampleforge.cli", "train", asked.algo]
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
        from rich import box
        from rich.table import Table

        from sampleforge.run.screen.progress import number
        from sampleforge.tools.benchmark.table import OTHERS, OTHERS_WARNING
        from sampleforge.tools.tune import flags_of

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
        from sampleforge.tools.tune import flags_of

        head = (
            f"# Fastest on {best.setting['cores']} cores: {best.score:,.0f} env steps/s trained, "
        )
        head += f"by `sampleforge tune`.\n# {self._about_learning}\n"
        write_tuned(self._console, self._flags, out, head, flags_of(best))

    @property
    def _about_learning(self) -> str:
        """What the flags mean for the learning."""
        return CHANGED if self._flags.allow_learning_changes else KEPT


def file_stem(env: str) -> str:
    """Return the id of an environment as a part of file names."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", env)


def write_tuned(
    console: Console, flags: TuneFlags, out: Path, head: str, values: Mapping[str, Any]
) -> None:
    """Write the flags that were found as a YAML file for --config, after the comment ``head``, and
    print the command that trains with it."""
    import yaml

    from sampleforge.run.folder.atomic_file import write_atomically

    text = yaml.safe_dump({"algo": flags.algo, "env": flags.env, **values}, sort_keys=False)
    write_atomically(out, (head + text).encode())
    words = ["sampleforge", "train", flags.algo]
    words += ["--preset", flags.preset] if flags.preset else []
    console.print(f"Written to {out}. To train with it:", soft_wrap=True, markup=False)
    print(shlex.join([*words, "--config", str(out)]))


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
    from sampleforge.run.folder.stored_config import read_yaml
    from sampleforge.tools.tune import PINNED

    result: dict[str, Any] = json.loads((folder / "benchmark.json").read_text())
    config = read_yaml(folder / "config.yaml")
    setting = {**result["setting"], **{name: config.get(name) for name in PINNED}}
    if setting["ranks"]:
        setting["num_ranks"] = setting["num_workers"]
    return {**result, "setting": setting}
