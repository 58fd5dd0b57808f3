"""A recurrent core over a whole rollout equals the same core stepped, resets and gradients too."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from sampleforge.models.trunk import Core

KINDS = ("gru", "lstm")


def stepped(core: Core, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for x_t, first_t in zip(x, first, strict=True):
        y, state = core.step(x_t, state, first_t)
        outputs.append(y)
    return torch.stack(outputs), state


def resets(kind: str, steps: int, rows: int) -> Tensor:
    first = torch.zeros(steps, rows, dtype=torch.bool)
    if kind == "random":
        first = torch.rand(steps, rows, generator=torch.Generator().manual_seed(3)) < 0.2
    if kind == "at the start":
        first[0] = True
    if kind == "always":
        first[:] = True
    if kind == "at the end":
        first[-1, 0] = True
    return first


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["nowhere", "at the start", "random", "always", "at the end"])
@pytest.mark.parametrize("steps", [1, 2, 13])
def test_whole_rollout_equals_step_by_step(
    kind: Literal["gru", "lstm"], where: str, steps: int
) -> None:
    torch.manual_seed(0)
    core = Core(kind, 5, 8).double()
    first = resets(where, steps, 4)
    results = []
    for run in (core, lambda *inputs: stepped(core, *inputs)):
        g = torch.Generator().manual_seed(1)
        x = torch.randn(steps, 4, 5, generator=g).double().requires_grad_()
        state = torch.randn(4, core.state_size, generator=g).double().requires_grad_()
        core.zero_grad()
        y, after = run(x, state, first)
        (y.square().sum() + after.sin().sum()).backward()
        grads = [p.grad.clone() for p in (x, state, *core.parameters()) if p.grad is not None]
        results.append([y, after, *grads])
    assert len(results[0]) == len(results[1]) == 8
    for packed, by_step in zip(*results, strict=True):
        assert torch.allclose(packed, by_step, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_passes_a_reset(kind: Literal["gru", "lstm"]) -> None:
    core = Core(kind, 3, 4)
    first = torch.zeros(6, 2, dtype=torch.bool)
    first[3, 1] = True
    x = torch.randn(6, 2, 3, requires_grad=True)
    y, _ = core(x, torch.randn(2, core.state_size), first)
    y[5, 1].sum().backward()
    assert x.grad is not None
    assert (x.grad[:3, 1] == 0).all() and (x.grad[3:, 1] != 0).any() and (x.grad[:, 0] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_two_rollouts_with_the_state_between_equal_one(kind: Literal["gru", "lstm"]) -> None:
    core = Core(kind, 3, 4)
    x, first = torch.randn(10, 3, 3), resets("random", 10, 3)
    state = torch.randn(3, core.state_size)
    whole, end = core(x, state, first)
    head, between = core(x[:4], state, first[:4])
    tail, after = core(x[4:], between, first[4:])
    assert torch.allclose(whole, torch.cat((head, tail)), atol=1e-6)
    assert torch.allclose(end, after, atol=1e-6)
