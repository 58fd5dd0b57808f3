"""n-step windows and first priorities against the literal walk along each row."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.ops.q_learning import (
    EPSILON,
    FinalValues,
    initial_errors,
    n_step_windows,
    rescale,
    slope,
    unrescale,
)
from sampleforge.ops.schedules import epsilon_ladder
from tests.support.random_rollouts import random_rollout

GAMMA = 0.9


def literal_window(row: dict[str, np.ndarray], t: int, n: int, drop_truncated: bool):
    """(return, discount, steps) of one step, by walking."""
    total, steps = 0.0, 0
    for k in range(t, min(t + n, len(row["reward"]))):
        unseen = row["truncated"][k] and not row["terminated"][k]  # what comes after it
        if not row["valid"][k] or (drop_truncated and unseen):
            break
        total += GAMMA ** (k - t) * row["reward"][k]
        steps += 1
        if row["terminated"][k]:
            return total, 0.0, steps
        if row["truncated"][k]:
            break
    return total, GAMMA**steps if steps else 0.0, steps


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("drop_truncated", [False, True])
@pytest.mark.parametrize("n", [1, 3, 5, 30])
def test_windows_are_the_literal_sums(n: int, drop_truncated: bool, same_step: bool) -> None:
    rollout = random_rollout(n)
    if same_step:
        rollout["valid"][:] = True
    found = n_step_windows(**rollout, n=n, gamma=GAMMA, drop_truncated=drop_truncated)
    for row in range(6):
        columns = {name: column[:, row] for name, column in rollout.items()}
        for t in range(20):
            wanted = literal_window(columns, t, n, drop_truncated)
            got = found.returns[t, row], found.discount[t, row], found.steps[t, row]
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_an_episode_boundary_equals_two_episodes() -> None:
    rollout = random_rollout(3, length=12, rows=1)
    for name in ("terminated", "truncated"):
        rollout[name][:] = False
    rollout["valid"][:] = True
    rollout["truncated"][5] = True
    rollout["valid"][6] = False
    whole = n_step_windows(**rollout, n=4, gamma=GAMMA)
    first = n_step_windows(**{k: v[:6] for k, v in rollout.items()}, n=4, gamma=GAMMA)
    second = n_step_windows(**{k: v[7:] for k, v in rollout.items()}, n=4, gamma=GAMMA)
    for i in range(3):
        np.testing.assert_array_equal(whole[i][:6], first[i])
        np.testing.assert_array_equal(whole[i][7:], second[i])
    assert whole.steps[6] == 0, "the ignored action is no experience"
    assert whole.discount[5] == np.float32(GAMMA), "a truncation is bootstrapped"


@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_first_priorities_are_the_td_errors_of_the_behaviour_network(
    n: int, same_step: bool, rescaled: bool
) -> None:
    """``same_step``: values of final observations lie apart, and are known at the very end too."""
    rng = np.random.default_rng(0)
    rollout = random_rollout(7)
    values, taken, final_values = rng.standard_normal((3, 20, 6)).astype(np.float32)
    unseen = rollout["truncated"] & ~rollout["terminated"]
    if same_step:
        rollout["valid"][:] = True
        unseen[19, :3] = rollout["truncated"][19, :3] = True
        rollout["terminated"][19, :3] = False
    final = FinalValues(unseen, np.where(unseen, final_values, np.float32(np.nan)))
    windows = n_step_windows(**rollout, n=n, gamma=GAMMA)
    found = initial_errors(
        windows,
        rollout["reward"],
        values,
        taken,
        GAMMA,
        rescaled=rescaled,
        final=final if same_step else None,
    )

    def h(x: float) -> float:
        return float(rescale(torch.tensor(x))) if rescaled else x

    def raw(x: float) -> float:
        return float(unrescale(torch.tensor(x))) if rescaled else x

    unknown = []
    for row in range(6):
        columns = {name: column[:, row] for name, column in rollout.items()}
        for t in range(20):
            total, discount, steps = literal_window(columns, t, n, False)
            if steps == 0:
                continue
            apart = same_step and discount > 0 and unseen[t + steps - 1, row]
            at_end = t + steps == 20 and discount > 0 and not apart
            if at_end and steps == 1:
                unknown.append(found[t, row])
                continue
            if at_end:  # as if n were one less: the value of obs[T] is not there yet
                total -= GAMMA ** (steps - 1) * columns["reward"][19]
                discount, steps = discount / GAMMA, steps - 1
            value = 0.0
            if discount:
                value = final_values[t + steps - 1, row] if apart else values[t + steps, row]
            bootstrap = discount * raw(value)
            assert found[t, row] == pytest.approx(
                abs(h(total + bootstrap) - taken[t, row]), rel=1e-4, abs=1e-4
            )
    assert len(set(unknown)) == 1 and unknown[0] > 0


def test_the_ladder_of_epsilons() -> None:
    """algorithms.md's oracle."""
    assert epsilon_ladder(3, 0.4, 7).tolist() == pytest.approx([0.4, 0.016190862, 0.00065536])
    assert epsilon_ladder(1, 0.4, 7).tolist() == [0.4]


def test_value_rescaling_is_invertible_and_squashes() -> None:
    x = torch.tensor([-1e4, -3.0, -1e-3, 0.0, 0.5, 200.0, 1e5], dtype=torch.float64)
    torch.testing.assert_close(unrescale(rescale(x)), x, rtol=1e-6, atol=1e-9)
    assert rescale(torch.tensor(3.0)).item() == pytest.approx(1.0 + 3e-3)


def test_value_rescaling_keeps_all_digits_in_float32() -> None:
    """There and back, and each way against float64, within 3 roundings; small values included,
    where the textbook forms lose theirs (h(0.001) came back as 0.00105)."""
    sizes = torch.logspace(-8, 8, 321)
    x = torch.cat((-sizes, torch.zeros(1), sizes))
    close: dict[str, Any] = {"rtol": 3 * 2.0**-23, "atol": 0.0}
    torch.testing.assert_close(unrescale(rescale(x)), x, **close)
    exact = x.double()
    sign, size = exact.sign(), exact.abs()
    with localcontext() as context:
        context.prec = 50
        rescaled = [_literal_h(Decimal(v)) for v in size.tolist()]
        unrescaled = [_literal_inverse(Decimal(v)) for v in size.tolist()]
    torch.testing.assert_close(
        rescale(x), (sign * torch.tensor(rescaled, dtype=torch.float64)).float(), **close
    )
    torch.testing.assert_close(
        unrescale(x), (sign * torch.tensor(unrescaled, dtype=torch.float64)).float(), **close
    )


def test_gradients_of_value_rescaling_are_right_everywhere() -> None:
    """h' = slope, and the inverse's is 1 / h' there; at 0 as well, where sign(x) would lose it."""
    sizes = torch.logspace(-8, 8, 65)
    x = torch.cat((-sizes, torch.zeros(1), sizes)).requires_grad_()
    (there,) = torch.autograd.grad(rescale(x).sum(), x)
    torch.testing.assert_close(there, slope(x.detach()), rtol=1e-6, atol=0)
    y = rescale(x).detach().requires_grad_()
    (back,) = torch.autograd.grad(unrescale(y).sum(), y)
    torch.testing.assert_close(back, 1 / slope(x.detach()), rtol=1e-6, atol=0)
    double = torch.tensor([-30.0, -1e-3, 1e-3, 0.7, 30.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rescale, double) and torch.autograd.gradcheck(unrescale, double)


def _literal_h(x: Decimal) -> float:
    return float((x + 1).sqrt() - 1 + Decimal(EPSILON) * x)


def _literal_inverse(y: Decimal) -> float:
    """Proposition A.2 of the paper."""
    epsilon = Decimal(EPSILON)
    root = (1 + 4 * epsilon * (y + 1 + epsilon)).sqrt()
    return float(((root - 1) / (2 * epsilon)) ** 2 - 1)
