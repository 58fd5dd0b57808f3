"""The search of `sampleforge tune --for speed`: short benchmarks, each in a process of its own,
that vary one flag at a time.

Unless it may change what is learned, it varies only how the work is divided: the same env rows over
more or fewer workers, their splits, and where actions are computed.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from sampleforge.config import typed
from sampleforge.run.folder.stored_config import read_yaml
from sampleforge.run.screen.evaluating import progress_bar
from sampleforge.run.screen.progress import number
from sampleforge.runtime.interrupts import Interrupts
from sampleforge.tools.benchmark.table import OTHERS, OTHERS_WARNING
from sampleforge.tools.tune.config import TuneConfig, write_tuned

Flags = dict[str, Any]
"""Config field -> value."""

GAIN = 1.03
"""Factor by which a trial must be faster than the best one to replace it; less is noise."""
ORDER = (
    "num_workers",
    "num_ranks",
    "num_envs_per_worker",
    "num_splits",
    "inference",
    "precision",
    "batch_size",
)
"""The flags to tune, in order. The batch size is last, because its unit depends on the others."""
KEEP_LEARNING = ("num_workers", "num_splits", "inference")
"""Those that leave what is learned as it is, if the number of env rows over all workers stays."""
PINNED = ("precision", "rollout", "batch_size", "minibatch_size", "num_epochs", "async_rl")
"""Flags that shape the learning, and whose defaults may depend on the tuned ones."""
NOT_FOR_RANKS = ("num_workers", "inference")
"""Flags that DD-PPO does not have; and only it has num_ranks."""
MAX_STEPS = 3
"""Largest number of times that a value is doubled or halved."""


@dataclass(frozen=True)
class Trial:
    """One benchmark: the ``flags`` that differ from the resolved defaults, and the contents of
    benchmark.json as ``result``, or the ``error`` that ended it. ``tuned``: the flag that it
    varies."""

    tuned: str
    flags: Flags
    result: Mapping[str, Any] | None = None
    error: str | None = None

    @property
    def score(self) -> float:
        """Env steps per second to compare: trained ones, or sampled ones without a learner."""
        if self.result is None:
            return 0.0
        return float(self.result[f"{self.kind}_per_s"])

    @property
    def kind(self) -> Literal["trained", "sampled"]:
        """What the env steps of the `score` were."""
        no_learner = self.result is not None and self.result["trained_per_s"] is None
        return "sampled" if no_learner else "trained"

    @property
    def setting(self) -> Mapping[str, Any]:
        """The resolved values of all flags."""
        assert self.result is not None
        setting: Mapping[str, Any] = self.result["setting"]
        return setting


@dataclass
class Search:
    """A coordinate search. ``run(tuned, flags)`` makes a trial. The caller iterates over `trials`
    and may stop at any time; ``best`` is the fastest trial so far, None before the first.
    ``allow_learning_changes``: tune every flag, also those that change what is learned."""

    run: Callable[[str, Flags], Trial]
    allow_learning_changes: bool = False
    best: Trial | None = None
    done: list[Trial] = field(default_factory=list)

    def trials(self) -> Iterator[Trial]:
        """Yield each trial when it ends. The first one has the resolved defaults; if it fails,
        there are no others."""
        first = self._try("defaults", {})
        yield first
        if first.result is None:
            return
        for name in self.order(first.setting):
            yield from self._tune(name)

    def order(self, setting: Mapping[str, Any]) -> list[str]:
        """Return the flags to tune, in order, of a run with this setting."""
        own = ORDER if self.allow_learning_changes else KEEP_LEARNING
        ranks = bool(setting.get("ranks"))
        absent = NOT_FOR_RANKS if ranks else ("num_ranks",)
        return [name for name in own if name not in absent]

    def _tune(self, name: str) -> Iterator[Trial]:
        """Change one flag in one direction as long as trials get faster, and in the other direction
        if the first gave no gain."""
        assert self.best is not None
        keep = not self.allow_learning_changes
        for direction in directions(name, self.best.setting, keep=keep):
            before = self.best
            for value in direction:
                tried = self._try(name, {**self.best.flags, **self._change(name, value)})
                yield tried
                if self.best is not tried:
                    break
            if self.best is not before:
                return

    def _change(self, name: str, value: Any) -> Flags:
        """Return the flags that give one of them another value, and keep the others as they are."""
        assert self.best is not None
        if self.allow_learning_changes:
            return {name: value}
        change: Flags = {**flags_of(self.best), name: value}
        if name == "num_workers":
            change["num_envs_per_worker"] = _rows(self.best.setting) // value
        return change

    def _try(self, name: str, flags: Flags) -> Trial:
        trial = self.run(name, flags)
        self.done.append(trial)
        gains = self.best is None or trial.score > GAIN * self.best.score
        if trial.result is not None and gains:
            self.best = trial
        return trial


def directions(name: str, setting: Mapping[str, Any], *, keep: bool = False) -> list[list[Any]]:
    """Return the values of a flag to try, one list per direction, nearest to the current value
    first. ``keep``: only such numbers of workers as divide the env rows evenly."""
    now = setting[name]
    if name == "num_workers" and keep:
        fits = [n for n in range(1, 1 + _rows(setting)) if _divides(n, setting)]
        more = [n for n in fits if now < n <= now + max(1, setting["cores"])]
        return [more[:MAX_STEPS], [n for n in fits if n < now][::-1][:MAX_STEPS]]
    if name in ("num_envs_per_worker", "batch_size"):
        down = [now // 2**k for k in range(1, MAX_STEPS + 1) if now % 2**k == 0]
        if name == "num_envs_per_worker":
            down = [envs for envs in down if envs % setting["num_splits"] == 0]
        return [[now * 2**k for k in range(1, MAX_STEPS + 1)], down]
    if name in ("num_workers", "num_ranks"):
        cores = setting["cores"]
        return [[now + max(1, cores // 2)], [n for n in (now - 1, now // 2) if 0 < n < now]]
    if name == "num_splits":
        envs = setting["num_envs_per_worker"]
        return [[n] for n in (1, 2, 4) if n != now and envs % n == 0]
    if name == "inference":
        return [["worker" if now == "inline" else "inline"]]
    assert name == "precision", name
    if now == "bf16":
        return [["fp32"]]
    return [["bf16"]] if setting["bf16_may_pay"] else []


def _rows(setting: Mapping[str, Any]) -> int:
    """Return the number of env rows over all workers."""
    return int(setting["num_workers"] * setting["num_envs_per_worker"])


def _divides(workers: int, setting: Mapping[str, Any]) -> bool:
    """Return whether so many workers can share the env rows, each with the same splits."""
    return bool(_rows(setting) % (workers * setting["num_splits"]) == 0)


def pinned(setting: Mapping[str, Any]) -> Flags:
    """Return the flags that shape the learning, with their values in a setting."""
    return {name: setting[name] for name in PINNED if setting.get(name) is not None}


def flags_of(trial: Trial) -> Flags:
    """Return the resolved values of all flags that are tuned or pinned."""
    setting = trial.setting
    absent = NOT_FOR_RANKS if setting.get("ranks") else ("num_ranks",)
    tuned = {name: setting[name] for name in ORDER if name in setting and name not in absent}
    return {**tuned, **pinned(setting)}


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
        head = f"# {headline(best)}, by `sampleforge tune`.\n# {self._about_learning}\n"
        write_tuned(self._console, self._asked, out, head, flags_of(best))

    @property
    def _about_learning(self) -> str:
        """What the flags mean for the learning."""
        return CHANGED if self._asked.allow_learning_changes else KEPT


def headline(best: Trial) -> str:
    """Return the rate of the fastest trial in words."""
    return f"Fastest on {best.setting['cores']} cores: {best.score:,.0f} env steps/s {best.kind}"


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
