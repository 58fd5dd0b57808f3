"""The specification of a sweep: a YAML file with the settings that all trials share, and the ranges
of those that the sweep searches."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sampleforge.config import (
    Checked,
    ConfigError,
    check_range,
    check_seed,
    from_plain,
    with_underscores,
)
from sampleforge.names import nearest
from sampleforge.presets import preset_values
from sampleforge.run.folder.stored_config import NOT_STORED, flat_fields, nested, read_yaml
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.config_classes import config_class

Scalar = str | int | float | bool | None
Choice = Scalar | tuple[Scalar, ...]


@dataclass(frozen=True)
class SearchRange(Checked):
    """The values of one setting: from ``low`` to ``high``, or one of ``choices``."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    """Draw the logarithm of the value evenly."""
    step: float | None = None
    """Distance between two values."""
    choices: tuple[Choice, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.choices is not None:
            numbers = (self.low, self.high, self.step)
            if not self.choices or self.log or any(number is not None for number in numbers):
                raise ConfigError("choices stand alone, and there must be one at least")
            return
        if self.low is None or self.high is None or not self.low <= self.high:
            raise ConfigError("it needs choices, or low and high, with low no larger than high")
        for name in ("low", "high", "step"):
            if not math.isfinite(getattr(self, name) or 0.0):
                raise ConfigError(f"{name} {getattr(self, name)}: must be a finite number")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ConfigError("log needs a low above 0, and no step")
        if self.step is not None and self.step <= 0:
            raise ConfigError("step must be above 0")


@dataclass(frozen=True)
class SearchMethod(Checked):
    """How a sweep searches."""

    algo: str = ""
    """The algorithm, as for train."""
    preset: str | None = None
    """Preset whose settings the trials begin with."""
    trials: int | None = None
    """Number of trials (default: 20; with the grid all of its points)."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """tpe: new trials are drawn near good earlier ones; grid: all combinations of the choices."""
    pruner: Literal["none", "median", "hyperband"] = "none"
    """median: end a trial that is worse than the median of the others at the same point; hyperband:
    give most of the steps to the best."""
    pruning_points: int = 20
    """Points of a run, evenly spaced, at which it may be pruned."""
    metric: str = "return_mean"
    """Number of the reports (metrics.jsonl) to optimise."""
    direction: Literal["maximize", "minimize"] = "maximize"
    seed: int = 0
    """Seed of the search. Each trial has a seed of its own unless the file gives one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "trials pruning_points", low=1)
        check_seed(self)


@dataclass(frozen=True)
class SweepSpec:
    """A sweep as its YAML file says. ``shared``: the settings of all trials, by dotted name;
    ``search``: the ranges, by dotted name; ``source``: the file, for messages."""

    method: SearchMethod
    shared: Mapping[str, Any]
    search: Mapping[str, SearchRange]
    source: str

    @property
    def config_class(self) -> type[AnyConfig]:
        return config_class(self.method.algo)

    @property
    def num_trials(self) -> int:
        if self.method.trials is not None:
            return self.method.trials
        return self.num_points if self.method.sampler == "grid" else 20

    @property
    def num_points(self) -> int:
        """Number of points of the grid. Raises ConfigError for a range without a step."""
        return math.prod(len(self.grid(name)) for name in self.search)

    def is_whole(self, name: str) -> bool:
        """Return whether a setting is a whole number."""
        hint = _hint(self.config_class, name)
        return hint is int or int in typing.get_args(hint)

    def grid(self, name: str) -> list[Any]:
        """Return the values of a setting in a grid, as `encoded`. Raises ConfigError for a range
        without a step."""
        values = self.search[name]
        if values.choices is not None:
            return [encoded(choice) for choice in values.choices]
        assert values.low is not None and values.high is not None
        step = 1.0 if values.step is None and self.is_whole(name) else values.step
        if step is None or values.log:
            raise ConfigError(
                f"{self.source}: search: {name}: a grid needs choices, or low, high and step"
            )
        count = math.floor((values.high - values.low) / step + 1e-9) + 1
        # Rounding may take the last number beyond high: 0.1 + 2 * 0.1 is 0.30000000000000004.
        numbers = [min(values.low + index * step, values.high) for index in range(count)]
        return [int(number) for number in numbers] if self.is_whole(name) else numbers

    def config(self, chosen: Mapping[str, Any], **more: Any) -> AnyConfig:
        """Return the config of a trial with the ``chosen`` values (`encoded`) of the searched
        settings. Raises ConfigError for values that do not fit together."""
        decoded = {name: self.decoded(name, value) for name, value in chosen.items()}
        values = nested({**self.shared, **decoded, **more})
        return from_plain(self.config_class, values, self.source)

    def decoded(self, name: str, value: Any) -> Any:
        """Return the value of a setting that `encoded` has encoded."""
        for choice in self.search[name].choices or ():
            if encoded(choice) == value:
                return list(choice) if isinstance(choice, tuple) else choice
        return value

    def values_of(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the searched settings in the run of a trial with the ``chosen`` ones
        (`encoded`), as JSON has them. They may be others than the file's: YAML reads 1e-4 as a
        text."""
        fields = flat_fields(self.config(chosen))
        own = {name: fields[name] for name in chosen}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in own.items()}

    def allows(self, name: str, value: Any) -> bool:
        """Return whether a setting may have an `encoded` value."""
        values = self.search.get(name)
        if values is None:
            return False
        if values.choices is not None or self.method.sampler == "grid":
            return value in self.grid(name)
        assert values.low is not None and values.high is not None
        return isinstance(value, int | float) and values.low <= value <= values.high

    def fraction(self, report: Mapping[str, Any]) -> float:
        """Return the fraction (0 to 1) of a trial that is done at a report."""
        steps, seconds = (self.shared.get(name) for name in _STOPS)
        parts = [report["env_steps"] / float(steps)] if steps else []
        parts += [report["wall_s"] / float(seconds)] if seconds else []
        return min(1.0, float(max(parts)))


_STOPS = ("train_for_env_steps", "train_for_seconds")
_OF_THE_SWEEP = {"quiet", "debug", "report_interval"}
"""Settings that change nothing in a trial: they say what is printed, and how often it reports."""
_FIXED = {*NOT_STORED, *_STOPS, *_OF_THE_SWEEP, "env", "benchmark", "sampler_only"}
"""Settings that a sweep cannot search."""


def read_spec(path: Path) -> SweepSpec:
    """Return the sweep of a YAML file. Raises ConfigError, which names the key, for one that cannot
    run."""
    content = with_underscores(read_yaml(path), str(path))
    shared, search = (_mapping(content.pop(key, {}), key, path) for key in ("config", "search"))
    unknown = set(content) - {field.name for field in dataclasses.fields(SearchMethod)}
    if unknown:
        name = sorted(unknown)[0]
        keys = [*(field.name for field in dataclasses.fields(SearchMethod)), "config", "search"]
        near = nearest(name, keys, 1)
        hint = f". Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{path}: unknown key {name!r}{hint}")
    try:
        method = from_plain(SearchMethod, content, str(path))
    except ConfigError as error:
        text = str(error).removeprefix("--")  # a key of the file, and no flag
        raise ConfigError(text if text.startswith(str(path)) else f"{path}: {text}") from error
    try:
        config_class(method.algo)
    except ConfigError as error:
        raise ConfigError(f"{path}: algo: {error}") from error
    preset = preset_values(method.algo, method.preset) if method.preset else {}
    given = _flat(shared, f"{path}: config")
    if not search:
        raise ConfigError(f"{path}: search: there is no setting to search")
    ranges = {
        _known(name, method.algo, path): _range(name, values, path)
        for name, values in with_underscores(search, f"{path}: search").items()
    }
    for name in ranges.keys() & given.keys():
        raise ConfigError(f"{path}: {name} is both in config and in search")
    below = _flat(preset, f"preset {method.preset}")
    spec = SweepSpec(method, {**below, **given}, ranges, str(path))
    _check(spec, path)
    return spec


def _check(spec: SweepSpec, path: Path) -> None:
    """Raise ConfigError for a sweep whose trials cannot run or would not end."""
    if not any(spec.shared.get(name) for name in _STOPS):
        raise ConfigError(f"{path}: config: set train_for_env_steps, or trials would never end")
    if not spec.shared.get("env"):
        raise ConfigError(f"{path}: config: there is no env")
    if "run_dir" in spec.shared:
        raise ConfigError(f"{path}: config: run_dir: trials have folders in that of the sweep")
    for name, values in spec.search.items():
        if values.choices is None and not _is_number(spec.config_class, name):
            raise ConfigError(f"{path}: search: {name} is no number: give it choices")
        if spec.is_whole(name):
            _check_whole(values, f"{path}: search: {name}")
    ends = {name: _ends(spec, name) for name in spec.search}
    if spec.method.sampler == "grid" and spec.num_trials > spec.num_points:
        raise ConfigError(
            f"{path}: trials {spec.num_trials}: the grid has {spec.num_points} points, and each is "
            "tried once; leave out trials"
        )
    _check_fault_of_all(spec, ends)
    configs = [
        _config_with(spec, name, value, ends) for name, values in ends.items() for value in values
    ]
    _check_shared(configs[0], path)


def _check_whole(values: SearchRange, where: str) -> None:
    """Raise ConfigError unless the range of a setting that is a whole number has whole numbers."""
    for name in ("low", "high", "step"):
        number = getattr(values, name)
        if number is not None and number != int(number):
            raise ConfigError(
                f"{where}: {name} {number}: must be a whole number, as the setting is"
            )


def _ends(spec: SweepSpec, name: str) -> list[Any]:
    """Return the values of a setting to try beforehand, as `encoded`: all choices, or the first and
    the last value of a range."""
    values = spec.search[name]
    if values.choices is not None:
        return spec.grid(name)
    if spec.method.sampler == "grid":
        return [spec.grid(name)[0], spec.grid(name)[-1]]
    assert values.low is not None and values.high is not None
    whole = spec.is_whole(name)
    return [int(end) if whole else end for end in (values.low, values.high)]


def _config_with(
    spec: SweepSpec, name: str, value: Any, ends: Mapping[str, list[Any]]
) -> AnyConfig:
    """Return the config of a trial with an `encoded` value of a setting. Raises ConfigError for one
    that no trial can have: neither with the first values of the others, nor with the last ones, nor
    with their defaults. What is refused only beside some values of others is left to the trials."""
    refusals = []
    for chosen in _beside(name, value, ends):
        try:
            return spec.config(chosen)
        except ConfigError as error:
            refusals.append(str(error))
    reason = refusals[0].removeprefix(f"{spec.source}: ")
    remedy = "leave it out" if spec.search[name].choices is not None else "change the range"
    raise ConfigError(
        f"{spec.source}: search: {name}: no trial can have {spec.decoded(name, value)} ({reason}); "
        f"{remedy}"
    )


def _beside(name: str, value: Any, ends: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the values of trials to try with a value of a setting: the first ones of the others,
    the last ones, and none."""
    others = {other: values for other, values in ends.items() if other != name}
    firsts, lasts = ({n: v[at] for n, v in others.items()} for at in (0, -1))
    return [{**chosen, name: value} for chosen in (firsts, lasts, {})]


def _check_fault_of_all(spec: SweepSpec, ends: Mapping[str, list[Any]]) -> None:
    """Raise ConfigError for a fault of the settings of all trials: the same without searched values
    and with each. Settings that fit only beside some of the searched values have none."""
    tried = (
        chosen
        for name, values in ends.items()
        for value in values
        for chosen in _beside(name, value, ends)
    )
    fault = _refusal(spec, {})
    if fault is not None and all(_refusal(spec, chosen) == fault for chosen in tried):
        raise ConfigError(f"{spec.source}: config: {fault.removeprefix(f'{spec.source}: ')}")


def _refusal(spec: SweepSpec, chosen: Mapping[str, Any]) -> str | None:
    """Return why a trial with the ``chosen`` values would be refused, None if it would not."""
    try:
        spec.config(chosen)
    except ConfigError as error:
        return str(error)
    return None


def _check_shared(config: Any, path: Path) -> None:
    """Raise ConfigError for settings with which a trial does not train, does not end, or writes
    where the others write."""
    if config.benchmark or config.sampler_only:
        name = "benchmark" if config.benchmark else "sampler_only"
        raise ConfigError(f"{path}: config: {name}: a trial would learn nothing; leave it out")
    if config.resume != "auto":
        raise ConfigError(
            f"{path}: config: resume: the same command resumes a sweep, and its trials go on by "
            "themselves; leave it out"
        )
    if getattr(config, "record", None) is not None:
        raise ConfigError(
            f"{path}: config: record: all trials would write one dataset; leave it out, and record "
            "the best trial afterwards (sampleforge record), or train one run with --record"
        )


def _mapping(value: Any, key: str, path: Path) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: {key} must hold key: value lines")
    return dict(value)


def _flat(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return settings by their dotted names. Raises ConfigError, which names ``source``, for one
    that is given in two spellings."""
    flat: dict[str, Any] = {}
    for key, value in with_underscores(values, source).items():
        if key == "model" and isinstance(value, Mapping):
            inner = _flat(value, f"{source}: model")
            flat |= {f"model.{name}": each for name, each in inner.items()}
        else:
            flat[key] = value
    return flat


def _known(raw_name: str, algo: str, path: Path) -> str:
    """Return the dotted name of a setting to search. Raises ConfigError for an unknown one, which
    names the nearest."""
    name, fields = str(raw_name).replace("-", "_"), flat_fields(config_class(algo)())
    if name in _FIXED:
        raise ConfigError(f"{path}: search: {name} is the same in all trials; move it to config")
    if name not in fields:
        near = nearest(name, fields, 1)
        hint = f". Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{path}: search: unknown key {raw_name!r}{hint}")
    return name


def _range(name: str, values: Any, path: Path) -> SearchRange:
    where = f"{path}: search: {name}"
    try:
        return from_plain(SearchRange, _mapping(values, f"search: {name}", path), where)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(str(path)) else f"{where}: {text}") from error


def _hint(cls: type[Any], name: str) -> Any:
    """Return the type of a setting by its dotted name."""
    hint: Any = cls
    for part in name.split("."):
        hint = typing.get_type_hints(hint)[part]
    return hint


def _is_number(cls: type[Any], name: str) -> bool:
    hint = _hint(cls, name)
    return bool({int, float} & {hint, *typing.get_args(hint)})


def encoded(choice: Choice) -> Scalar:
    """Return a choice as a value that Optuna's storage takes: lists become their JSON."""
    return json.dumps(list(choice)) if isinstance(choice, tuple) else choice
