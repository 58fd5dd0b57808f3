"""The decisions of a population: who copies whom, and how hyperparameters are perturbed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from sampleforge.algorithms.config import LearnerConfig
from sampleforge.algorithms.learning import changed, values
from sampleforge.algorithms.ppo.config import PpoLossConfig
from sampleforge.algorithms.ppo.loss import PPO_LOSS_HYPERPARAMETERS
from sampleforge.algorithms.rollout_learner import LEARNER_HYPERPARAMETERS
from sampleforge.populations.rounds import (
    EXPLOIT_RULES,
    KNOWN,
    ExploitRule,
    ExploreRule,
    Member,
    Parameter,
    Value,
    Variant,
    draw,
    exceeds_gap,
    exploit,
    explore,
    explore_rule,
    exploring,
    first_values,
    least_episodes,
    ranking,
)
from sampleforge.topologies.config import ALGOS
from sampleforge.topologies.registry import pairing

GAPLESS = {
    name: replace(rule, relative_gap=0.0, absolute_gap=0.0, deviation_gap=0.0)
    for name, rule in EXPLOIT_RULES.items()
}


def population(objectives: Sequence[float | None]) -> list[Member]:
    return [Member(str(i), objective) for i, objective in enumerate(objectives)]


def some_populations(rng: np.random.Generator) -> Iterator[list[Member]]:
    """Populations of up to 40 members with returns of either sign, some without an objective."""
    for _ in range(300):
        size, scale = int(rng.integers(1, 41)), 10.0 ** rng.integers(-3, 4)
        shift = scale * rng.choice([-3.0, 0.0, 3.0])
        objectives = (rng.normal(size=size) * scale + shift).tolist()
        missing = rng.random(size) < rng.choice([0.0, 0.3])
        yield population([None if gone else o for o, gone in zip(objectives, missing, strict=True)])


@pytest.mark.parametrize("variant", get_args(Variant))
def test_the_worst_copy_from_the_best_in_the_fractions_of_the_variant(variant: Variant) -> None:
    rng, rule = np.random.default_rng(1), GAPLESS[variant]
    for members in some_populations(rng):
        ranked = ranking(members)
        replaced = exploit(members, rule, rng)
        half = len(ranked) // 2
        worst = {m.id for m in ranked[len(ranked) - min(half, up(rule.replaced * len(ranked))) :]}
        best = {m.id for m in ranked[: min(half, up(rule.donors * len(ranked)))]}
        assert set(replaced) == (worst if len(ranked) > 1 else set())
        assert set(replaced.values()) <= best
        assert not set(replaced) & set(replaced.values())


def up(number: float) -> int:
    """The next whole number, to an accuracy of 1e-9."""
    return int(np.ceil(number - 1e-9))


@pytest.mark.parametrize(
    ("variant", "members", "replaced"),
    [
        *(("sample-factory", n, k) for n, k in ((1, 0), (2, 1), (3, 1), (4, 2), (8, 3), (10, 3))),
        *(("dexpbt", n, k) for n, k in ((1, 0), (2, 1), (4, 1), (8, 1), (9, 2), (16, 2))),
        *(("truncation", n, k) for n, k in ((2, 1), (4, 1), (8, 2), (20, 5))),
    ],
)
def test_the_number_of_replaced_members(variant: Variant, members: int, replaced: int) -> None:
    whole = population([float(i) for i in range(members)])
    found = exploit(whole, GAPLESS[variant], np.random.default_rng(1))
    assert sorted(map(int, found)) == list(range(replaced))


@pytest.mark.parametrize("variant", get_args(Variant))
def test_a_reference_is_neither_replaced_nor_perturbed_but_may_be_copied(variant: Variant) -> None:
    rng = np.random.default_rng(2)
    copied = 0
    for members in some_populations(rng):
        for reference in (members[0].id, members[-1].id):
            rule = replace(GAPLESS[variant], reference=reference)
            replaced = exploit(members, rule, rng)
            assert reference not in replaced
            assert reference not in exploring(members, replaced, rule)
            copied += reference in replaced.values()
    assert copied > 20


@pytest.mark.parametrize("variant", get_args(Variant))
def test_without_an_objective_or_a_snapshot_of_its_own_no_member_takes_part(
    variant: Variant,
) -> None:
    rng, rule = np.random.default_rng(3), GAPLESS[variant]
    for members in some_populations(rng):
        has = rng.random(len(members)) < 0.5
        members = [replace(m, has_snapshot=bool(h)) for m, h in zip(members, has, strict=True)]
        by_id = {m.id: m for m in members}
        replaced = exploit(members, rule, rng)
        for member, donor in replaced.items():
            assert by_id[member].objective is not None, "it may have just been replaced"
            assert by_id[donor].objective is not None and by_id[donor].has_snapshot
        unrated = {m.id for m in members if m.objective is None}
        assert not unrated & set(exploring(members, replaced, rule))


@pytest.mark.parametrize("wrong", [None, float("nan"), float("inf"), -float("inf")])
def test_an_objective_that_is_not_finite_is_none(wrong: float | None) -> None:
    members = population([1.0, wrong, 5.0, wrong])
    rule = EXPLOIT_RULES["truncation"]
    assert exploit(members, rule, np.random.default_rng(1)) == {"0": "2"}
    assert exploit(population([wrong] * 4), rule, np.random.default_rng(1)) == {}
    assert exploit([], rule, np.random.default_rng(1)) == {}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize(
    ("donor", "member", "exceeds"),
    [(100, 89, True), (100, 91, False), (-89, -100, True), (-91, -100, False), (5, -5, True)],
)
def test_relative_gaps_are_the_same_for_either_sign_and_any_unit(
    donor: float, member: float, exceeds: bool, scale: float
) -> None:
    """With Sample Factory's own rule, a member of return -100 would be replaced by one of -99."""
    rule = replace(EXPLOIT_RULES["sample-factory"], absolute_gap=0.0)
    assert exceeds_gap(scale * donor, scale * member, rule, 0.0) == exceeds
    assert not exceeds_gap(scale * member, scale * donor, rule, 0.0)


def test_gaps_are_the_same_for_negated_pairs() -> None:
    rng, rule = np.random.default_rng(4), EXPLOIT_RULES["sample-factory"]
    for a, b in rng.normal(size=(1000, 2)).tolist():
        assert exceeds_gap(a, b, rule, 0.0) == exceeds_gap(-b, -a, rule, 0.0)


def test_every_gap_must_be_exceeded() -> None:
    members = population([0.0, 10.0, 10.5, 11.0])  # standard deviation 4.56
    rng = np.random.default_rng(1)
    assert exploit(members, ExploitRule(0.25, 0.25), rng) == {"0": "3"}
    assert exploit(members, ExploitRule(0.25, 0.25, relative_gap=0.99), rng) == {"0": "3"}
    assert exploit(members, ExploitRule(0.25, 0.25, relative_gap=1.0), rng) == {}
    assert exploit(members, ExploitRule(0.25, 0.25, absolute_gap=10.9), rng) == {"0": "3"}
    assert exploit(members, ExploitRule(0.25, 0.25, absolute_gap=11.0), rng) == {}
    assert exploit(members, ExploitRule(0.25, 0.25, deviation_gap=2.4), rng) == {"0": "3"}
    assert exploit(members, ExploitRule(0.25, 0.25, deviation_gap=2.5), rng) == {}


@pytest.mark.parametrize("variant", get_args(Variant))
def test_equal_members_are_not_replaced(variant: Variant) -> None:
    for objective in (0.0, 7.0, -7.0):
        members = population([objective] * 8)
        assert exploit(members, EXPLOIT_RULES[variant], np.random.default_rng(1)) == {}


def test_donors_are_drawn_from_all_of_the_best() -> None:
    members, rng = population([float(i) for i in range(10)]), np.random.default_rng(5)
    drawn = [exploit(members, GAPLESS["sample-factory"], rng)["0"] for _ in range(300)]
    assert {drawn.count(name) > 70 for name in ("7", "8", "9")} == {True}
    assert set(drawn) == {"7", "8", "9"}


@pytest.mark.parametrize("variant", get_args(Variant))
def test_a_seed_determines_the_decision(variant: Variant) -> None:
    for seed, members in enumerate(some_populations(np.random.default_rng(6))):
        rule = EXPLOIT_RULES[variant]
        found = [exploit(members, rule, np.random.default_rng(seed)) for _ in range(2)]
        assert found[0] == found[1]


def test_who_explores() -> None:
    members = population([float(i) for i in range(10)])
    rng = np.random.default_rng(7)
    for variant in ("dexpbt", "truncation"):
        replaced = exploit(members, EXPLOIT_RULES[variant], rng)
        assert exploring(members, replaced, EXPLOIT_RULES[variant]) == sorted(replaced)
    rule = EXPLOIT_RULES["sample-factory"]
    replaced = exploit(members, rule, rng)
    assert exploring(members, replaced, rule) == [str(i) for i in range(7)], "all but the best 30%"
    alike = population([1.0, 1.0, 1.0, 1.0])
    assert exploring(alike, {}, rule) == ["2", "3"], "equals are in the order of their ids"


APPO: dict[str, Any] = {
    **values(LearnerConfig(learning_rate=5e-4), LEARNER_HYPERPARAMETERS),
    **values(PpoLossConfig(exploration_coeff=0.01), PPO_LOSS_HYPERPARAMETERS),
}


def always(variant: Variant, defaults: Mapping[str, Value] = APPO, **options: Any) -> ExploreRule:
    """The rule of a variant, by which every parameter changes every time, and is never reset."""
    return replace(explore_rule(variant, defaults, **options), chance=1.0, reset_chance=0.0)


def repeated(rule: ExploreRule, times: int, **first: Any) -> list[dict[str, Any]]:
    """The results of so many perturbations of the same values."""
    rng = np.random.default_rng(1)
    return [explore(first, rule, rng) for _ in range(times)]


def test_every_changeable_hyperparameter_is_known() -> None:
    algorithms = [pairing(config()).algorithm for config in ALGOS.values()]
    assert {name for each in algorithms for name in each.changeable} == set(KNOWN)


def test_factors_are_drawn_between_1_1_and_1_5_in_both_directions() -> None:
    found = repeated(always("sample-factory"), 2000, learning_rate=1e-3)
    factors = np.array([each["learning_rate"] for each in found]) / 1e-3
    up = factors[factors > 1]
    down = 1 / factors[factors < 1]
    assert len(up) + len(down) == 2000 and 900 < len(up) < 1100
    for each in (up, down):
        assert 1.1 <= each.min() < 1.11 and 1.49 < each.max() <= 1.5


@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
def test_discounts_are_perturbed_as_1_minus_x(name: str) -> None:
    found = [r[name] for r in repeated(always("sample-factory"), 2000, **{name: 0.99})]
    factors = (1 - np.array(found)) / 0.01
    assert 1 / 1.5 - 1e-9 <= factors.min() < 0.68 and 1.49 < factors.max() <= 1.5 + 1e-9


def test_dexpbt_has_ranges_of_its_own() -> None:
    rule = always("dexpbt")
    discounts = [r["gamma"] for r in repeated(rule, 1000, gamma=0.99)]
    factors = (1 - np.array(discounts)) / 0.01
    assert factors.max() <= 1.2 + 1e-9 and factors.min() >= 1 / 1.2 - 1e-9
    clips = np.array([r["clip_ratio"] for r in repeated(rule, 1000, clip_ratio=0.25)])
    assert clips.max() == 0.3, "cut off there"
    clips = np.array([r["clip_ratio"] for r in repeated(rule, 1000, clip_ratio=0.011)])
    assert clips.min() == 0.01


def test_truncation_multiplies_by_1_2_or_0_8_or_draws_anew() -> None:
    drawn = {"learning_rate": (1e-6, 1.0)}
    rule = explore_rule("truncation", APPO, drawn=drawn)
    rates = np.array([r["learning_rate"] for r in repeated(rule, 4000, learning_rate=1e-3)])
    steps = np.isclose(rates, 1.2e-3) | np.isclose(rates, 0.8e-3)
    assert 0.7 < steps.mean() < 0.8, "a quarter is drawn anew"
    anew = np.log10(rates[~steps])
    assert -6 <= anew.min() < -5.9 and -0.1 < anew.max() <= 0, "log-uniformly"
    assert abs(anew.mean() + 3) < 0.2
    without = explore_rule("truncation", APPO)
    rates = np.array([r["learning_rate"] for r in repeated(without, 100, learning_rate=1e-3)])
    assert (np.isclose(rates, 1.2e-3) | np.isclose(rates, 0.8e-3)).all(), "there is no range"


@pytest.mark.long
def test_the_chances_of_a_perturbation_and_of_a_reset() -> None:
    rule = explore_rule("sample-factory", APPO)
    first = {**APPO, "learning_rate": 1e-2}
    rng = np.random.default_rng(1)
    found = [explore(first, rule, rng) for _ in range(20_000)]
    rates = np.array([r["learning_rate"] for r in found])
    assert 0.14 < (rates != 1e-2).mean() < 0.16
    assert 0.0005 < (rates == 5e-4).mean() < 0.0025, "1% of 15% are reset to the default"
    clips = np.array([r["clip_ratio"] for r in found])
    together = ((clips != APPO["clip_ratio"]) & (rates != 1e-2)).mean()
    assert 0.015 < together < 0.03, "independently of each other"


@pytest.mark.long
@pytest.mark.parametrize("variant", get_args(Variant))
def test_values_stay_within_bounds_and_within_what_learners_take(variant: Variant) -> None:
    hyperparameters: dict[str, Any] = {**APPO, "value_clip": 1.0}
    rule = always(variant, names=list(APPO))
    rng = np.random.default_rng(2)
    loss = PpoLossConfig(exploration_coeff=0.01)
    learner = LearnerConfig(learning_rate=1e-3)
    for _ in range(3000):
        hyperparameters = explore(hyperparameters, rule, rng)
        for name, value in hyperparameters.items():
            low, high = rule.parameters[name].bounds
            assert not value or low <= value <= high
        learner = changed(learner, LEARNER_HYPERPARAMETERS, hyperparameters)
        loss = changed(loss, PPO_LOSS_HYPERPARAMETERS, hyperparameters)
    narrow = always(variant, bounds={"learning_rate": (1e-4, 2e-4)})
    for found in repeated(narrow, 200, learning_rate=1.5e-4):
        assert 1e-4 <= found["learning_rate"] <= 2e-4


def test_a_reset_stays_within_the_bounds_too() -> None:
    rule = explore_rule("sample-factory", APPO, bounds={"learning_rate": (1e-5, 1e-4)})
    rule = replace(rule, chance=1.0, reset_chance=1.0)
    for found in repeated(rule, 5, learning_rate=5e-5):
        assert found["learning_rate"] == 1e-4, "and not 5e-4, the default"


def test_a_small_window_of_episodes_is_enough_for_a_rating() -> None:
    assert [least_episodes(window) for window in (1, 9, 10, 100)] == [1, 9, 10, 10]


@pytest.mark.long
@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("variant", get_args(Variant))
def test_values_stay_within_what_the_learner_of_each_algorithm_takes(
    algo: str, variant: Variant
) -> None:
    config = ALGOS[algo]()
    own = pairing(config).algorithm.hyperparameters(config)
    hyperparameters = {name: 1.0 if value is None else value for name, value in own.items()}
    rule, rng = always(variant, own, names=list(own)), np.random.default_rng(3)
    for _ in range(300):
        hyperparameters = explore(hyperparameters, rule, rng)
        replace(config, **hyperparameters)  # does not raise


def test_a_value_that_the_members_cannot_have_is_not_taken() -> None:
    rule, rng = always("sample-factory"), np.random.default_rng(1)

    def takes(name: str, value: Value) -> bool:
        return name == "value_coeff" and value is not None and value <= 0.9

    found = {
        float(explore({"value_coeff": 0.9}, rule, rng, takes)["value_coeff"] or 0)
        for _ in range(100)
    }
    assert 0.9 in found and max(found) == 0.9 and min(found) < 0.85


def test_booleans_flip_and_what_is_off_stays_off() -> None:
    defaults: dict[str, Any] = {
        "env.bonus": 2.0,
        "env.dense": True,
        "value_clip": None,
        "max_grad_norm": 0.0,
    }
    rule = always("sample-factory", defaults)
    assert list(rule.parameters) == ["env.bonus", "env.dense", "max_grad_norm", "value_clip"]
    for found in repeated(rule, 50, **defaults):
        assert found["env.dense"] is False
        assert found["env.bonus"] != 2.0
        assert found["value_clip"] is None and found["max_grad_norm"] == 0.0
    assert repeated(rule, 1, **{**defaults, "env.dense": False})[0]["env.dense"] is True


def test_whole_numbers_stay_whole() -> None:
    rule = ExploreRule(1.0, {"num_epochs": Parameter((1, 20))})
    for found in repeated(rule, 200, num_epochs=10):
        assert isinstance(found["num_epochs"], int) and 7 <= found["num_epochs"] <= 15


def test_only_named_parameters_change() -> None:
    rule = always("sample-factory", names=["gamma"])
    for found in repeated(rule, 20, **APPO):
        assert {n for n, v in found.items() if v != APPO[n]} == {"gamma"}
        assert list(found) == list(APPO)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"adam_eps, batch_size cannot be perturbed; .*gamma"):
        explore_rule("dexpbt", APPO, names=["batch_size"], bounds={"adam_eps": (0.0, 1.0)})


@pytest.mark.parametrize("variant", get_args(Variant))
def test_a_seed_determines_the_perturbation_whatever_the_order_of_names(variant: Variant) -> None:
    rule, backwards = explore_rule(variant, APPO), dict(reversed(APPO.items()))
    for seed in range(50):
        found = explore(APPO, rule, np.random.default_rng(seed))
        assert found == explore(backwards, rule, np.random.default_rng(seed))
    assert repeated(rule, 20, **APPO) == repeated(rule, 20, **APPO)


def test_first_values_are_one_for_each_stratum_of_the_log_range() -> None:
    for seed in range(20):
        found = first_values({"learning_rate": (1e-6, 1.0)}, 4, np.random.default_rng(seed))
        exponents = sorted(np.log10([each["learning_rate"] for each in found]))
        for stratum, exponent in enumerate(exponents):
            assert -6 + 1.5 * stratum <= exponent <= -4.5 + 1.5 * stratum
    orders = set()
    for seed in range(50):
        found = first_values({"learning_rate": (1e-6, 1.0)}, 4, np.random.default_rng(seed))
        orders.add(tuple(np.argsort([each["learning_rate"] for each in found])))
    assert len(orders) > 10, "the strata are dealt at random"


def test_first_discounts_are_spread_over_1_minus_x() -> None:
    found = first_values({"gamma": (0.9, 0.999)}, 2, np.random.default_rng(1))
    low, high = sorted(each["gamma"] for each in found)
    assert 0.9 <= low <= 0.99 <= high <= 0.999


def test_first_values_of_several_names_are_drawn_independently() -> None:
    ranges = {"learning_rate": (1e-6, 1.0), "exploration_coeff": (1e-4, 1e-1)}
    found = first_values(ranges, 8, np.random.default_rng(1))
    orders = [np.argsort([each[name] for each in found]).tolist() for name in ranges]
    assert orders[0] != orders[1] and all(set(each) == set(ranges) for each in found)


def test_draws_stay_in_the_range() -> None:
    rng = np.random.default_rng(1)
    drawn = [draw(0.1, 10.0, rng) for _ in range(1000)]
    assert 0.1 <= min(drawn) < 0.11 and 9 < max(drawn) <= 10.0
    assert abs(np.mean(np.log(drawn))) < 0.1
