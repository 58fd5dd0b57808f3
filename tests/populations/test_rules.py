"""The rules of a population that the user's flags stand for."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import numpy as np
import pytest

from sampleforge.populations.rounds import Variant, explore
from sampleforge.populations.rules import Rules, rules_of
from sampleforge.topologies.config import AppoConfig


def rules_for(**settings: Any) -> Rules:
    """The rules of four members with these settings."""
    config = AppoConfig(env="CartPole-v1", num_policies=4, pbt=True, **settings)
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
