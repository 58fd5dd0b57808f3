"""PPO's terms and their gradient are those of the papers' sum, which autograd differentiates in
float64 with torch's own distributions; and by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal, TanhTransform

from sampleforge.algorithms.ppo import terms
from sampleforge.algorithms.ppo.config import PpoLossConfig
from sampleforge.algorithms.ppo.terms import Steps, gradient, metrics_of, sums, terms_of
from sampleforge.ops.distributions import ActionDistribution, ActionLayout, action_layout
from sampleforge.ops.policy_terms import PolicyTerms, action_columns
from sampleforge.spec import ActionSpec
from tests.support.literal_ppo import literal_terms

STEPS = 40
DISCRETE = ActionSpec("discrete", (), "int64", (4,))
PAIR = ActionSpec("multidiscrete", (2,), "int64", (3, 3))
UNEQUAL = ActionSpec("multidiscrete", (3,), "int64", (2, 5, 3))
BOX = ActionSpec("box", (2,), "float32", low=(-1.0, -2.0), high=(1.0, 3.0))
ACTIONS: dict[str, tuple[dict[str, ActionSpec], bool, bool]] = {
    # name: leaves, masked, squashed
    "discrete": ({"action": DISCRETE}, False, False),
    "discrete, masked": ({"action": DISCRETE}, True, False),
    "multi-discrete": ({"action": PAIR}, False, False),
    "multi-discrete of several sizes, masked": ({"action": UNEQUAL}, True, False),
    "box": ({"action": BOX}, False, False),
    "box, squashed": ({"action": BOX}, False, True),
    "mixed, masked": ({"a": UNEQUAL, "b": BOX, "c": DISCRETE}, True, False),
}
SETTINGS: list[dict[str, Any]] = [
    {"value_coeff": value, "value_clip": clip, "kl_coeff": kl, "exploration_coeff": bonus[1]}
    | {"exploration": bonus[0]}
    for value, clip, kl, bonus in itertools.product(
        (0.0, 0.5),
        (None, 0.4),
        (0.0, 0.3),
        (("entropy", 0.0), ("entropy", 0.05), ("symmetric_kl", 0.05)),
    )
]
"""Every term with and without every other."""


class Case:
    """A minibatch of steps of different weights, some of which do not count and hold anything."""

    def __init__(self, name: str) -> None:
        leaves, masked, self.squash = ACTIONS[name]
        torch.manual_seed(1)
        self.layout: ActionLayout = action_layout(leaves)
        size = self.layout.head_size(state_std=True)
        self.parameters = torch.randn(STEPS, size, dtype=torch.float64)
        if self.layout.low:  # outside of the range of log std: no gradient
            self.parameters[0, -1], self.parameters[1, -1] = -30.0, 30.0
        self.mask = torch.ones(STEPS, self.layout.num_logits, dtype=torch.bool)
        if masked:
            self.mask = torch.rand(STEPS, self.layout.num_logits) < 0.7
            self.mask[2] = False  # all forbidden counts as none
        behaviour = self.parameters.float() + 0.1 * torch.randn(self.parameters.shape)
        acting = ActionDistribution(self.layout, behaviour, self.mask, self.squash)
        self.actions = acting.sample(torch.Generator().manual_seed(2))
        self.columns = action_columns(self.layout, self.actions, self.mask, squash=self.squash)
        valid = torch.rand(STEPS) < 0.8
        self.weight = torch.where(valid, torch.rand(STEPS), 0.0).double()
        self.weight /= self.weight.sum()
        self.log_prob = acting.log_prob(self.actions).double()
        self.advantages, self.values, self.old, self.targets = torch.randn(4, STEPS).double()
        self.valid = valid
        self.log_prob[~valid] = math.nan

    def steps(self, config: PpoLossConfig) -> Steps:
        old, wanted, cost = (
            torch.where(self.valid, x, 0.0)
            for x in (self.old, self.targets - self.old, -self.advantages)
        )
        value_weight = 2.0 * config.value_coeff * self.weight
        exploration_weight = (config.exploration_coeff or 0.0) * self.weight
        return Steps(
            ~self.valid,
            self.weight,
            self.log_prob,
            old,
            wanted,
            cost,
            self.weight * cost,
            value_weight,
            exploration_weight,
        )

    def gradient(self, config: PpoLossConfig) -> tuple[Tensor, Tensor]:
        policy = PolicyTerms(self.layout, self.parameters, self.columns, squash=self.squash)
        found = terms_of(policy, self.values, self.steps(config), config)
        return gradient(policy, found, self.steps(config), config)

    def literal(
        self, parameters: Tensor, values: Tensor, config: PpoLossConfig
    ) -> dict[str, Tensor]:
        """The means of the terms, without the steps that do not count."""
        log_prob, entropy, symmetric_kl = self.literal_policy(parameters)
        at = self.valid
        exploration = symmetric_kl if config.exploration == "symmetric_kl" else -entropy
        found = literal_terms(
            (log_prob - self.log_prob)[at],
            self.advantages[at],
            (values[at], self.old[at], self.targets[at]),
            exploration[at],
            config,
        )
        return {
            name: (self.weight[at] * x).sum()
            for name, x in {**found, "entropy": entropy[at]}.items()
        }

    def literal_policy(self, parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, entropy, symmetric KL to the uniform distribution of each step."""
        start, found = 0, torch.zeros(3, STEPS, dtype=torch.float64)
        indices, boxes = self.columns.indices, self.columns.boxes
        for number, size in enumerate(self.layout.sizes):
            assert indices is not None
            allowed = self.mask[:, start : start + size]
            allowed = allowed | ~allowed.any(-1, keepdim=True)
            logits = parameters[:, start : start + size].masked_fill(~allowed, -math.inf)
            of = Categorical(logits=logits)
            index = indices.view(STEPS, -1)[:, number]
            uniform = Categorical(probs=allowed.double())
            logs = torch.where(allowed, of.logits, 0.0)
            p, u = of.probs, uniform.probs
            entropy = -(p * logs).sum(-1)
            symmetric = 0.5 * ((p - u) * (logs - torch.where(allowed, uniform.logits, 0.0))).sum(-1)
            found = found + torch.stack((of.log_prob(index), entropy, symmetric))
            start += size
        if boxes is None:
            return found[0], found[1], found[2]
        mean, log_std = parameters[:, start:].chunk(2, -1)
        normal, u = Normal(mean, log_std.clamp(-10.0, 4.0).exp()), boxes.double()
        log_prob, entropy = normal.log_prob(u), normal.entropy()
        if self.squash:
            half = (torch.tensor(BOX.high) - torch.tensor(BOX.low)).double() / 2

            def log_slope(x: Tensor) -> Tensor:
                return half.log() + TanhTransform().log_abs_det_jacobian(x, x.tanh())

            log_prob = log_prob - log_slope(u)
            z = torch.linspace(-9.0, 9.0, 4001, dtype=torch.float64).view(-1, 1, 1)
            density = Normal(0.0, 1.0).log_prob(z).exp() * (18.0 / 4000)
            entropy = entropy + (density * log_slope(mean + normal.stddev * z)).sum(0)
        whole = torch.stack((log_prob, entropy, -entropy)).sum(-1)
        found = found + whole
        return found[0], found[1], found[2]


@pytest.mark.long
@pytest.mark.parametrize("name", ACTIONS)
def test_gradient_and_metrics_are_those_of_the_literal_sum(name: str) -> None:
    case = Case(name)
    tolerance = 1e-10
    if case.squash:  # whose entropy is exact to 1e-6
        tolerance = 1e-6
    elif case.layout.low:  # whose actions are float32
        tolerance = 1e-8

    def assert_close(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=10 * tolerance)

    for settings in SETTINGS:
        config = PpoLossConfig(clip_ratio=0.15, **settings)
        parameters = case.parameters.clone().requires_grad_()
        values = case.values.clone().requires_grad_()
        expected = case.literal(parameters, values, config)
        expected["loss"].backward()  # type: ignore[no-untyped-call]
        by_parameters, by_values = case.gradient(config)
        assert parameters.grad is not None and values.grad is not None
        assert parameters.grad.abs().sum() > 0
        assert (values.grad.abs().sum() > 0) == (config.value_coeff > 0)
        assert_close(by_parameters, parameters.grad)
        assert_close(by_values, values.grad)

        policy = PolicyTerms(case.layout, case.parameters, case.columns, squash=case.squash)
        found = terms_of(policy, case.values, case.steps(config), config)
        one = torch.ones((), dtype=torch.float64)
        metrics = metrics_of(*sums(found, case.steps(config), case.weight, one, config), config)
        for metric, value in expected.items():
            assert_close(metrics[metric], value.detach())
        mean = (case.weight * case.values).sum()
        torch.testing.assert_close(metrics["value_mean"], mean, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("column", ["advantages", "log_prob", "targets"])
def test_a_step_that_is_not_a_number_reaches_the_gradient(column: str) -> None:
    """So that the learner skips it. Steps that do not count do not."""
    case, config = Case("discrete"), PpoLossConfig(exploration_coeff=0.1, kl_coeff=0.1)
    getattr(case, column)[~case.valid] = math.nan
    case.values[~case.valid] = math.inf
    assert all(part.isfinite().all() for part in case.gradient(config))
    getattr(case, column)[case.valid.nonzero()[0]] = math.nan
    assert not all(part.isfinite().all() for part in case.gradient(config))


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_surrogate_and_its_slope_by_hand(weight: float) -> None:
    """e = 0.25: the range is [0.8, 1.25]. Steps: inside; above, A > 0 (clipped: no gradient);
    above, A < 0 (not clipped); below, A > 0 (not clipped); below, A < 0 (clipped)."""
    ratios = torch.tensor([1.1, 1.5, 1.5, 0.5, 0.5], dtype=torch.float64)
    advantages = torch.tensor([2.0, 2.0, -2.0, 2.0, -2.0], dtype=torch.float64)
    of = ratios.log(), -advantages, 0.25
    gains = [1.1 * 2, 1.25 * 2, 1.5 * -2, 0.5 * 2, 0.8 * -2]
    assert (-terms.surrogate(*of)).tolist() == pytest.approx(gains)
    slopes = [-1.1 * 2, 0.0, -1.5 * -2, -0.5 * 2, 0.0]
    found = terms.surrogate_slope(of[0], weight * of[1], 0.25)
    assert found.tolist() == pytest.approx([weight * slope for slope in slopes])


def test_value_error_and_its_slope_by_hand() -> None:
    """clip 1, v_old 0, R 3. v = 2: max((2-3)^2, (1-3)^2) = 4, flat; v = 0.5: 6.25, slope 2(v-R);
    v = 6: 9, slope 2(v-R)."""
    moved, wanted, one = torch.tensor([2.0, 0.5, 6.0]), torch.full((3,), 3.0), torch.ones(3)
    assert terms.value_error(moved, wanted, 1.0).tolist() == pytest.approx([4, 6.25, 9])
    slope = terms.value_error_slope(moved, wanted, 1.0, 2 * one)
    assert slope.tolist() == pytest.approx([0.0, -5.0, 6.0])
    assert terms.value_error(moved, wanted, None).tolist() == pytest.approx([1, 6.25, 9])
    slope = terms.value_error_slope(moved, wanted, None, one)
    assert slope.tolist() == pytest.approx([-1.0, -2.5, 3.0])


def test_a_value_within_its_range_has_the_whole_slope() -> None:
    """Also where rounding makes its distance to the target another one than the clipped value's."""
    moved, wanted = torch.randn(2, 10_000, generator=torch.Generator().manual_seed(0))
    slope = terms.value_error_slope(0.1 * moved, 100 * wanted, 1.0, torch.ones(10_000))
    assert (slope != 0).all()


def test_the_kl_is_unbiased_and_never_negative() -> None:
    """Two normals of the same width, one apart by m: KL is m^2 / 2."""
    g = torch.Generator().manual_seed(0)
    x, m = torch.randn(200_000, generator=g, dtype=torch.float64), 0.3
    log_ratio = -0.5 * (x - m) ** 2 + 0.5 * x**2
    assert terms.kl(log_ratio).mean().item() == pytest.approx(m * m / 2, rel=0.02)
    assert terms.kl(torch.zeros(3)).tolist() == [0.0] * 3
    assert (terms.kl(x[:50]) >= 0).all()


def test_clipped_are_the_ratios_outside_the_range() -> None:
    log_ratio = torch.tensor([1.05, 1.2, 0.95, 0.8]).log()
    assert terms.is_clipped(log_ratio, 0.1).tolist() == [False, True, False, True]


def test_differences_of_the_slopes() -> None:
    """Each slope is the derivative of its term by the first argument."""
    x, y = torch.randn(2, 60, generator=torch.Generator().manual_seed(3)).double()
    weight = torch.rand(60).double()
    pairs: list[tuple[Callable[[Tensor], Tensor], Tensor]] = [
        (lambda x: terms.surrogate(x, y, 0.2), terms.surrogate_slope(x, weight * y, 0.2)),
        (lambda x: terms.value_error(x, y, None), terms.value_error_slope(x, y, None, 2 * weight)),
        (lambda x: terms.value_error(x, y, 0.5), terms.value_error_slope(x, y, 0.5, 2 * weight)),
        (terms.kl, terms.kl_slope(x, weight)),
    ]
    for term, slope in pairs:
        step = 1e-6
        difference = (term(x + step) - term(x - step)) / (2 * step)
        torch.testing.assert_close(slope, weight * difference, atol=1e-7, rtol=1e-6)
