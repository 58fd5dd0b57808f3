"""Log-probabilities and entropies are those of the distribution, and their derivatives by hand are
those of finite differences. `tests.algorithms.ppo.test_terms` has the loss as a whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sampleforge.ops.distributions import ActionDistribution, ActionLayout, action_layout
from sampleforge.ops.policy_terms import AutogradTerms, PolicyTerms, action_columns
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


class Case:
    """Steps, and a loss that is linear in what depends on the parameters."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        leaves, masked, self.squash = ACTIONS[name]
        torch.manual_seed(1)
        self.layout: ActionLayout = action_layout(leaves)
        self.parameters = torch.randn(STEPS, self.layout.head_size(state_std=True), dtype=dtype)
        self.mask = None
        if masked:
            self.mask = torch.rand(STEPS, self.layout.num_logits) < 0.7
            self.mask[2] = False  # all forbidden counts as none
        acting = ActionDistribution(self.layout, self.parameters, self.mask, self.squash)
        self.actions = acting.sample(torch.Generator().manual_seed(2))
        self.by = torch.randn(3, STEPS, dtype=dtype)

    def terms(self, parameters: torch.Tensor) -> PolicyTerms:
        actions = action_columns(self.layout, self.actions, self.mask, squash=self.squash)
        return PolicyTerms(self.layout, parameters, actions, squash=self.squash)

    def autograd_terms(self) -> AutogradTerms:
        def make(parameters: torch.Tensor) -> ActionDistribution:
            return ActionDistribution(self.layout, parameters, self.mask, self.squash)

        return AutogradTerms(make, self.parameters, self.actions)


@pytest.mark.long
@pytest.mark.parametrize("name", ACTIONS)
def test_the_gradient_by_hand_is_that_of_finite_differences(name: str) -> None:
    case = Case(name, torch.float64)

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, parameters: torch.Tensor) -> torch.Tensor:
            terms = case.terms(parameters)
            ctx.save_for_backward(terms.gradient(*case.by))
            columns = terms.log_prob, terms.entropy, terms.symmetric_kl_to_uniform()
            return (case.by * torch.stack(columns)).sum()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            return gradients[0] * ctx.saved_tensors[0]

    inputs = case.parameters.requires_grad_()
    assert torch.autograd.gradcheck(Loss.apply, (inputs,), eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ACTIONS)
def test_the_gradient_by_hand_is_that_of_autograd(name: str) -> None:
    case = Case(name, torch.float32)
    if case.layout.low:  # outside of the range of log std: no gradient
        case.parameters[0, -1], case.parameters[1, -1] = -30.0, 30.0
    found = case.terms(case.parameters).gradient(*case.by)
    other = case.autograd_terms()
    other.symmetric_kl_to_uniform()
    torch.testing.assert_close(other.gradient(*case.by), found, rtol=1e-5, atol=1e-5)
    parameters = case.parameters.requires_grad_()
    plain = ActionDistribution(case.layout, parameters, case.mask, case.squash)
    columns = plain.log_prob(case.actions), plain.entropy(), plain.symmetric_kl_to_uniform()
    (case.by * torch.stack(columns)).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, parameters.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ACTIONS)
def test_log_probabilities_and_entropies_are_those_of_the_distribution(name: str) -> None:
    case = Case(name, torch.float32)
    plain = ActionDistribution(case.layout, case.parameters, case.mask, case.squash)
    terms = case.terms(case.parameters)
    torch.testing.assert_close(terms.log_prob, plain.log_prob(case.actions), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(terms.entropy, plain.entropy(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(terms.symmetric_kl_to_uniform(), plain.symmetric_kl_to_uniform())
