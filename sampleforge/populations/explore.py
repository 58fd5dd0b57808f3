"""Explore: the perturbation of a member's hyperparameters, and their first values.

Jaderberg et al. 2017, arXiv 1711.09846. The functions are pure: hyperparameters, a rule and a
random generator go in, and new hyperparameters come out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from sampleforge.populations.exploit import Value, Variant
from sampleforge.spec import ENV_PREFIX

Bounds = tuple[float, float]
"""Lowest and highest value."""


@dataclass(frozen=True)
class Parameter:
    """The perturbation of one hyperparameter.

    ``bounds`` limit its new values. ``complement``: 1 - x is perturbed in the place of x, which
    suits discounts. ``factors``: those of this hyperparameter, in the place of the rule's.
    ``default``: the value that it is reset to (None: it is not). ``drawn``: the range from which it
    is drawn anew, log-uniformly (None: it is not).
    """

    bounds: Bounds = (-math.inf, math.inf)
    complement: bool = False
    factors: Bounds | None = None
    default: Value | None = None
    drawn: Bounds | None = None


@dataclass(frozen=True)
class ExploreRule:
    """How hyperparameters are perturbed. Only ``parameters`` are.

    Each of them changes with probability ``chance``. It is then reset to its default with
    probability ``reset_chance``, else drawn anew with probability ``draw_chance``, else multiplied:
    by one of ``steps``, or, if there are none, by U[``factors``] or by the reciprocal of that.
    Booleans are flipped instead.
    """

    chance: float
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    factors: Bounds = (1.1, 1.5)
    steps: tuple[float, ...] = ()
    reset_chance: float = 0.0
    draw_chance: float = 0.0


EXPLORE_RULES: Mapping[Variant, ExploreRule] = {
    "sample-factory": ExploreRule(chance=0.15, reset_chance=0.01),
    "dexpbt": ExploreRule(chance=0.15),
    "truncation": ExploreRule(chance=1.0, steps=(1.2, 0.8), draw_chance=0.25),
}
"""The rules of each variant, without the parameters; see `explore_rule`."""

KNOWN: Mapping[str, Parameter] = {
    "learning_rate": Parameter((1e-8, 1.0)),
    "lr_target_kl": Parameter((1e-5, 1.0)),
    "gamma": Parameter((0.5, 0.99999), complement=True),
    "gae_lambda": Parameter((0.0, 1.0), complement=True),
    "max_grad_norm": Parameter((1e-3, 1e3)),
    "reward_scale": Parameter((1e-6, 1e6)),
    "clip_ratio": Parameter((1e-3, 1.0)),
    "value_clip": Parameter((1e-3, 1e3)),
    "value_coeff": Parameter((1e-4, 1e2)),
    "exploration_coeff": Parameter((0.0, 1.0)),
    "kl_coeff": Parameter((0.0, 1e2)),
    "vtrace_rho": Parameter((0.1, 1e2)),
    "vtrace_c": Parameter((0.1, 1e2)),
    "huber_delta": Parameter((1e-3, 1e3)),
}
"""The perturbation of each of the learners' hyperparameters. The bounds keep a member within values
that its learner takes."""
_DEXPBT: Mapping[str, Parameter] = {
    "gamma": replace(KNOWN["gamma"], factors=(1.1, 1.2)),
    "gae_lambda": replace(KNOWN["gae_lambda"], factors=(1.1, 1.2)),
    "clip_ratio": replace(KNOWN["clip_ratio"], bounds=(0.01, 0.3)),
}
PERTURBED: tuple[str, ...] = (
    "learning_rate",
    "exploration_coeff",
    "value_coeff",
    "max_grad_norm",
    "clip_ratio",
    "value_clip",
    "gamma",
    "gae_lambda",
    "lr_target_kl",
    "huber_delta",
)
"""The hyperparameters that are perturbed unless others are named."""


def explore_rule(
    variant: Variant,
    defaults: Mapping[str, Value],
    names: Iterable[str] = (),
    bounds: Mapping[str, Bounds] | None = None,
    drawn: Mapping[str, Bounds] | None = None,
) -> ExploreRule:
    """Return the rule of a variant for a population whose hyperparameters are ``defaults`` without
    PBT.

    ``names``: the hyperparameters that are perturbed (empty: `PERTURBED`, and the reward-shaping
    numbers of the environment). ``bounds``: in the place of the usual ones. ``drawn``: the ranges
    from which truncation selection draws anew. Raises ValueError for a name that is not in
    ``defaults``.
    """
    bounds, drawn = bounds or {}, drawn or {}
    given = {*names, *bounds, *drawn}
    if unknown := sorted(given - set(defaults)):
        raise ValueError(
            f"{', '.join(unknown)} cannot be perturbed; these hyperparameters can: "
            f"{', '.join(sorted(defaults))}"
        )
    usual = [n for n in defaults if n in PERTURBED or n.startswith(ENV_PREFIX)]
    own = _DEXPBT if variant == "dexpbt" else {}
    parameters = {}
    for name in sorted({*names} or {*usual, *given}):
        parameter = own.get(name) or KNOWN.get(name) or Parameter()
        parameters[name] = replace(
            parameter,
            bounds=bounds.get(name, parameter.bounds),
            default=defaults[name],
            drawn=drawn.get(name),
        )
    return replace(EXPLORE_RULES[variant], parameters=parameters)


def explore(
    hyperparameters: Mapping[str, Value], rule: ExploreRule, rng: np.random.Generator
) -> dict[str, Value]:
    """Return the hyperparameters after a perturbation, in the same order. A value of None is an
    option that is off, and stays so; so does 0, which has no multiples."""
    perturbed = dict(hyperparameters)
    for name in sorted(set(hyperparameters) & set(rule.parameters)):
        value = hyperparameters[name]
        if value is not None and rng.random() < rule.chance:
            perturbed[name] = _perturbed(value, rule.parameters[name], rule, rng)
    return perturbed


def _perturbed(
    value: float | bool, parameter: Parameter, rule: ExploreRule, rng: np.random.Generator
) -> Value:
    """Return the new value of one hyperparameter, which is not None and is to change."""
    if parameter.default is not None and rng.random() < rule.reset_chance:
        return parameter.default
    if isinstance(value, bool):
        return not value
    if value == 0 and not parameter.complement:
        return value
    if parameter.drawn is not None and rng.random() < rule.draw_chance:
        low, high = parameter.drawn
        return _like(value, draw(low, high, rng, complement=parameter.complement), parameter)
    if rule.steps:
        factor = rule.steps[int(rng.integers(len(rule.steps)))]
    else:
        factor = float(rng.uniform(*(parameter.factors or rule.factors)))
        factor = factor if rng.random() < 0.5 else 1.0 / factor
    changed = 1.0 - (1.0 - value) * factor if parameter.complement else value * factor
    return _like(value, changed, parameter)


def _like(value: float, changed: float, parameter: Parameter) -> float:
    """Return the changed value within the bounds, and a whole number if the old value is one."""
    low, high = parameter.bounds
    within = min(max(changed, low), high)
    return round(within) if isinstance(value, int) else float(within)


def draw(low: float, high: float, rng: np.random.Generator, *, complement: bool = False) -> float:
    """Return a value drawn log-uniformly from [low, high], where 0 < low; with ``complement``, one
    whose 1 - x is log-uniform, where high < 1."""
    if complement:
        return 1.0 - draw(1.0 - high, 1.0 - low, rng)
    drawn = math.exp(rng.uniform(math.log(low), math.log(high)))
    return min(max(drawn, low), high)


def first_values(
    ranges: Mapping[str, Bounds], members: int, rng: np.random.Generator
) -> list[dict[str, float]]:
    """Return the first values of the hyperparameters ``ranges`` for each of so many members.

    Each range is divided into as many strata as there are members, equal in the logarithm (of 1 - x
    where 1 - x is perturbed), and each member draws from a stratum of its own; the strata are dealt
    to the members at random.
    """
    values: list[dict[str, float]] = [{} for _ in range(members)]
    for name in sorted(ranges):
        low, high = ranges[name]
        complement = KNOWN.get(name, Parameter()).complement
        edges = _strata(low, high, members, complement=complement)
        for member, stratum in enumerate(rng.permutation(members).tolist()):
            low, high = edges[stratum]
            values[member][name] = draw(low, high, rng, complement=complement)
    return values


def _strata(low: float, high: float, count: int, *, complement: bool) -> Sequence[Bounds]:
    """Return the bounds of ``count`` strata of [low, high], in ascending order."""
    if complement:
        mirrored = _strata(1.0 - high, 1.0 - low, count, complement=False)
        return [(1.0 - b, 1.0 - a) for a, b in reversed(mirrored)]
    edges = np.geomspace(low, high, count + 1).tolist()
    edges[0], edges[-1] = low, high
    return list(pairwise(edges))
