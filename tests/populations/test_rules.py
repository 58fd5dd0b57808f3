"""The rules of a population that the user's flags stand for."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from sampleforge.config import ConfigError
from sampleforge.populations.callbacks import population_callbacks
from sampleforge.populations.rounds import Variant, explore
from sampleforge.populations.rules import Rules, rules_of
from sampleforge.run.session import Session
from sampleforge.topologies.config import AppoConfig
from tests.support.callbacks import Warnings


def population(**settings: Any) -> AppoConfig:
    """A run with four members, whose --kl-coeff is 0."""
    usual: dict[str, Any] = {"kl_coeff": 0.0, "num_envs_per_worker": 4, "batch_size": 128}
    usual |= {"serial": True, "pbt": True, "num_policies": 4}
    return AppoConfig(**{"env": "CartPole-v1", "rollout": 32, **usual, **settings})


def rules_for(**settings: Any) -> Rules:
    """The rules of that run's members with these settings."""
    config = population(**settings)
    return rules_of(config, config, list("0123"), {}, np.random.default_rng(0))


@pytest.mark.parametrize("variant", get_args(Variant))
def test_given_factors_are_those_of_every_hyperparameter(variant: Variant) -> None:
    """Also of the discounts, for which dexpbt has narrower ones of its own."""
    rules = rules_for(pbt_variant=variant, pbt_factors=(2.0, 3.0))
    rule = dataclasses.replace(rules.explore, chance=1.0, reset_chance=0.0)
    first = {"gamma": 0.95, "gae_lambda": 0.95, "learning_rate": 1e-3}
    rng = np.random.default_rng(1)
    for _ in range(200):
        after: dict[str, Any] = explore(first, rule, rng)
        changes = [
            (1 - after["gamma"]) / 0.05,
            (1 - after["gae_lambda"]) / 0.05,
            after["learning_rate"] / 1e-3,
        ]
        for change in changes:
            assert 2 - 1e-6 <= max(change, 1 / change) <= 3 + 1e-6


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (
            {"pbt_bounds": {"learning-rate": "0..1"}},
            "--pbt-bounds learning-rate=0..1: no member can have --learning-rate 0.0: must be "
            "above 0; give another range",
        ),
        (
            {"pbt_bounds": {"gamma": "0.5..0.9"}, "pbt_initial": {"gamma": "0.5..1.5"}},
            "--pbt-initial gamma=0.5..1.5: no member can have --gamma 1.5: must be at least 0 and",
        ),
        (
            {"pbt_bounds": {"gamma": "0.5..1.5"}, "pbt_initial": {"gamma": "0.5..0.9"}},
            "--pbt-bounds gamma=0.5..1.5: no member can have --gamma 1.5: must be at least 0 and",
        ),
        (
            {"pbt_initial": {"gae-lambda": "0.9..1"}},
            "--pbt-initial gae-lambda=0.9..1: 1 - x is drawn log-uniformly, so the upper end must "
            "be below 1",
        ),
        ({"pbt_initial": {"gamma": "0.5..1"}}, "--pbt-initial gamma=0.5..1: 1 - x is drawn"),
        (
            {
                "pbt_initial": {"gae-lambda": "0.9..0.99"},
                "pbt_bounds": {"gae-lambda": "0.5..0.8"},
            },
            "--pbt-initial gae-lambda=0.9..0.99: members would begin outside --pbt-bounds "
            "gae-lambda=0.5..0.8",
        ),
        (
            {
                "pbt_initial": {"learning-rate": "1e-6..1e-3"},
                "pbt_bounds": {"learning-rate": "1e-5..1e-2"},
            },
            "--pbt-initial learning-rate=1e-06..0.001: members would begin outside",
        ),
        (
            {"pbt_initial": {"clip-ratio": "0.5..6"}},
            "--pbt-initial clip-ratio=0.5..6: members would begin outside --pbt-bounds "
            "clip-ratio=0.001..1, the default, and come to them with their first perturbation; add "
            "--pbt-bounds clip-ratio=0.001..6, or give a range within",
        ),
        (
            {"pbt_initial": {"clip-ratio": "0.1..0.5"}, "pbt_variant": "dexpbt"},
            "outside --pbt-bounds clip-ratio=0.01..0.3, the default, ",
        ),
    ],
)
def test_first_values_that_cannot_be_are_refused(settings: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(refusal)):
        rules_for(**settings)


def test_first_values_may_come_from_all_that_the_bounds_allow() -> None:
    both = {"learning-rate": "1e-5..1e-2"}
    first = rules_for(pbt_initial=both, pbt_bounds=both).first
    assert all(1e-5 <= (values["learning_rate"] or 0) <= 1e-2 for values in first)


@pytest.mark.parametrize("more", [{"pbt_bounds": {"clip-ratio": "0.001..6"}}, {}])
def test_first_values_beyond_the_usual_bounds_need_bounds_or_stay(more: dict[str, Any]) -> None:
    """They stay if they are not perturbed."""
    perturbed = ("learning-rate", *(("clip-ratio",) if more else ()))
    rules = rules_for(pbt_initial={"clip-ratio": "3..6"}, pbt_perturb=perturbed, **more)
    rule = dataclasses.replace(rules.explore, chance=1.0, reset_chance=0.0, factors=(1.1, 1.2))
    for seed, first in enumerate(rules.first):
        value = explore(first, rule, np.random.default_rng(seed))["clip_ratio"]
        assert value is not None and value > 2


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"pbt_perturb": ("learning-rate", "kl-coeff", "reward-scale")},
            "kl_coeff is not perturbed",
        ),
        (
            {"pbt_perturb": ("value_clip",)},
            "value_clip is not perturbed: it is off; give it a value",
        ),
        (
            {"pbt_perturb": ("reward-scale", "gamma"), "reward_clip": "sign"},
            "reward_scale has no effect: a reward of any size has the same sign",
        ),
        ({"pbt_perturb": ("vtrace-c", "gamma")}, "vtrace_c has no effect: it is for --advantage"),
        ({"pbt_initial": {"vtrace-rho": "0.5..2"}}, "vtrace_rho has no effect"),
        ({"pbt_initial": {"kl-coeff": "0.1..1"}}, None),
        ({"pbt_perturb": ("gae-lambda",), "gae_lambda": 0.0}, None),
        (
            {"pbt_perturb": ("gae-lambda",), "gae_lambda": 1.0},
            "gae_lambda is not perturbed: it is 1, and 1 - x, which is 0, has no multiples",
        ),
        ({"pbt_perturb": ("vtrace-c",), "advantage": "vtrace"}, None),
        (
            {"pbt_perturb": ("gamma",), "gamma": 1.0},
            "gamma is 1, and the first perturbation takes it to the bounds",
        ),
        (
            {"exploration_coeff": 2.5},
            "exploration_coeff is 2.5, and the first perturbation takes it to the bounds",
        ),
        ({"exploration_coeff": 2.5, "pbt_bounds": {"exploration-coeff": "0.1..3"}}, None),
        ({"exploration_coeff": 2.5, "pbt_initial": {"exploration-coeff": "0.01..0.05"}}, None),
        ({"exploration_coeff": 2.5, "pbt_perturb": ("learning-rate",)}, None),
    ],
)
def test_hyperparameters_that_are_not_perturbed_as_one_expects_are_named(
    settings: dict[str, Any], told: str | None, tmp_path: Path
) -> None:
    config = population(run_dir=str(tmp_path / "run"), **settings)
    warnings = Warnings()
    with Session(config, [warnings, *population_callbacks(config)]):
        pass
    assert len(warnings.warnings) == (told is not None), warnings.warnings
    assert all(text.startswith(f"--pbt: {told}") for text in warnings.warnings)
