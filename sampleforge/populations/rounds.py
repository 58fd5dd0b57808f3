"""The decisions of a population (Jaderberg et al. 2017, arXiv 1711.09846). Exploit: the members
that are replaced, and the donors whose weights they copy. Explore: the perturbation of a member's
hyperparameters, and their first values. Round: which members change, how, and what the lineage says
about it.

Both populations decide with these functions: the policies of one run (`pbt.py`), whose changes
travel through shared memory, and the population of runs (`sampleforge.tools.pbt`), whose
changes are checkpoints. The functions are pure: members or hyperparameters, a rule and a random
generator go in, and a decision comes out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from sampleforge.spec import ENV_PREFIX

Value = float | bool | None
"""A hyperparameter's value; None for an option that is off."""
Variant = Literal["sample-factory", "dexpbt", "truncation"]


@dataclass(frozen=True)
class Member:
    """One member of a population.

    ``objective`` is the mean return of its own episodes, those since its weights were last copied
    from a donor (None: there are too few). ``env_steps`` is its own number of env steps.
    ``has_snapshot``: whether its weights can be copied now.
    """

    id: str
    objective: float | None
    hyperparameters: Mapping[str, Value] = field(default_factory=dict)
    env_steps: int = 0
    has_snapshot: bool = True

    @property
    def is_rated(self) -> bool:
        """Whether the member has an objective of its own, which is finite."""
        return self.objective is not None and math.isfinite(self.objective)


@dataclass(frozen=True)
class ExploitRule:
    """Which members are replaced, and by which.

    Of n rated members, the worst ``ceil(replaced * n)`` may be replaced by the best
    ``ceil(donors * n)``, where the numbers are at most n / 2 each, so that no member is both. A
    member is replaced if its donor is better by more than each of three gaps: ``absolute_gap``,
    ``relative_gap`` times the larger absolute value of the two objectives, and ``deviation_gap``
    times the standard deviation of all objectives. ``reference``: id of a member that never
    changes. ``explores``: the members whose hyperparameters are perturbed afterwards: those that
    were replaced, or all but the donors.
    """

    replaced: float
    donors: float
    relative_gap: float = 0.0
    absolute_gap: float = 0.0
    deviation_gap: float = 0.0
    reference: str | None = None
    explores: Literal["replaced", "all but donors"] = "replaced"


EXPLOIT_RULES: Mapping[Variant, ExploitRule] = {
    "sample-factory": ExploitRule(
        0.3, 0.3, relative_gap=0.1, absolute_gap=1e-6, explores="all but donors"
    ),
    "dexpbt": ExploitRule(0.125, 0.3, relative_gap=0.05, deviation_gap=0.5),
    "truncation": ExploitRule(0.25, 0.25),
}
"""The rules of Sample Factory 2, of DexPBT (Petrenko et al. 2023, arXiv 2305.12127), and of the
truncation selection of Jaderberg et al. 2017."""


def exploit(
    members: Sequence[Member], rule: ExploitRule, rng: np.random.Generator
) -> dict[str, str]:
    """Return the donor's id for each member that is to be replaced, by the member's id.

    Each of the worst members draws one of the best as its donor, and is replaced if that donor is
    better by more than the gaps of the rule. A member without an objective of its own is neither
    replaced nor copied; a member without a snapshot is not copied.
    """
    ranked = ranking(members)
    best = [m for m in ranked[: _share(rule.donors, len(ranked))] if m.has_snapshot]
    worst = ranked[len(ranked) - _share(rule.replaced, len(ranked)) :]
    deviation = float(np.std([_objective(m) for m in ranked])) if ranked else 0.0
    replaced: dict[str, str] = {}
    for member in worst:
        if not best or member.id == rule.reference:
            continue
        donor = best[int(rng.integers(len(best)))]
        if exceeds_gap(_objective(donor), _objective(member), rule, deviation):
            replaced[member.id] = donor.id
    return replaced


def exceeds_gap(donor: float, member: float, rule: ExploitRule, deviation: float) -> bool:
    """Return whether the objective ``donor`` is better than ``member`` by more than each gap of the
    rule. ``deviation``: the standard deviation of the objectives of all members.

    The relative gap refers to the larger absolute value of both, so that it is the same for returns
    of either sign, and for returns in another unit.
    """
    gap = donor - member
    relative = rule.relative_gap * max(abs(donor), abs(member))
    return gap > max(relative, rule.absolute_gap, rule.deviation_gap * deviation)


def exploring(members: Sequence[Member], replaced: Collection[str], rule: ExploitRule) -> list[str]:
    """Return the ids of the members whose hyperparameters are perturbed now, in the order of
    ``members``. ``replaced``: ids of those that copy a donor. Members without an objective of their
    own are left alone: they have just been changed."""
    if rule.explores == "replaced":
        return [m.id for m in members if m.id in replaced]
    ranked = ranking(members)
    best = {m.id for m in ranked[: _share(rule.donors, len(ranked))]}
    return [m.id for m in members if m.is_rated and m.id not in best and m.id != rule.reference]


def ranking(members: Sequence[Member]) -> list[Member]:
    """Return the rated members, the best first; equals are in the order of ``members``."""
    return sorted((m for m in members if m.is_rated), key=_objective, reverse=True)


def _objective(member: Member) -> float:
    assert member.objective is not None
    return member.objective


def _share(fraction: float, members: int) -> int:
    """Return the number of members that a fraction stands for: at least one of two, and no more
    than half of them."""
    return min(math.ceil(fraction * members - 1e-9), members // 2)


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
    "advantage_exponent": Parameter((0.0, 1e2)),
    "max_advantage_weight": Parameter((1.0, 1e4)),
    "return_lambda": Parameter((0.0, 1.0), complement=True),
    "target_rate": Parameter((1e-5, 1.0)),
    "target_entropy": Parameter(),
    "target_noise": Parameter((0.0, 1e2)),
    "target_noise_clip": Parameter((0.0, 1e2)),
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


Takes = Callable[[str, Value], bool]
"""Returns whether a member can have a value of the hyperparameter of that name."""


def any_value(name: str, value: Value) -> bool:
    """Return that a member can have the value."""
    return True


def explore(
    hyperparameters: Mapping[str, Value],
    rule: ExploreRule,
    rng: np.random.Generator,
    takes: Takes = any_value,
) -> dict[str, Value]:
    """Return the hyperparameters after a perturbation, in the same order. A value of None is an
    option that is off, and stays so; so does 0, which has no multiples. In the place of a value
    that the member does not take, the one before stays."""
    perturbed = dict(hyperparameters)
    for name in sorted(set(hyperparameters) & set(rule.parameters)):
        value = hyperparameters[name]
        if value is not None and rng.random() < rule.chance:
            new = _perturbed(value, rule.parameters[name], rule, rng)
            perturbed[name] = new if takes(name, new) else value
    return perturbed


def _perturbed(
    value: float | bool, parameter: Parameter, rule: ExploreRule, rng: np.random.Generator
) -> Value:
    """Return the new value of one hyperparameter, which is not None and is to change."""
    if parameter.default is not None and rng.random() < rule.reset_chance:
        return _within(parameter.default, parameter)
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
    within = _within(changed, parameter)
    return round(within) if isinstance(value, int) else float(within)


def _within(value: float, parameter: Parameter) -> float:
    """Return the value, or the bound that it is beyond."""
    low, high = parameter.bounds
    return min(max(value, low), high)


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


MIN_EPISODES = 10
"""Least number of a member's own episodes whose mean return is its objective."""


def least_episodes(window: int) -> int:
    """Return `MIN_EPISODES`, or as many as there can be in a ``window`` of episodes
    (--metrics-window)."""
    return min(MIN_EPISODES, window)


@dataclass(frozen=True)
class MemberChange:
    """What a member does after a round: copy ``donor`` (None: keep its weights), perturb its
    hyperparameters (``explores``), or both."""

    donor: str | None
    explores: bool


def decide(
    members: Sequence[Member], rule: ExploitRule, rng: np.random.Generator
) -> dict[str, MemberChange]:
    """Return the changes of the members that are to change, by their ids, in the order of
    ``members``."""
    donors = exploit(members, rule, rng)
    explorers = exploring(members, donors, rule)
    return {
        each.id: MemberChange(donors.get(each.id), each.id in explorers)
        for each in members
        if each.id in donors or each.id in explorers
    }


def changed(
    own: Member,
    donor: Member | None,
    rule: ExploreRule | None,
    rng: np.random.Generator,
    takes: Takes = any_value,
) -> tuple[dict[str, Value], list[dict[str, Any]]]:
    """Return the hyperparameters of a member after it has copied ``donor`` (None: no copy) and
    perturbed what it has then by ``rule`` (None: nothing), and the events of that: none if nothing
    changes. ``takes``: see `explore`. The events lack what `lineage.position` returns, and what
    only the transport knows."""
    before = dict((donor or own).hyperparameters)
    after = dict(before) if rule is None else explore(before, rule, rng, takes)
    events: list[dict[str, Any]] = []
    if donor is not None:
        copied = {
            "event": "exploit",
            "donor": donor.id,
            "donor_env_steps": donor.env_steps,
            "objective": own.objective,
            "donor_objective": donor.objective,
            "hyperparameters": before,
        }
        events.append(copied)
    pairs = {name: [before[name], after[name]] for name in after if after[name] != before[name]}
    if pairs:
        events.append({"event": "explore", "changed": pairs, "hyperparameters": dict(after)})
    return after, events
