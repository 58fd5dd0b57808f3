"""The gradient of PPO's loss by hand is that of autograd, and that of finite differences."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sampleforge.ops.distributions import ActionDistribution, ActionLayout, action_layout
from sampleforge.ops.policy_terms import PolicyTerms, action_columns
from sampleforge.ops.ppo_gradient import PpoCoefficients, PpoColumns, PpoGradient, ppo_gradient
from sampleforge.ops.surrogate import (
    approx_kl,
    clipped_surrogate,
    clipped_value_loss,
    masked_mean,
    valid_total,
)
from sampleforge.spec import ActionSpec

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
SETTINGS: dict[str, dict[str, Any]] = {
    "entropy": {},
    "no value clip": {"value_clip": None, "explores": False},
    "symmetric kl, kl": {"symmetric_kl": True, "kl_coeff": 0.3},
}


class Case:
    """A minibatch, with steps that do not count and hold anything."""

    def __init__(self, name: str, dtype: torch.dtype, **settings: Any) -> None:
        leaves, masked, self.squash = ACTIONS[name]
        torch.manual_seed(1)
        self.layout: ActionLayout = action_layout(leaves)
        self.explores = settings.pop("explores", True)
        self.exploration, self.value_coeff = 0.05 * self.explores, 0.5
        of = {"value_clip": 0.4, "kl_coeff": 0.0, "symmetric_kl": False, **settings}
        self.coefficients = PpoCoefficients(clip_ratio=0.15, **of)
        self.parameters = torch.randn(STEPS, self.layout.head_size(state_std=True), dtype=dtype)
        if self.layout.low:  # outside of the range of log std: no gradient
            self.parameters[0, -1], self.parameters[1, -1] = -30.0, 30.0
        self.mask = None
        if masked:
            self.mask = torch.rand(STEPS, self.layout.num_logits) < 0.7
            self.mask[2] = False  # all forbidden counts as none
        behaviour = self.parameters.float() + 0.1 * torch.randn(self.parameters.shape)
        acting = ActionDistribution(self.layout, behaviour, self.mask, self.squash)
        self.actions = acting.sample(torch.Generator().manual_seed(2))
        self.log_prob = acting.log_prob(self.actions).to(dtype)
        self.valid = torch.rand(STEPS) < 0.8
        self.advantages, self.values, self.old, self.targets = torch.randn(4, STEPS).to(dtype)
        self.factor = torch.tensor(0.7, dtype=dtype)
        self.log_prob[~self.valid] = math.nan
        self.advantages[~self.valid] = math.inf
        self.targets[~self.valid] = math.nan

    def loss(self, parameters: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """The loss as the terms of `sampleforge.ops.surrogate` add up to."""
        of, valid, total = self.coefficients, self.valid, valid_total(self.valid)
        distribution = ActionDistribution(self.layout, parameters, self.mask, self.squash)
        log_ratio = distribution.log_prob(self.actions) - self.log_prob
        log_ratio = torch.where(valid, log_ratio, 0.0)
        exploration = -distribution.entropy()
        if of.symmetric_kl:
            exploration = distribution.symmetric_kl_to_uniform()
        return (
            clipped_surrogate(log_ratio, self.advantages, of.clip_ratio, valid, total)
            + self.value_coeff
            * clipped_value_loss(
                values * self.factor, self.old, self.targets, of.value_clip, valid, total
            )
            + self.exploration * masked_mean(exploration, valid, total)
            + of.kl_coeff * approx_kl(log_ratio, valid, total)
        )

    def gradient(self, parameters: torch.Tensor, values: torch.Tensor) -> PpoGradient:
        weight = (self.valid / valid_total(self.valid)).to(parameters.dtype)
        old, target = (torch.where(self.valid, x, 0.0) for x in (self.old, self.targets))
        actions = action_columns(self.layout, self.actions, self.mask, squash=self.squash)
        sign = 1.0 if self.coefficients.symmetric_kl else -1.0
        columns = PpoColumns(
            actions,
            ~self.valid,
            self.log_prob,
            -weight * torch.where(self.valid, self.advantages, 0.0),
            -old,
            target - old,
            weight,
            2 * self.value_coeff * weight,
            sign * self.exploration * weight,
        )
        terms = PolicyTerms(self.layout, parameters, actions, squash=self.squash)
        return ppo_gradient(
            terms, values, self.factor, columns, self.coefficients, explores=self.explores
        )


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ACTIONS)
def test_the_gradient_by_hand_is_that_of_autograd(name: str, settings: str) -> None:
    case = Case(name, torch.float32, **SETTINGS[settings])
    parameters = case.parameters.clone().requires_grad_()
    values = case.values.clone().requires_grad_()
    case.loss(parameters, values).backward()
    found = case.gradient(case.parameters, case.values)
    assert parameters.grad.abs().sum() > 0 and values.grad.abs().sum() > 0
    torch.testing.assert_close(found.by_parameters, parameters.grad, atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(found.by_values, values.grad, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ACTIONS)
def test_the_gradient_by_hand_is_that_of_finite_differences(name: str, settings: str) -> None:
    """In float64, in which `ActionDistribution` does not compute: of the loss from its own
    log-probabilities and entropies."""
    case = Case(name, torch.float64, **SETTINGS[settings])
    of, weight = case.coefficients, case.valid / case.valid.sum()
    case.parameters[:2].clamp_(-3.0, 3.0)  # no differences across the ends of the range of log std
    actions = action_columns(case.layout, case.actions, case.mask, squash=case.squash)

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, parameters: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            found = case.gradient(parameters, values)
            ctx.save_for_backward(found.by_parameters, found.by_values)
            terms = PolicyTerms(case.layout, parameters, actions, squash=case.squash)
            exploration = -terms.entropy
            if of.symmetric_kl:
                exploration = terms.symmetric_kl_to_uniform()
            log_ratio = torch.where(case.valid, terms.log_prob - case.log_prob, 0.0)
            value_loss = clipped_value_loss(
                values * case.factor, case.old, case.targets, of.value_clip, case.valid
            )
            return (
                clipped_surrogate(log_ratio, case.advantages, of.clip_ratio, case.valid)
                + case.value_coeff * value_loss
                + case.exploration * (weight * exploration).sum()
                + of.kl_coeff * approx_kl(log_ratio, case.valid)
            )

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            return tuple(gradients[0] * each for each in ctx.saved_tensors)

    inputs = case.parameters.requires_grad_(), case.values.requires_grad_()
    assert torch.autograd.gradcheck(Loss.apply, inputs, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ACTIONS)
def test_log_probabilities_and_entropies_are_those_of_the_distribution(name: str) -> None:
    case = Case(name, torch.float32)
    plain = ActionDistribution(case.layout, case.parameters, case.mask, case.squash)
    actions = action_columns(case.layout, case.actions, case.mask, squash=case.squash)
    terms = PolicyTerms(case.layout, case.parameters, actions, squash=case.squash)
    torch.testing.assert_close(terms.log_prob, plain.log_prob(case.actions), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(terms.entropy, plain.entropy(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(terms.symmetric_kl_to_uniform(), plain.symmetric_kl_to_uniform())


def test_a_step_that_is_not_a_number_reaches_the_gradient() -> None:
    """So that the learner skips it."""
    for column in ("advantages", "log_prob", "targets"):
        case = Case("discrete", torch.float32)
        getattr(case, column)[case.valid.nonzero()[0]] = math.nan
        found = case.gradient(case.parameters, case.values)
        assert not (found.by_parameters.sum() + found.by_values.sum()).isfinite(), column
