"""What a population of training runs was started with, kept for comparison when it is resumed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sampleforge.config import ConfigError, difference, typed
from sampleforge.populations.rounds import Bounds, first_values
from sampleforge.populations.rules import (
    beyond_bounds,
    rules_of,
    warning_of_start,
    without_effect,
)
from sampleforge.run.beginning import plan_run
from sampleforge.run.folder.kinds import POPULATION
from sampleforge.run.folder.stored_config import MAY_CHANGE, flat_fields
from sampleforge.run.folder.versions import left_open, translated
from sampleforge.run.unused import Resolved
from sampleforge.runtime.files import to_json, write_json
from sampleforge.spec import EnvSpec
from sampleforge.tools.pbt.member_change import MemberRules
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.population_config import PbtRulesConfig
from sampleforge.topologies.registry import pairing


@dataclass(frozen=True)
class PopulationSettings:
    """What a population is. ``config``: the members', without a run folder; ``first``: the ranges
    from which their first hyperparameters are drawn; ``max_restarts``: times in a row that a member
    may die without any progress; ``without_effect``: what the user is told of hyperparameters whose
    change has none."""

    size: int
    config: AnyConfig
    rules: MemberRules
    first: Mapping[str, Bounds] = field(default_factory=dict)
    max_restarts: int = 5
    without_effect: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        config = self.config
        if config.run_dir is not None:
            raise ConfigError("--run-dir: the members have folders in --folder; leave it out")
        if config.train_for_env_steps is None and config.train_for_seconds is None:
            raise ConfigError("give --train-for-env-steps: the members would never end")
        if config.benchmark or config.sampler_only:
            raise ConfigError("--benchmark and --sampler-only learn nothing; leave them out")
        if getattr(config, "num_policies", 1) > 1:
            raise ConfigError(
                "--num-policies: a member of a population of runs has one policy; leave it out, or "
                "train a population in one run: sampleforge train ALGO --pbt. (If agents with "
                "different spaces need several policies, search hyperparameters with `sampleforge "
                "sweep`.)"
            )
        if config.resume != "auto":
            raise ConfigError("--resume: the same command resumes a population; leave it out")
        record = getattr(config, "record", None)
        if record is not None:
            raise ConfigError(
                f"{typed('record', record)}: all members would write one dataset; leave it out, "
                "and record the best member afterwards (sampleforge record), or train one run with "
                "--record"
            )

    @property
    def warnings(self) -> list[str]:
        """What the user is warned of: that no member lives to see a round that changes it, what is
        `without_effect`, and what begins beyond its bounds."""
        period = self.rules.period
        first = max(1, -(-self.rules.start // period)) * period  # the first multiple from it on
        late = warning_of_start(first, 1, self.config.train_for_env_steps)
        beyond = beyond_bounds(self.rules.explore, self.first)
        return [*([] if late is None else [late]), *self.without_effect, *beyond]


def told_of(config: AnyConfig, flags: PbtRulesConfig, size: int, spec: EnvSpec) -> tuple[str, ...]:
    """Return what the user is told of hyperparameters whose change has no effect in the members'
    runs. ``config``: theirs; ``size``: their number; ``spec``: of their environment. Raises
    ConfigError for runs that are not possible."""
    plan = plan_run(pairing(config), config, spec)
    ids, offered = [str(index) for index in range(size)], spec.shaping_hyperparameters
    rules = rules_of(plan.resolved, flags, ids, offered, np.random.default_rng(0))
    return tuple(without_effect(Resolved.of(plan), flags, rules))


def opened(
    settings: PopulationSettings, folder: Path
) -> tuple[PopulationSettings, list[dict[str, float]]]:
    """Return the settings with the seed of the population in ``folder``, and the first
    hyperparameters of each member; write both down, or compare them with those of the population
    there. Raises ConfigError if they are others."""
    path = folder / POPULATION
    stored = _read(path) if path.is_file() else {}
    seed = stored.get("seed", settings.rules.seed)
    settings = dataclasses.replace(
        settings, rules=dataclasses.replace(settings.rules, seed=int(seed))
    )
    now = _plain(settings)
    before = _comparable(stored.get("settings", {}), settings.config)
    if stored and (changes := difference(before, _comparable(now, settings.config))):
        lines = "\n  ".join(changes)
        raise ConfigError(
            f"the population in {folder} has other settings (old -> new):\n  {lines}\n"
            "undo the changes to resume it, or give another --folder"
        )
    first = list(stored.get("first", []))
    if any(set(values) != set(settings.first) for values in first):
        raise ConfigError(f"{path} is damaged: first has other hyperparameters")
    joining = settings.size - len(first)
    if joining < 0:
        raise ConfigError(
            f"--population {settings.size}: the population in {folder} has {len(first)} "
            "members; give as many, or more"
        )
    if joining:
        rng = np.random.default_rng([settings.rules.seed, len(first)])
        first += first_values(settings.first, joining, rng)
    plain = {"seed": settings.rules.seed, "settings": now, "first": first}
    write_json(path, plain)
    return settings, first


def _plain(settings: PopulationSettings) -> dict[str, Any]:
    """Return what must not change when a population is resumed, as JSON has it."""
    rules = dataclasses.asdict(settings.rules)
    del rules["turns"], rules["seed"]
    config = settings.config
    plain = {"algo": config.algo, "config": _fixed(config), "rules": rules}
    return dict(json.loads(to_json({**plain, "first": dict(settings.first)})))


def _fixed(config: AnyConfig) -> dict[str, Any]:
    """Return the fields of a config that members may not change, by dotted name, as JSON has
    them."""
    fields = flat_fields(config).items()
    fixed = {name: value for name, value in fields if name not in {*MAY_CHANGE, "seed"}}
    return dict(json.loads(to_json(fixed)))


def _comparable(plain: Mapping[str, Any], config: AnyConfig) -> dict[str, Any]:
    """Return `_plain` settings, perhaps of an earlier version, as this version would have stored
    them. A field of the ``config`` that there was not yet had its default."""
    kind: type[Any] = type(config)
    usual = _fixed(kind(env=config.env))
    return {**plain, "config": left_open({**usual, **translated(plain.get("config", {}))})}


def _read(path: Path) -> dict[str, Any]:
    """Return the contents of population.json. Raises ConfigError if it is damaged."""
    try:
        stored = json.loads(path.read_bytes())
        first = stored["first"]
        numbers = [value for values in first for value in values.values()]
        if not all(isinstance(value, int | float) for value in numbers):
            raise ValueError("first hyperparameters must be numbers")
        int(stored["seed"]), dict(stored["settings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
    return dict(stored)
