"""The rules of a population that the user's flags stand for."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sampleforge.algorithms.annealing import annealings
from sampleforge.config import ConfigError, typed
from sampleforge.env.probe import EnvProbeError, probe
from sampleforge.populations.rounds import (
    EXPLOIT_RULES,
    KNOWN,
    Bounds,
    ExploitRule,
    ExploreRule,
    Parameter,
    Takes,
    Value,
    explore_rule,
    first_values,
)
from sampleforge.run.unused import FOLLOWED, Resolved, stages, unread
from sampleforge.spec import ENV_PREFIX, EnvSpec
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.population_config import (
    PbtConfig,
    PbtRulesConfig,
    hyperparameter,
    ranges,
)
from sampleforge.topologies.registry import pairing

if TYPE_CHECKING:
    from sampleforge.run.session import Session


@dataclass(frozen=True)
class Rules:
    """The rules of a population, the ``first`` hyperparameters of each member, and which values a
    member ``takes``."""

    exploit: ExploitRule
    explore: ExploreRule
    first: Sequence[Mapping[str, Value]]
    takes: Takes


def rules_of(
    config: AnyConfig,
    flags: PbtRulesConfig,
    ids: Sequence[str],
    shaping: Mapping[str, float],
    rng: np.random.Generator,
) -> Rules:
    """Return the rules that ``flags`` stand for. ``config``: the members', with resolved defaults;
    ``ids``: theirs; ``shaping``: the reward-shaping numbers that the environment offers, by their
    names as hyperparameters. Raises ConfigError for a hyperparameter that cannot change, and for a
    bound that it cannot have."""
    variant = flags.pbt_variant
    defaults = pairing(config).algorithm.hyperparameters(config) | dict(shaping)
    if getattr(config, "lr_schedule", None) != "kl_adaptive" and "lr_target_kl" not in given_names(
        flags
    ):
        defaults.pop("lr_target_kl", None)  # nothing reads it
    for name, schedule in annealings(config).items():
        if schedule.replaces_value:  # what a population finds would have no effect
            defaults.pop(name, None)
            if name in given_names(flags):
                raise ConfigError(
                    f"--pbt-perturb {name}: it follows {schedule.flag}; leave out one of the two"
                )
    bounds = ranges("pbt_bounds", flags.pbt_bounds)
    initial = ranges("pbt_initial", flags.pbt_initial)
    _check_taken(config, "--pbt-bounds", bounds)
    _check_taken(config, "--pbt-initial", initial)
    if unknown := sorted(set(initial) - set(defaults)):
        raise ConfigError(
            f"--pbt-initial {unknown[0]}: cannot change during the training; these can: "
            f"{', '.join(sorted(defaults))}"
        )
    try:
        perturbed = explore_rule(
            variant,
            defaults,
            [hyperparameter(word) for word in flags.pbt_perturb],
            bounds,
            initial if variant == "truncation" else {},
        )
    except ValueError as error:
        raise ConfigError(f"--pbt-perturb, --pbt-bounds: {error}") from error
    _check_bounds(bounds, perturbed)
    _check_initial(initial, bounds, perturbed)
    given: dict[str, Any] = {}
    if flags.pbt_perturb_chance is not None:
        given["chance"] = flags.pbt_perturb_chance
    if flags.pbt_factors:
        low, high = flags.pbt_factors
        given |= {"factors": (low, high), "steps": ()}
        every = perturbed.parameters.items()
        given["parameters"] = {n: dataclasses.replace(p, factors=None) for n, p in every}
    return Rules(
        _exploit_rule(flags, ids),
        dataclasses.replace(perturbed, **given),
        first_values(initial, len(ids), rng),
        partial(takes, config),
    )


def warnings_of(session: Session, flags: PbtRulesConfig, rules: Rules) -> Iterator[str]:
    """Yield what the user is warned of before a population in one run begins."""
    steps = session.resolved.train_for_env_steps
    if (text := warning_of_start(flags.pbt_start, len(rules.first), steps)) is not None:
        yield text
    for text in without_effect(Resolved.of(session.run_plan), flags, rules):
        yield f"--pbt: {text}"
    for text in beyond_bounds(rules.explore, {name for first in rules.first for name in first}):
        yield f"--pbt: {text}"


def beyond_bounds(explore: ExploreRule, drawn: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each hyperparameter with which all members begin beyond its bounds.
    ``drawn``: the names of those whose first values differ, which are within them."""
    for name, parameter in explore.parameters.items():
        value, both = parameter.default, parameter.bounds
        if value is None or isinstance(value, bool) or _unchanging(name, parameter):
            continue
        if name not in drawn and not both[0] <= value <= both[1]:
            wide = _typed_range(name, (min(both[0], value), max(both[1], value)))
            yield (
                f"{name} is {value:g}, and the first perturbation takes it to the bounds "
                f"{_typed_range(name, both)}; --pbt-bounds {wide} keeps it"
            )


def without_effect(run: Resolved, flags: PbtRulesConfig, rules: Rules) -> Iterator[str]:
    """Yield a sentence for each hyperparameter that the ``flags`` name and that changes nothing in
    the members' ``run``: nothing reads it, or every perturbation leaves it as it is."""
    in_turn = stages(run, ({}, *rules.first))
    for name in sorted(given_names(flags)):
        if (reason := unread(name, in_turn)) not in (None, FOLLOWED):
            yield f"{name} has no effect: {reason}"
            continue
        parameter = rules.explore.parameters.get(name)
        drawn = any(name in first for first in rules.first)
        if parameter is not None and not drawn and (reason := _unchanging(name, parameter)):
            yield f"{name} is not perturbed: {reason}"


def _unchanging(name: str, parameter: Parameter) -> str | None:
    """Return why every perturbation leaves a hyperparameter as it is, and the remedy; None if it
    changes."""
    value, flag = parameter.default, name.replace("_", "-")
    if value is None:
        return f"it is off; give it a value, with --{flag}"
    if isinstance(value, bool):
        return None
    if value == 0 and not parameter.complement:
        return (
            "it is 0, which has no multiples; give it another value, or ranges to begin with, as "
            f"in --pbt-initial {flag}=1e-3..1"
        )
    if value == 1 and parameter.complement and parameter.bounds[1] >= 1:
        return (
            "it is 1, and 1 - x, which is 0, has no multiples; give it another value, or ranges to "
            f"begin with, as in --pbt-initial {flag}=0.9..0.99"
        )
    return None


def takes(config: AnyConfig, name: str, value: Value) -> bool:
    """Return whether a member with ``config`` can have the value; a reward-shaping number can be
    any."""
    if not hasattr(config, name):
        return True
    try:
        dataclasses.replace(config, **{name: value})  # type: ignore[arg-type]
    except ConfigError:
        return False
    return True


def _check_taken(config: AnyConfig, flag: str, given: Mapping[str, Bounds]) -> None:
    """Raise ConfigError for a range given by ``flag`` with an end that no member can have."""
    for name, both in given.items():
        for end in both if name in pairing(config).algorithm.hyperparameters(config) else ():
            try:
                dataclasses.replace(config, **{name: end})  # type: ignore[arg-type]
            except ConfigError as error:
                raise ConfigError(
                    f"{flag} {_typed_range(name, both)}: no member can have {error}; give another "
                    "range"
                ) from error


def _check_initial(
    initial: Mapping[str, Bounds], bounds: Collection[str], rule: ExploreRule
) -> None:
    """Raise ConfigError for ranges of the first values from which none can be drawn, or one beyond
    the bounds of the ``rule``, to which the first perturbation would take it back. ``bounds``:
    names of the hyperparameters whose bounds were given."""
    for name, both in initial.items():
        typed_both = f"--pbt-initial {_typed_range(name, both)}"
        if KNOWN.get(name, Parameter()).complement and both[1] >= 1:
            raise ConfigError(
                f"{typed_both}: 1 - x is drawn log-uniformly, so the upper end must be below 1"
            )
        low, high = rule.parameters[name].bounds if name in rule.parameters else both
        if low <= both[0] and both[1] <= high:
            continue
        outside = f"members would begin outside --pbt-bounds {_typed_range(name, (low, high))}"
        if name in bounds:
            raise ConfigError(f"{typed_both}: {outside}; change one of the two")
        wide = _typed_range(name, (min(low, both[0]), max(high, both[1])))
        raise ConfigError(
            f"{typed_both}: {outside}, the default, and come to them with their first "
            f"perturbation; add --pbt-bounds {wide}, or give a range within"
        )


def _typed_range(name: str, both: Bounds) -> str:
    """Return a range as it is typed."""
    return f"{name.replace('_', '-')}={both[0]:g}..{both[1]:g}"


def _check_bounds(bounds: Collection[str], rule: ExploreRule) -> None:
    """Raise ConfigError for bounds of a hyperparameter that is not perturbed."""
    for name in sorted(set(bounds) - set(rule.parameters)):
        raise ConfigError(
            f"--pbt-bounds {name}: it is not perturbed, but {', '.join(rule.parameters)}; name it "
            "in --pbt-perturb, too, or leave it out"
        )


def _exploit_rule(flags: PbtRulesConfig, ids: Sequence[str]) -> ExploitRule:
    """Return the variant's rule with the numbers that the flags give in the place of its own."""
    names = ("replaced", "donors", "relative_gap", "absolute_gap", "deviation_gap")
    given = {name: getattr(flags, f"pbt_{name}") for name in names}
    return dataclasses.replace(
        EXPLOIT_RULES[flags.pbt_variant],
        reference=None if flags.pbt_reference is None else ids[flags.pbt_reference],
        **{name: value for name, value in given.items() if value is not None},
    )


def check_unchanged(changed: Mapping[str, Any], names: Collection[str], owner: str) -> None:
    """Raise ConfigError if a resumed run changes a hyperparameter that ``owner`` sets: one of
    ``names``. ``changed``: what it changes, new values by name."""
    for name, value in changed.items():
        if name in names:
            raise ConfigError(
                f"{typed(name, value)}: it is changed on a resume, but {owner}; undo the change to "
                "resume the run, or start a new one with another --run-dir"
            )


def given_names(flags: PbtRulesConfig) -> set[str]:
    """Return the hyperparameters that the flags of a population name."""
    return {*map(hyperparameter, (*flags.pbt_perturb, *flags.pbt_bounds, *flags.pbt_initial))}


def changes_shaping(flags: PbtRulesConfig, config: AnyConfig) -> bool:
    """Return whether a population of runs perturbs the numbers by which an environment may offer to
    shape its rewards: not if the ``flags`` name only other hyperparameters. Raises ConfigError if
    they name such numbers, and runs of the algorithm cannot change them."""
    changes = any(name.startswith(ENV_PREFIX) for name in given_names(flags))
    if isinstance(config, PbtConfig):
        return changes or not flags.pbt_perturb
    if changes:
        raise ConfigError(
            f"{ENV_PREFIX}...: {config.algo} cannot change the numbers by which an environment "
            "shapes its rewards; leave them out, or use appo or apex"
        )
    return False


def spec_of_members(config: AnyConfig, *, here: bool) -> EnvSpec:
    """Return the spec of the environment of a population of runs. ``here``: the runs are processes
    of this machine. Raises EnvProbeError if the environment does not work."""
    try:
        return probe(config)
    except EnvProbeError as error:
        if here:
            raise
        raise type(error)(
            f"{error}\nThe environment was asked here for its reward-shaping numbers. If it works "
            "only where the jobs run, name the hyperparameters that are perturbed, as in "
            "--pbt-perturb learning-rate gamma: then it is not asked",
            error.stage,
        ) from error


def warning_of_start(start: int, members: int, env_steps: int | None) -> str | None:
    """Return what the user is warned of if a population of so many ``members`` trains for no more
    than ``env_steps`` env steps in total and has no round by then; else None. ``start``: the env
    steps of each member at the first round."""
    if env_steps is None or env_steps > start * members:
        return None
    return (
        f"nothing is copied or perturbed: the first round is at {start:,} env steps of each member "
        f"(--pbt-start, --pbt-period), and the training ends at {env_steps // members:,}; give "
        "an earlier start, or a larger --train-for-env-steps"
    )


def check_own(config: AnyConfig) -> None:
    """Raise ConfigError for flags of a population in one run among those of the algorithm of a
    population of runs."""
    if not isinstance(config, PbtConfig):
        return
    for field in dataclasses.fields(PbtConfig):
        value = getattr(config, field.name)
        if value != getattr(PbtConfig(), field.name):
            flag = typed(field.name, value)
            if field.name in ("pbt", "schedule"):
                raise ConfigError(f"{flag}: is for a single run; leave it out")
            raise ConfigError(
                f"{flag}: give it before the algorithm, as in sampleforge pbt {flag} ... "
                f"{config.algo} ..."
            )
