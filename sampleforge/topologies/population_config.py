"""The configuration of population-based training: its rules (PbtRulesConfig), in one run and across
runs, and of a population in one run (PbtConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sampleforge.config import Checked, ConfigError, check_range, typed


@dataclass(frozen=True)
class PbtRulesConfig(Checked):
    pbt_variant: Literal["sample-factory", "dexpbt", "truncation"] = "sample-factory"
    """sample-factory: the worst 30% copy the best 30%, all but the best are perturbed; dexpbt: the
    worst 12.5% copy the best 30%; truncation: the worst 25% copy the best 25%."""
    pbt_period: int = 5_000_000
    """Env steps of each member between two rounds of copies and perturbations."""
    pbt_start: int = 20_000_000
    """Env steps of each member before the first round."""
    pbt_replaced: float | None = None
    """Fraction of the members that may be replaced, 0 to 0.5 (default: the variant's)."""
    pbt_donors: float | None = None
    """Fraction of the members that are copied, 0 to 0.5 (default: the variant's)."""
    pbt_relative_gap: float | None = None
    """A donor must be better by this fraction of the larger absolute return (default: the variant's
    0.1, 0.05 or 0)."""
    pbt_absolute_gap: float | None = None
    """A donor must be better by this much (default: the variant's 1e-6 or 0)."""
    pbt_deviation_gap: float | None = None
    """A donor must be better by this multiple of the standard deviation of all members' returns
    (default: the variant's 0 or 0.5)."""
    pbt_perturb: tuple[str, ...] = ()
    """Hyperparameters that are perturbed, such as learning-rate gamma env.bonus (default: learning
    rate, weights of the loss's terms, clips, norm of gradients, discounts, and the numbers by which
    the environment shapes its rewards)."""
    pbt_perturb_chance: float | None = None
    """Probability with which a hyperparameter of a member that is perturbed changes (default: 0.15;
    truncation: 1)."""
    pbt_factors: tuple[float, ...] = ()
    """A hyperparameter is multiplied or divided by a number drawn from this range (default: 1.1
    1.5; truncation: times 1.2 or 0.8)."""
    pbt_bounds: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Limits of perturbed hyperparameters, as in learning-rate=1e-5..1e-2."""
    pbt_initial: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Ranges from which the members draw their first hyperparameters, as in learning-rate=1e-6..1:
    log-uniformly, one member from each of as many equal parts as there are members."""
    pbt_reference: int | None = None
    """Number of a policy that is never replaced or perturbed, from 0 (default: none)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "pbt_period", low=1)
        check_range(self, "pbt_start pbt_reference", low=0)
        check_range(self, "pbt_replaced pbt_donors", low=0, high=0.5, above=True)
        check_range(self, "pbt_relative_gap pbt_absolute_gap pbt_deviation_gap", low=0)
        check_range(self, "pbt_perturb_chance", low=0, high=1)
        for name in ("pbt_bounds", "pbt_initial"):
            ranges(name, getattr(self, name))
        factors = self.pbt_factors
        if factors and not (len(factors) == 2 and 1 < factors[0] <= factors[1]):
            raise ConfigError(
                f"{typed('pbt_factors', self.pbt_factors)}: must be two numbers above 1, the "
                "smaller one first"
            )


@dataclass(frozen=True)
class PbtConfig(PbtRulesConfig):
    pbt: bool = False
    """Train the policies of --num-policies as a population: the worst copy weights and
    hyperparameters of the best, and hyperparameters are perturbed."""
    schedule: str | None = None
    """File with the hyperparameters over env steps that a population has found, such as the
    schedule.json in its run folder: the run changes its own accordingly, and ends with it."""


def ranges(name: str, words: Mapping[str, object]) -> dict[str, tuple[float, float]]:
    """Return the ranges that are typed as ``key=LOW..HIGH``, by the name of the hyperparameter.
    ``name``: that of the field. Raises ConfigError for a word that is no range."""
    found = {}
    for key, word in words.items():
        low, dots, high = str(word).partition("..")
        try:
            bounds = float(low), float(high)
        except ValueError:
            bounds = (1.0, 0.0)
        positive = name != "pbt_initial" or bounds[0] > 0
        if not (dots and bounds[0] < bounds[1] < float("inf") and positive):
            kind = "numbers above 0" if name == "pbt_initial" else "numbers"
            raise ConfigError(
                f"{typed(name, {key: word})}: must be LOW..HIGH with two {kind}, as in "
                "learning-rate=1e-5..1e-2"
            )
        found[hyperparameter(key)] = bounds
    return found


def hyperparameter(word: str) -> str:
    """Return the name of a hyperparameter that may be typed like a flag."""
    return word.removeprefix("--").replace("-", "_")
