"""The figure of a sweep: parallel coordinates of its trials, the importance of each setting, and
the values in the order of the trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sampleforge.config import ConfigError
from sampleforge.tools.plots.figures import TINY, WIDTH, plain_axes, save_figure
from sampleforge.tools.sweep.spec import SweepSpec, read_spec
from sampleforge.tools.sweep.study import (
    TrialResult,
    best_trial,
    import_optuna,
    open_study,
    results,
)
from sampleforge.tools.sweep.sweep import SPEC

FEWEST = 4
"""Complete trials that the importance of settings needs."""


@dataclass(frozen=True)
class SweepPicture:
    """What the figure shows: the ``trials`` that have a value, and the ``importance`` of each
    setting, in the order to draw, summing to 1; empty if there are too few trials."""

    name: str
    spec: SweepSpec
    trials: Sequence[TrialResult]
    importance: Mapping[str, float]

    @property
    def metric(self) -> str:
        return self.spec.method.metric

    @property
    def maximize(self) -> bool:
        return self.spec.method.direction == "maximize"

    @property
    def best(self) -> TrialResult | None:
        """The complete trial with the best value."""
        return best_trial(self.trials, self.spec.method.direction)


def picture(folder: Path) -> SweepPicture:
    """Return what the figure of the sweep in ``folder`` shows. Raises ConfigError if its files are
    damaged, or if no trial has ended."""
    optuna, spec, study = import_optuna(), read_spec(folder / SPEC), open_study(folder)
    trials = [
        trial
        for trial in results(study)
        if trial.value is not None and trial.params.keys() == spec.search.keys()
    ]
    if not trials:
        raise ConfigError(f"{folder}: no trial has ended yet, so there is nothing to draw")
    importance: dict[str, float] = {}
    if sum(trial.state == "complete" for trial in trials) >= FEWEST:
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        importance = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return SweepPicture(folder.resolve().name, spec, trials, importance)


def _value(trial: TrialResult) -> float:
    assert trial.value is not None, "only trials with a value are drawn"
    return trial.value


def draw_sweep(sweep: SweepPicture, out: Path) -> None:
    """Draw a sweep into the file ``out``, whose suffix is the format. Raises ConfigError if
    matplotlib is missing."""
    save_figure(lambda figure: _figure(figure, sweep), out)


def _figure(make_figure: Any, sweep: SweepPicture) -> Any:
    figure = make_figure(figsize=(WIDTH, 5.2), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.4, 1.0))
    _draw_coordinates(upper.subplots(), sweep)
    left, right = lower.subplots(1, 2)
    _draw_importance(left, sweep)
    _draw_history(right, sweep)
    figure.suptitle(f"{sweep.name}: {len(sweep.trials)} trials")
    return figure


Axis = tuple[Mapping[Any, float], Sequence[tuple[float, str]]]
"""The vertical axis of one setting: the position of each value, 0 to 1, and the ticks (position,
label)."""


def axis_of(values: Sequence[Any], *, log: bool) -> Axis:
    """Return the axis of a setting with these values. Texts and truth values are spaced evenly in
    their order."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    distinct = sorted(set(values)) if numbers else sorted(set(values), key=str)
    if not numbers or len(distinct) <= 2:
        last = max(1, len(distinct) - 1)
        spaced = [0.5] if len(distinct) == 1 else [i / last for i in range(len(distinct))]
        position = dict(zip(distinct, spaced, strict=True))
        return position, [(at, _label(value)) for value, at in position.items()]
    change = math.log if log and distinct[0] > 0 else float
    low, high = change(distinct[0]), change(distinct[-1])
    position = {value: (change(value) - low) / (high - low) for value in distinct}
    if all(isinstance(value, int) for value in distinct):
        last = len(distinct) - 1
        shown = {distinct[round(last * part / 4)] for part in range(5)}
        return position, [(position[value], str(value)) for value in sorted(shown)]
    back = math.exp if change is math.log else float
    marks = [(at, _label(back(low + at * (high - low)))) for at in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return position, marks


def _label(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _draw_coordinates(axes: Any, sweep: SweepPicture) -> None:
    """Draw a line per trial through the values of its settings, coloured by its result."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    names = list(sweep.importance) or sorted({n for trial in sweep.trials for n in trial.params})
    scales = {
        name: axis_of([t.params[name] for t in sweep.trials], log=sweep.spec.search[name].log)
        for name in names
    }
    values = [_value(trial) for trial in sweep.trials]
    norm = Normalize(min(values), max(values))
    colours = colormaps["viridis" if sweep.maximize else "viridis_r"]
    ordered = sorted(sweep.trials, key=lambda t: _value(t) if sweep.maximize else -_value(t))
    best = sweep.best
    for trial in ordered:
        heights = [scales[name][0][trial.params[name]] for name in names]
        look = {"color": colours(norm(_value(trial))), "linewidth": 1.1, "alpha": 0.75}
        if trial.state != "complete":
            look |= {"linestyle": ":", "alpha": 0.45}
        if trial is best:
            look |= {"linewidth": 3.0, "alpha": 1.0}
        axes.plot([*range(len(names)), len(names)], [*heights, norm(_value(trial))], **look)
    for at, name in enumerate(names):
        axes.axvline(at, color="black", linewidth=0.8)
        for height, label in scales[name][1]:
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5}
            axes.text(at + 0.015, height, label, fontsize=5.5, va="center", bbox=box)
    axes.axvline(len(names), color="black", linewidth=0.8)
    axes.set_xticks([*range(len(names)), len(names)], [*names, sweep.metric])
    axes.set_yticks([])
    axes.set_xlim(-0.05, len(names) + 0.05)
    axes.set_ylim(-0.04, 1.04)
    axes.spines[:].set_visible(False)
    pruned = any(trial.state != "complete" for trial in sweep.trials)
    title = "settings of each trial (thick: best" + ("; dotted: pruned)" if pruned else ")")
    axes.set_title(title)
    mappable = ScalarMappable(norm, colours)
    axes.figure.colorbar(mappable, ax=axes, label=sweep.metric, pad=0.01)


def _draw_importance(axes: Any, sweep: SweepPicture) -> None:
    axes.set_title("importance of each setting (PED-ANOVA)")
    axes.spines[["top", "right"]].set_visible(False)
    if not sweep.importance:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "too few complete trials", ha="center", transform=axes.transAxes)
        return
    names = list(sweep.importance)[::-1]
    axes.barh(names, [sweep.importance[name] for name in names], color="C0")
    axes.set_xlim(0, 1)


def _draw_history(axes: Any, sweep: SweepPicture) -> None:
    """Draw the value of each trial, and the best one so far."""
    for complete, colour, label in ((True, "C0", "complete"), (False, "0.6", "pruned")):
        own = [trial for trial in sweep.trials if (trial.state == "complete") == complete]
        if own:
            x, y = [trial.number for trial in own], [_value(trial) for trial in own]
            axes.plot(x, y, "o", markersize=4, color=colour, label=label)
    whole = [trial for trial in sweep.trials if trial.state == "complete"]
    if whole:
        best = np.maximum if sweep.maximize else np.minimum
        line = best.accumulate([_value(trial) for trial in whole])
        axes.step([t.number for t in whole], line, where="post", color="C1", label="best so far")
    axes.set_title(sweep.metric)
    axes.set_xlabel("trial")
    plain_axes(axes)
    axes.legend(fontsize=TINY)
