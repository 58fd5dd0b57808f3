"""The settings that `sampleforge tune --for return` searches, by algorithm: ranges and choices
around the defaults for the environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.sampler_plan import run_device

Range = dict[str, Any]
"""The values of a setting as the YAML file of a sweep has them: low, high and log, or choices."""
RATE_FACTOR = 10.0
"""The learning rate is searched from a tenth of its default to ten times as much."""


@dataclass(frozen=True)
class SearchSpace:
    """``ranges``: setting -> its values; ``defaults``: setting -> the value that a run has without
    a flag, which is among them."""

    ranges: dict[str, Range]
    defaults: dict[str, Any]


def search_space(config: AnyConfig, spec: EnvSpec) -> SearchSpace:
    """Return the settings to search for ``config``, as the user has given it, in the environment
    with this ``spec``. Choices that a run would refuse are left out. Raises ConfigError for a
    config that cannot run, or whose algorithm does not learn from an environment."""
    if pairing(config).topology.sampler is None:
        raise ConfigError(
            f"--for return: {config.algo} learns from recorded data, and its reports have no "
            "return; search its settings with `sampleforge sweep` and metric: "
            "eval_return_mean"
        )
    resolved, batch = _planned(config, spec)
    around = _of_replay if config.topology == "replay" else _of_rollouts
    wanted = {n: values for n, values in around(resolved, batch).items() if hasattr(resolved, n)}
    ranges: dict[str, Range] = {"learning_rate": _rates(resolved.learning_rate)}
    defaults = {"learning_rate": resolved.learning_rate}
    for name, values in wanted.items():
        default = batch if name == "batch_size" else getattr(resolved, name)
        fitting = _fitting(values, default, partial(_runs, config, spec, name))
        if len(fitting) > 1:
            ranges[name], defaults[name] = {"choices": fitting}, default
    return SearchSpace(ranges, defaults)


def _of_rollouts(config: Any, batch: int) -> dict[str, Iterable[Any]]:
    """Return values to try of a resolved config that learns from batches of rollouts, of so many
    env steps."""
    values: dict[str, Iterable[Any]] = {
        "exploration_coeff": (0.0, 0.001, 0.003, 0.01, 0.03),
        "gamma": (0.97, 0.98, 0.99, 0.995, 0.999),
        "gae_lambda": (0.8, 0.9, 0.95, 0.98, 1.0),
        "return_lambda": (0.5, 0.65, 0.8, 0.9, 0.95),
        "clip_ratio": (0.1, 0.2, 0.3),
    }
    if config.async_rl:
        return {**values, "num_epochs": (1, 2, 4), "batch_size": _halves_and_doubles(batch)}
    return {
        **values,
        "num_epochs": (3, 5, 10, 20),
        "rollout": _halves_and_doubles(config.rollout),
        "minibatch_size": _halves_and_doubles(config.minibatch_size, 2),
    }


def _of_replay(config: Any, batch: int) -> dict[str, Iterable[Any]]:
    """Return values to try of a resolved config that learns from a replay, from samples of so many
    items."""
    values: dict[str, Iterable[Any]] = {
        "gamma": (0.97, 0.98, 0.99, 0.995, 0.999),
        "n_step": (1, 3, 5, 10),
        "target_update_interval": _halves_and_doubles(
            getattr(config, "target_update_interval", None), 2
        ),
        "updates_per_env_step": (0.25, 0.5, 1.0, 2.0),
        "target_rate": (0.002, 0.005, 0.01, 0.02),
        "batch_size": _halves_and_doubles(batch),
        "priority_alpha": (0.0, 0.4, 0.6, 0.9),
    }
    if config.samples_per_insert is not None:
        ratio = config.samples_per_insert
        values["samples_per_insert"] = (ratio / 2, ratio, 2 * ratio, 4 * ratio)
    if not getattr(config, "noisy_nets", False):
        values["epsilon_base"] = (0.2, 0.4, 0.7)
    return values


def _rates(default: float) -> Range:
    return {"low": default / RATE_FACTOR, "high": default * RATE_FACTOR, "log": True}


def _halves_and_doubles(number: int | None, times: int = 1) -> list[int]:
    """Return a number divided by and multiplied with 2, 4 and so on, as often as ``times``; nothing
    for None."""
    if number is None:
        return []
    down = [number // 2**k for k in range(times, 0, -1) if number % 2**k == 0]
    return [*down, number, *(number * 2**k for k in range(1, times + 1))]


def _fitting(values: Iterable[Any], default: Any, runs: Callable[[Any], bool]) -> list[Any]:
    """Return the default, if there is one, and those of the values with which a run can begin, in
    order."""
    if default is None:
        return []
    return sorted({default, *(value for value in values if value != default and runs(value))})


def _planned(config: Any, spec: EnvSpec) -> tuple[Any, int]:
    """Return a config with its defaults resolved, and its batch size. Raises ConfigError if it
    cannot run."""
    chosen = pairing(config)
    resolved = chosen.resolve_defaults(config, spec)
    plan = chosen.plan(resolved, spec, run_device(config, spec))
    return resolved, int(plan.batch_size)


def _runs(config: Any, spec: EnvSpec, name: str, value: Any) -> bool:
    """Return whether a run with another value of one setting can begin."""
    try:
        _planned(dataclasses.replace(config, **{name: value}), spec)
    except ConfigError:
        return False
    return True
