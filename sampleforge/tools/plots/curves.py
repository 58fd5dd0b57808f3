"""The learning curves of runs: what metrics.jsonl has of each, and the settings that they share.

Runs whose configs differ only in their seeds are one setting, and its curve is the mean over them.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.config import ConfigError
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.stored_config import HEADER, SAME_SETTING, read_yaml
from sampleforge.run.reports.metrics import by_policy, read_metrics

Floats = npt.NDArray[np.float64]

MOST_NAMED = 3
"""Fields of the config that a label names; of more it says how many there are."""
MOST_POINTS = 400
"""Points of the curve of a setting."""
LARGEST = sys.float_info.max / 1e6
"""Largest value that is drawn."""
RESAMPLES = 1000
"""Bootstrap resamples of the seeds."""


@dataclass(frozen=True)
class Curves:
    """One run, or one policy of it: the ``name`` of its folder and of the policy; its ``env`` and
    ``algo``; the reports of its metrics.jsonl; the fields of its ``config`` by dotted name, and
    which of them the user has ``given``."""

    name: str
    env: str
    algo: str
    reports: Sequence[Mapping[str, Any]]
    policy: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    given: frozenset[str] = frozenset()

    def series(self, *names: str) -> Floats:
        """Return one number per report: the first of the named scalars that the report has, or NaN
        if it has none."""
        numbers = []
        for report in self.reports:
            values = [report[name] for name in names if report.get(name) is not None]
            numbers.append(float(values[0]) if values else math.nan)
        return np.array(numbers)

    def has(self, *names: str) -> bool:
        """Return whether any report has any of the named scalars."""
        return any(report.get(name) is not None for report in self.reports for name in names)

    def evaluations(self, against: str) -> tuple[Floats, Floats]:
        """Return, for each evaluation, the ``env_steps`` or the seconds (``wall_s``) at which its
        weights were copied, and its mean return."""
        reports = [r for r in self.reports if r.get("eval_return_mean") is not None]
        steps = np.array([float(report["eval_env_steps"]) for report in reports])
        returns = np.array([float(report["eval_return_mean"]) for report in reports])
        if against == "env_steps":
            return steps, returns
        known = np.append(0.0, self.series("env_steps")), np.append(0.0, self.series("wall_s"))
        return np.interp(steps, *known), returns


@dataclass(frozen=True)
class Setting:
    """Runs that differ only in their seeds. ``label``: what tells them from the others."""

    label: str
    runs: Sequence[Curves]


def read_curves(path: Path, log: Callable[[str], None] = warnings.warn) -> list[Curves]:
    """Return the curves of a run folder, those of each policy if it has several. ``log`` is told of
    damaged reports, which are left out. Raises ConfigError if ``path`` is not a run folder or has
    no report yet."""
    folder = RunFolder.existing(path)
    stored = read_yaml(folder.config_file)
    reports = read_metrics(folder.metrics_file, log) if folder.metrics_file.is_file() else []
    if not reports:
        raise ConfigError(f"{path}: the run has not reported yet, so there is nothing to draw")
    left_open = stored.get("left_open") or {}
    config = _flat({name: value for name, value in stored.items() if name not in HEADER})
    run = Curves(
        path.resolve().name,
        str(stored.get("env")),
        str(stored.get("algo")),
        reports,
        config=config,
        given=frozenset(config).difference(left_open),
    )
    policies = sorted({policy for report in reports for policy in by_policy(report)})
    if not policies:
        return [run]
    return [
        Curves(
            f"{run.name} {policy}",
            run.env,
            run.algo,
            [{**report, **by_policy(report).get(policy, {})} for report in reports],
            policy,
            run.config,
            run.given,
        )
        for policy in policies
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def settings_of(runs: Sequence[Curves], *, group: bool = True) -> list[Setting]:
    """Return the settings of runs, in the order of their first ones. Without ``group`` each run is
    one of its own, labelled with its name."""
    if not group:
        return [Setting(run.name, [run]) for run in runs]
    groups = grouped(runs)
    return [Setting(_label(own, groups), own) for own in groups]


def grouped(runs: Sequence[Curves]) -> list[list[Curves]]:
    """Return the runs of each setting: those that agree in environment, algorithm, policy, and in
    every field of the config that shapes a run."""
    settings: dict[str, list[Curves]] = {}
    for run in runs:
        fields = {name: v for name, v in run.config.items() if name not in SAME_SETTING}
        key = [run.env, run.algo, run.policy, fields]
        settings.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(run)
    return list(settings.values())


def _label(own: Sequence[Curves], groups: Sequence[Sequence[Curves]]) -> str:
    """Return what tells a setting from the others, and the number of its runs, or the name of the
    only one."""
    run = own[0]
    words = differences(run, [group[0] for group in groups])
    if len(own) > 1:
        words.append(f"({len(own)} seeds)")
    else:
        folder = run.name.removesuffix(f" {run.policy}")
        words.append(f"({folder})" if words else run.name)
    return " ".join([", ".join(words[:-1]), words[-1]]).strip()


def differences(run: Curves, firsts: Sequence[Curves], most: int = MOST_NAMED) -> list[str]:
    """Return what tells the setting of a run from the others, of which ``firsts`` are one run each:
    algorithm and environment, the policy, and up to ``most`` fields of the config."""
    words = [
        str(getattr(run, name))
        for name in ("algo", "env", "policy")
        if len({getattr(first, name) for first in firsts}) > 1
    ]
    alike = [first for first in firsts if (first.env, first.algo) == (run.env, run.algo)]
    differing = [
        name
        for name in dict.fromkeys(name for first in alike for name in first.config)
        if name not in SAME_SETTING
        and len({json.dumps(first.config.get(name), default=str) for first in alike}) > 1
    ]
    differing.sort(key=lambda name: not any(name in first.given for first in alike))
    for name in differing[:most]:
        words.append(f"{name.replace('_', ' ')} {_shown(run.config.get(name))}")
    if len(differing) > most:
        words.append(f"{len(differing) - most} more")
    return words


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "default" if value is None else "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def smoothed(values: Floats, weight: float) -> Floats:
    """Return the exponential moving average of ``values`` [N], in which each value counts
    ``weight`` times as much as the next one (0: ``values`` as they are). Unlike a plain one it is
    not drawn towards 0 at the beginning. NaN stays NaN and does not count."""
    out, total, count = np.full(len(values), np.nan), 0.0, 0.0
    for index, value in enumerate(values.tolist()):
        if math.isfinite(value):
            total = weight * total + (1.0 - weight) * value
            count = weight * count + (1.0 - weight)
            out[index] = total / count
    return out


def aligned(lines: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Return lines (x [N], y [N], finite and with rising x) at common points: x [G], and y [lines,
    G], interpolated linearly, NaN before the first and after the last point of a line."""
    points = np.unique(np.concatenate([x for x, _ in lines]))
    if len(points) > MOST_POINTS:
        points = points[np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)]
    return points, np.array([np.interp(points, x, y, np.nan, np.nan) for x, y in lines])


def mean_and_interval(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the mean over the runs of ``values`` [runs, G], and the ends of its 95% interval, by
    the percentile bootstrap over the runs: it never leaves the range of the runs. Each is [G]."""
    runs = len(values)
    drawn = np.random.default_rng(0).integers(0, runs, (RESAMPLES, runs))
    share = np.stack([(drawn == run).mean(axis=1) for run in range(runs)], axis=1)
    ends = np.quantile(share @ values, (0.025, 0.975), axis=0)
    low, high = np.clip(ends, values.min(axis=0), values.max(axis=0))  # despite rounding
    return values.mean(axis=0), low, high


def finite_line(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the points of a line whose x and y are finite, and far enough from the largest floats
    that an axis can be scaled. If several have the same x, the last one counts."""
    known = (np.abs(x) <= LARGEST) & (np.abs(y) <= LARGEST)
    x, y = x[known], y[known]
    last = np.append(np.diff(x) > 0, True) if len(x) else np.zeros(0, np.bool_)
    return x[last], y[last]
