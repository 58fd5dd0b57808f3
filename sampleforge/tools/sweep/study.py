"""The trials of a sweep: in Optuna, with its storage, the settings that it proposes, its samplers
and pruners; and as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from sampleforge.config import LARGEST_SEED, ConfigError
from sampleforge.run.folder.kinds import STUDY
from sampleforge.run.folder.trust import check_places
from sampleforge.tools.jobs.jobs import MAKE_ROOM, LaunchFailed
from sampleforge.tools.sweep.spec import SweepSpec

if TYPE_CHECKING:
    import optuna


State = Literal["waiting", "running", "complete", "pruned", "failed"]
ERROR = "error"
"""The attribute of a failed trial with its error."""


@dataclass(frozen=True)
class TrialResult:
    """A trial of a sweep. ``fraction``: the part of it that is done, 0 to 1; ``value``: the newest
    value of the metric, None before the first; ``params``: the values of the searched settings;
    ``error``: why it has failed."""

    number: int
    state: State
    fraction: float
    value: float | None
    params: Mapping[str, Any]
    error: str | None = None


def import_optuna() -> Any:
    """Return the module. Raises ConfigError if it is missing."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ConfigError(
            'sweeps need optuna, which is not installed: pip install "sampleforge[populations]"'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(folder: Path, **new: Any) -> optuna.Study:
    """Return the study of the sweep in ``folder``; with ``new``, arguments of
    `optuna.create_study`, also if there is none yet. Raises ConfigError if it cannot be read."""
    library = import_optuna()
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import SQLAlchemyError

    check_places(folder, (STUDY,))
    url = URL.create("sqlite", database=str((folder / STUDY).absolute()))
    # ValueError: there is no study in it, as after a kill when it was made
    broken = (SQLAlchemyError, library.exceptions.OptunaError, KeyError, RuntimeError, ValueError)
    try:
        storage = library.storages.RDBStorage(url.render_as_string())
        study: optuna.Study = (
            library.create_study(study_name="sweep", storage=storage, load_if_exists=True, **new)
            if new
            else library.load_study(study_name=None, storage=storage)
        )
    except broken as error:
        text = str(error).splitlines()[0]
        raise ConfigError(f"{folder / STUDY} cannot be read: {text}") from error
    return study


@contextmanager
def storing(folder: Path) -> Iterator[None]:
    """Return a context that turns an error of the storage of the sweep in ``folder``, as on a full
    disk, into `LaunchFailed`."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (import_optuna().exceptions.StorageInternalError, SQLAlchemyError) as error:
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        text = f"{folder / STUDY} cannot be written: {reason}. If the disk is full, {MAKE_ROOM}"
        raise LaunchFailed(text) from error


def results(study: optuna.Study) -> list[TrialResult]:
    """Return the trials of a study, in order."""
    states: dict[str, State] = {
        "WAITING": "waiting",
        "RUNNING": "running",
        "COMPLETE": "complete",
        "PRUNED": "pruned",
        "FAIL": "failed",
    }
    return [
        TrialResult(
            trial.number,
            states[trial.state.name],
            1.0 if trial.state.name == "COMPLETE" else 0.0,
            trial.value if trial.state.name != "RUNNING" else None,
            trial.params,
            trial.user_attrs.get(ERROR),
        )
        for trial in study.get_trials(deepcopy=False)
    ]


def best_trial(trials: Sequence[TrialResult], direction: str) -> TrialResult | None:
    """Return the complete trial with the best value, None if there is none."""
    complete = [trial for trial in trials if trial.state == "complete" and trial.value is not None]
    sign = 1.0 if direction == "maximize" else -1.0
    return max(complete, key=lambda trial: sign * (trial.value or 0.0), default=None)


def trial_state(name: str) -> Any:
    """Return a state of a trial as Optuna has it: COMPLETE, PRUNED or FAIL."""
    return import_optuna().trial.TrialState[name]


def open_trial(study: optuna.Study, frozen: optuna.trial.FrozenTrial) -> optuna.Trial:
    """Return a trial that an earlier launcher had begun, to go on with."""
    trial: optuna.Trial = import_optuna().trial.Trial(study, frozen._trial_id)
    return trial


def distribution(spec: SweepSpec, name: str) -> Any:
    """Return a range as Optuna has it."""
    kinds, values = import_optuna().distributions, spec.search[name]
    if spec.method.sampler == "grid" or values.choices is not None:
        return kinds.CategoricalDistribution(spec.grid(name))
    assert values.low is not None and values.high is not None
    if spec.is_whole(name):
        step = 1 if values.step is None else int(values.step)
        return kinds.IntDistribution(int(values.low), int(values.high), values.log, step)
    return kinds.FloatDistribution(values.low, values.high, values.log, values.step)


def sampler(spec: SweepSpec, earlier: int) -> Any:
    """Return the sampler; that of a resumed sweep continues with another seed after ``earlier``
    trials, or it would draw the same values again."""
    samplers = import_optuna().samplers
    seed = (spec.method.seed + earlier) % (LARGEST_SEED + 1)
    if spec.method.sampler == "grid":
        space = {name: spec.grid(name) for name in spec.search}

        class AskedGrid(samplers.GridSampler):  # type: ignore[misc, name-defined]
            def after_trial(self, *_: Any) -> None:
                """Do nothing: the original stops Optuna's own loop, which does not run here."""

        return AskedGrid(space, seed=spec.method.seed)
    if spec.method.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(seed=seed, constant_liar=True)


def pruner(spec: SweepSpec) -> Any:
    """Return the pruner, for which a trial has ``pruning_points`` steps."""
    pruners, points = import_optuna().pruners, spec.method.pruning_points
    makers = {
        "none": pruners.NopPruner,
        "median": partial(pruners.MedianPruner, n_warmup_steps=max(1, points // 10)),
        "hyperband": partial(pruners.HyperbandPruner, min_resource=1, max_resource=points),
    }
    return makers[spec.method.pruner]()


SHOWN = 15
"""Trials in the table that changes."""


def news(trials: Sequence[TrialResult], spec: SweepSpec, told: dict[int, str]) -> list[str]:
    """Return a line for each trial whose state has changed since it was ``told``."""
    lines = []
    for trial in trials:
        if told.get(trial.number) == trial.state or trial.state == "waiting":
            continue
        told[trial.number] = trial.state
        result = "" if trial.value is None else f"  {spec.method.metric} {trial.value:,.2f}"
        error = "" if trial.error is None else f": {trial.error}"
        lines.append(f"trial {trial.number:04d} {trial.state:<8}{result}  {settings(trial)}{error}")
    return lines


def settings(trial: TrialResult) -> str:
    """Return the searched settings of a trial as text."""
    return "  ".join(f"{name} {shown(value)}" for name, value in trial.params.items())


def shown(value: Any) -> str:
    """Return a value with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(trials: Sequence[TrialResult], spec: SweepSpec, most: int | None) -> Table:
    """Return the trials as a table: the running ones, and the others with the best first.
    ``most``: number of rows (None: all)."""
    sign = -1.0 if spec.method.direction == "maximize" else 1.0

    def order(trial: TrialResult) -> tuple[int, float]:
        rank = {"running": 0, "waiting": 1, "complete": 2, "pruned": 3, "failed": 4}
        return rank[trial.state], 0.0 if trial.value is None else sign * trial.value

    result = Table(box=box.SIMPLE_HEAD)
    for name in ("trial", "state", "done", spec.method.metric, *spec.search):
        result.add_column(name, justify="left" if name == "state" else "right")
    listed = sorted(trials, key=order)[:most]
    if fails := any(trial.error is not None for trial in listed):
        result.add_column("error", justify="left", overflow="fold")
    for trial in listed:
        value = "-" if trial.value is None else f"{trial.value:,.2f}"
        done = f"{trial.fraction:.0%}" if trial.state in ("running", "waiting", "complete") else ""
        params = (shown(trial.params.get(name, "-")) for name in spec.search)
        row = [f"{trial.number:04d}", trial.state, done, value, *params]
        result.add_row(*row, *([Text(trial.error or "")] if fails else []))
    return result
