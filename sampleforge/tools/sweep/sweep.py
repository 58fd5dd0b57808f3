"""A sweep: training runs with different settings, as jobs, searched by Optuna.

Optuna is asked for the settings of each trial and told its result; its storage is an SQLite file in
the sweep's folder, so that the same command resumes a sweep that was killed: it keeps the trials
that have ended, and goes on with those that had begun from their checkpoints.

    sweep.yaml     the file that the sweep began with
    study.db       Optuna's storage
    trials/0007/   the run folder of trial 7
    jobs/          what the jobs printed
    results.json   the result, at the end
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sampleforge.config import ConfigError, difference, to_plain
from sampleforge.names import nearest
from sampleforge.run.folder.kinds import STUDY
from sampleforge.run.reports.metrics import parse_report
from sampleforge.runtime.files import write_atomically, write_json
from sampleforge.tools.jobs.jobs import Jobs, LaunchFailed
from sampleforge.tools.jobs.training_job import (
    TrainingJob,
    ask_to_stop,
    forget_outcome,
    newest_env_steps,
    read_outcome,
)
from sampleforge.tools.sweep.spec import SweepSpec, encoded, read_spec
from sampleforge.tools.sweep.study import (
    ERROR,
    State,
    TrialResult,
    best_trial,
    distribution,
    open_study,
    open_trial,
    pruner,
    results,
    sampler,
    storing,
    trial_state,
)
from sampleforge.topologies.starts import seed_of_policy

if TYPE_CHECKING:
    import optuna

SPEC, _TRIALS, _RESULTS = "sweep.yaml", "trials", "results.json"
_SPECIFICATION = "specification"
"""The attribute of the study with what a resumed sweep must have in common with it."""
MAX_KILLS = 3
"""Times that the job of a trial is started again after it was killed, or was ended in order without
any progress."""
TRIALS_ON_SLURM = 4
"""Trials at a time on Slurm unless the user gives a number: Optuna learns from those before."""
HOPELESS = 3
"""Jobs of trials that may fail before any has succeeded."""
LONGEST_ERROR = 500
"""Letters of an error that are kept."""


class Sweep:
    """The trials of ``spec`` in ``folder``, run by ``jobs``. The caller calls `step` until `done`.

    Raises ConfigError if the folder has another sweep."""

    def __init__(self, spec: SweepSpec, folder: Path, jobs: Jobs) -> None:
        self._spec, self.folder, self._jobs = spec, folder, jobs
        self._distributions = {name: distribution(spec, name) for name in spec.search}
        study = open_study(folder, direction=spec.method.direction)
        with storing(folder):
            self._keep_spec(study)
        earlier = len(study.trials)
        self.study = open_study(
            folder,
            direction=spec.method.direction,
            sampler=sampler(spec, earlier),
            pruner=pruner(spec),
        )
        self._trials: dict[str, _Running] = {}
        self._to_start: list[str] = []
        self.error: str | None = None
        """The error of the trial that failed last."""
        self._closed = False
        self._failed = self._succeeded = 0
        for frozen in self.study.trials:
            state = frozen.state.name
            # A trial that was refused has no run folder: it never ran.
            self._failed += state == "FAIL" and self._run_dir(frozen.number).is_dir()
            self._succeeded += state in ("COMPLETE", "PRUNED")
            if state == "RUNNING":
                self._take_over(frozen)

    @staticmethod
    def specification(folder: Path) -> Mapping[str, Any] | None:
        """Return what a sweep that goes on with the one in ``folder`` must have in common with it;
        None if there is none that can be read."""
        if not (folder / STUDY).is_file():
            return None
        try:
            stored = open_study(folder).user_attrs.get(_SPECIFICATION)
        except ConfigError:  # raised again, with the reason, when it is opened to go on
            return None
        return stored if isinstance(stored, Mapping) else None

    def _keep_spec(self, study: optuna.Study) -> None:
        """Store the specification, or compare it with that of the sweep which is resumed. It is
        kept in the study, because the file in the folder may have been edited, and be the one that
        is given."""
        stored, now = self.folder / SPEC, _plain(self._spec)
        before = study.user_attrs.get(_SPECIFICATION)
        if not isinstance(before, Mapping):  # a new sweep, or an earlier version began it
            before = _plain(read_spec(stored)) if stored.is_file() else now
        if changes := difference(before, now):
            lines = "\n  ".join(changes)
            raise ConfigError(
                f"the sweep in {self.folder} has another specification (old -> new):\n  {lines}\n"
                "undo the changes to resume it (only the number of trials may change), or give "
                "another --folder"
            )
        study.set_user_attr(_SPECIFICATION, now)
        if not stored.is_file():
            write_atomically(stored, Path(self._spec.source).read_bytes())

    # ---- running ----

    @property
    def spec(self) -> SweepSpec:
        return self._spec

    @property
    def done(self) -> bool:
        """Whether all trials have ended."""
        return not self._trials and (self._closed or self._begun >= self._spec.num_trials)

    @property
    def _begun(self) -> int:
        """Number of trials that have begun."""
        trials = self.study.get_trials(deepcopy=False)
        return sum(trial.state.name != "WAITING" for trial in trials)

    def propose(self, values: Mapping[str, Any]) -> None:
        """Have a trial with these values of all searched settings come first, unless the sweep has
        had it already."""
        choices = {name: encoded(value) for name, value in values.items()}
        self.study.enqueue_trial(choices, skip_if_exists=True)

    def finish(self) -> None:
        """Begin no more trials; those that have begun go on to their end."""
        self._closed = True

    def step(self) -> None:
        """Take the reports of the running trials, end those that have ended or are to be pruned,
        and start new ones. Raises LaunchFailed if no trial runs at all, or if the folder cannot be
        written."""
        with storing(self.folder):
            for running in self._trials.values():
                self._take_reports(running)
            for name in self._jobs.take_ended():
                if name in self._trials:
                    self._end(name)
            self._start()

    def _start(self) -> None:
        """Start trials in the free places: first those that had begun."""
        free = self._jobs.free
        names, self._to_start = self._to_start[:free], self._to_start[free:]
        asked = self._begun
        while len(names) < free and asked < self._spec.num_trials and not self._closed:
            names.append(self._follow(self._ask()))
            asked += 1
        works = {}
        for name in names:
            trial = self._trials[name].trial
            forget_outcome(self._run_dir(trial.number))
            try:
                works[name] = TrainingJob(self._config(trial.number, trial.params))
            except ConfigError as error:  # its values do not fit together
                self._refuse(name, str(error))
        self._jobs.start(works)
        self._to_start[:0] = [name for name in works if name not in self._jobs.running]

    def _ask(self) -> optuna.Trial:
        """Return a new trial. Raises ConfigError if the storage is not of this sweep."""
        try:
            return self.study.ask(self._distributions)
        except ValueError as error:
            path = self.folder / STUDY
            raise ConfigError(
                f"{path} is of another sweep: {error}; give another --folder"
            ) from error

    def _config(self, number: int, params: Mapping[str, Any]) -> Any:
        more: dict[str, Any] = {"run_dir": str(self._run_dir(number)), "quiet": True}
        if "seed" not in {*self._spec.shared, *params}:
            more["seed"] = seed_of_policy(self._spec.method.seed, number)
        if "report_interval" not in self._spec.shared:
            more["report_interval"] = 1.0
        return self._spec.config(params, **more)

    def _run_dir(self, number: int) -> Path:
        return (self.folder / _TRIALS / f"{number:04d}").absolute()

    def _follow(self, trial: optuna.Trial) -> str:
        name = f"{trial.number:04d}"
        metrics = self._run_dir(trial.number) / "metrics.jsonl"
        self._trials[name] = _Running(trial, ReportTail(metrics))
        return name

    def _take_over(self, frozen: optuna.trial.FrozenTrial) -> None:
        """Go on with a trial that an earlier launcher had begun."""
        params = frozen.params
        wrong = [each for each, value in params.items() if not self._spec.allows(each, value)]
        missing = sorted(self._spec.search.keys() - params.keys())
        name = self._follow(open_trial(self.study, frozen))
        if wrong:
            self._refuse(name, f"{wrong[0]!r} {params[wrong[0]]!r} is not in search of the file")
            return
        if missing:
            self._refuse(name, f"the command was killed before this trial had its {missing[0]}")
            return
        self._trials[name].step = max(frozen.intermediate_values, default=-1)
        if name in self._jobs.running:
            return
        outcome = read_outcome(self._run_dir(frozen.number))
        if outcome is not None and outcome.status != "unwritten":
            self._end(name)
        else:
            self._to_start.append(name)

    def _take_reports(self, running: _Running) -> None:
        """Tell Optuna the new reports of a trial, and ask its job to stop if it is pruned."""
        points, metric = self._spec.method.pruning_points, self._spec.method.metric
        for report in running.tail.read():
            if not running.fraction and report["env_steps"]:  # what is told at the start is told
                number = running.trial.number
                self._jobs.tell_unused(f"trial {number:04d}", self._run_dir(number))
            running.fraction = max(running.fraction, self._spec.fraction(report))
            running.names |= report.keys()
            if metric not in report:
                continue
            value = report[metric]
            running.value = None if value is None else float(value)  # null: it was not finite
            if running.value is None:
                continue
            last = int(running.fraction * points)
            for point in range(running.step + 1, last + 1):
                running.trial.report(running.value, point)
            if last > running.step:
                running.step = last
                prunes = self._spec.method.pruner != "none" and last < points
                if prunes and not running.pruned and running.trial.should_prune():
                    running.pruned = True
                    ask_to_stop(self._run_dir(running.trial.number))

    def _end(self, name: str) -> None:
        """Take the outcome of a trial whose job has ended. Raises LaunchFailed if it could not be
        written: it goes on when the sweep is resumed."""
        running = self._trials[name]
        folder = self._run_dir(running.trial.number)
        self._take_reports(running)
        outcome = read_outcome(folder)
        if outcome is None:
            running.kills += 1
            if running.kills <= MAX_KILLS:
                self._to_start.append(name)
                return
            self._fail(name, f"its job was killed {running.kills} times; {self._log_tail(name)}")
        elif outcome.status == "interrupted":
            self._go_on(name)
        elif outcome.status == "unwritten":
            raise LaunchFailed(
                f"trial {name}: {outcome.error}. Once there is room, the same command with its "
                "--folder goes on"
            )
        elif outcome.status == "failed":
            self._fail(name, outcome.error or "unknown error")
        elif outcome.status == "stopped":
            self._tell(name, "PRUNED")
        elif running.value is None and self._spec.method.metric in running.names:
            self._fail(name, f"its last report has no finite {self._spec.method.metric}")
        elif running.value is None:
            metric = self._spec.method.metric
            near = nearest(metric, running.names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self._fail(name, f"no report of the run has {metric}{hint}")
        else:
            self.study.tell(running.trial, running.value)
            self._succeeded += 1
            del self._trials[name]

    def _go_on(self, name: str) -> None:
        """Have a trial start again whose job was ended, by a time limit or from outside."""
        running = self._trials[name]
        env_steps = newest_env_steps(self._run_dir(running.trial.number))
        running.idle = 0 if env_steps > running.env_steps else running.idle + 1
        running.env_steps = env_steps
        if running.idle <= MAX_KILLS:
            self._to_start.append(name)
            return
        self._fail(
            name,
            f"its job was ended {running.idle} times in a row without a new checkpoint; if its "
            "time limit ends it, give a longer one (--slurm time=MINUTES)",
        )

    def _tell(self, name: str, state: str) -> None:
        self.study.tell(self._trials.pop(name).trial, state=trial_state(state))
        self._succeeded += state == "PRUNED"

    def _refuse(self, name: str, error: str) -> None:
        """Have a trial fail, and keep the last line of its error for the tables."""
        self.error = f"trial {name}: {error}"
        self._trials[name].trial.set_user_attr(
            ERROR, error.strip().splitlines()[-1][:LONGEST_ERROR]
        )
        self._tell(name, "FAIL")

    def _fail(self, name: str, error: str) -> None:
        """Have a trial fail whose job has run. Raises LaunchFailed if none runs at all: none has
        succeeded, and of those that go on none has the metric or is further than this one."""
        reached = self._trials[name].fraction
        self._refuse(name, error)
        self._failed += 1
        if self._failed < HOPELESS or self._succeeded:
            return
        others = self._trials.values()
        if not any(each.value is not None or each.fraction > reached for each in others):
            raise LaunchFailed(
                f"the first {self._failed} trials to end have all failed; {self.error}"
            )

    def _log_tail(self, name: str) -> str:
        log = self._jobs.log(name)
        lines = log.read_text(errors="replace").splitlines() if log and log.is_file() else []
        return f"{log}: {lines[-1]}" if lines else "it printed nothing"

    # ---- results ----

    def trials(self) -> list[TrialResult]:
        """Return all trials in order, those that run with their newest values."""
        return [
            self._trials[name].result(name in self._jobs.running) if name in self._trials else each
            for each in results(self.study)
            for name in [f"{each.number:04d}"]
        ]

    def summary(self) -> dict[str, Any]:
        """Return the result as plain values, and write it to results.json."""
        every = self.trials()
        states = [trial.state for trial in every]
        best = best_trial(every, self._spec.method.direction)
        found = None
        if best is not None:
            found = {
                "trial": best.number,
                "value": best.value,
                "params": self._spec.values_of(best.params),
                "run_dir": f"{_TRIALS}/{best.number:04d}",
            }
        summary = {
            "best": found,
            "metric": self._spec.method.metric,
            "trials": len(every),
            **{state: states.count(state) for state in ("complete", "pruned", "failed")},
        }
        write_json(self.folder / _RESULTS, summary)
        return summary


@dataclass
class _Running:
    """A trial that has begun. ``step``: the last point that Optuna was told; ``names``: of the
    numbers in its reports; ``env_steps``: of its newest checkpoint when its job was last ended in
    order; ``idle``: jobs in a row that were ended so without a newer one."""

    trial: optuna.Trial
    tail: ReportTail
    step: int = -1
    value: float | None = None
    fraction: float = 0.0
    pruned: bool = False
    kills: int = 0
    env_steps: int = -1
    idle: int = 0
    names: set[str] = dataclasses.field(default_factory=set)

    def result(self, runs: bool) -> TrialResult:
        state: State = "running" if runs else "waiting"
        number, params = self.trial.number, self.trial.params
        return TrialResult(number, state, self.fraction, self.value, params)


class ReportTail:
    """Reads a growing metrics.jsonl. A resumed run may have cut it: it is read from its beginning
    then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the reports that were written since the last call, whole lines only."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            file.seek(max(0, self._offset - 1))
            if self._offset and file.read(1) != b"\n":
                self._offset = 0
            file.seek(self._offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].splitlines():
            if (report := parse_report(line)) is not None:  # a damaged line is no report
                yield report


def _plain(spec: SweepSpec) -> dict[str, Any]:
    """Return what must not change when a sweep is resumed, in values that JSON has."""
    plain = to_plain(spec)
    del plain["method"]["trials"]
    return {**plain["method"], "config": plain["shared"], "search": plain["search"]}
