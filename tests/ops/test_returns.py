"""V-trace and GAE against the literal sums of their papers, and the properties that hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sampleforge.ops.returns import doubling, gae, linear_recurrence, vtrace

GAMMA, LAM = 0.9, 0.8


def rollout(steps: int, rows: int, seed: int) -> dict[str, Tensor]:
    """Random experience with terminations, truncations and rows cut for another reason."""
    g = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(steps, rows, generator=g, dtype=torch.float64)

    u = torch.rand(steps, rows, generator=g)
    values, final_values, after = normal(), normal(), normal()[:1]
    terminated, truncated, other = u < 0.1, (u > 0.1) & (u < 0.2), u > 0.95
    following = torch.cat((values[1:], after))
    return {
        "rewards": normal(),
        "values": values,
        "next_values": torch.where(truncated | terminated, final_values, following),
        "terminated": terminated,
        "trace_cut": terminated | truncated | other,
    }


def log_ratios(steps: int, rows: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(100 + seed)
    return torch.randn(steps, rows, generator=g, dtype=torch.float64)


def delta_at(d: dict[str, Tensor], t: int, b: int) -> float:
    bootstrap = 0.0 if d["terminated"][t, b] else GAMMA * d["next_values"][t, b].item()
    return d["rewards"][t, b].item() + bootstrap - d["values"][t, b].item()


def literal_gae(d: dict[str, Tensor]) -> Tensor:
    out = torch.zeros_like(d["rewards"])
    steps, rows = out.shape
    for b in range(rows):
        for t in range(steps):
            for k in range(t, steps):
                out[t, b] += (GAMMA * LAM) ** (k - t) * delta_at(d, k, b)
                if d["trace_cut"][k, b]:
                    break
    return out


def literal_vtrace(
    d: dict[str, Tensor], ratios: Tensor, lam: float, rho: float, c: float
) -> tuple[Tensor, Tensor]:
    """Equation 1 of arXiv 1802.01561, and the advantage of its section 4.2, term by term."""
    targets = d["values"].clone()
    steps, rows = targets.shape
    for b in range(rows):
        for s in range(steps):
            product = 1.0
            for t in range(s, steps):
                weight = min(rho, ratios[t, b].item())
                targets[s, b] += GAMMA ** (t - s) * product * weight * delta_at(d, t, b)
                if d["trace_cut"][t, b]:
                    break
                product *= lam * min(c, ratios[t, b].item())
    advantages = torch.zeros_like(targets)
    for b in range(rows):
        for t in range(steps):
            last = d["trace_cut"][t, b] or t == steps - 1
            following = d["next_values"][t, b] if last else targets[t + 1, b]
            q = d["rewards"][t, b] + (0.0 if d["terminated"][t, b] else GAMMA * following)
            advantages[t, b] = min(rho, ratios[t, b].item()) * (q - d["values"][t, b])
    return targets, advantages


@pytest.mark.parametrize("steps", [1, 2, 7, 32, 33, 256])
def test_recurrence_equals_its_definition(steps: int) -> None:
    g = torch.Generator().manual_seed(steps)
    delta = torch.randn(steps, 3, generator=g, dtype=torch.float64)
    decay = torch.rand(steps, 3, generator=g, dtype=torch.float64)
    decay[torch.rand(steps, 3, generator=g) < 0.2] = 0.0  # where an episode ends
    expected, x = torch.zeros_like(delta), torch.zeros(3, dtype=torch.float64)
    for t in reversed(range(steps)):
        x = delta[t] + decay[t] * x
        expected[t] = x
    for recurrence in (linear_recurrence, doubling):  # on the CPU, and on other devices
        given = delta.clone(), decay.clone()
        assert torch.allclose(recurrence(*given), expected, atol=1e-12)
        assert torch.equal(given[0], delta) and torch.equal(given[1], decay)
        found = recurrence(delta.float(), decay.float())
        assert torch.allclose(found, expected.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 5, 19])
def test_gae_equals_the_literal_sum(steps: int) -> None:
    d = rollout(steps, 6, steps)
    assert torch.allclose(gae(**d, gamma=GAMMA, lam=LAM), literal_gae(d), atol=1e-12)


@pytest.mark.parametrize("lam, rho, c", [(1.0, 1.0, 1.0), (0.8, 1.0, 1.0), (0.95, 2.0, 0.7)])
@pytest.mark.parametrize("steps", [1, 19])
def test_vtrace_equals_the_literal_sum(steps: int, lam: float, rho: float, c: float) -> None:
    d, logs = rollout(steps, 6, steps), log_ratios(steps, 6, steps)
    found = vtrace(logs, **d, gamma=GAMMA, lam=lam, rho_clip=rho, c_clip=c)
    targets, advantages = literal_vtrace(d, logs.exp(), lam, rho, c)
    assert torch.allclose(found.targets, targets, atol=1e-12)
    assert torch.allclose(found.advantages, advantages, atol=1e-12)


def both(d: dict[str, Tensor], logs: Tensor) -> Tensor:
    v = vtrace(logs, **d, gamma=GAMMA, lam=LAM, rho_clip=1.0, c_clip=1.0)
    return torch.stack((gae(**d, gamma=GAMMA, lam=LAM), v.targets, v.advantages))


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_an_episode_boundary_equals_two_separate_episodes(end: str) -> None:
    d, logs = rollout(12, 4, 5), log_ratios(12, 4, 5)
    d["trace_cut"][4] = True
    d["terminated"][4] = end == "terminated"
    first = both({k: x[:5] for k, x in d.items()}, logs[:5])
    second = both({k: x[5:] for k, x in d.items()}, logs[5:])
    assert torch.allclose(both(d, logs), torch.cat((first, second), dim=1), atol=1e-12)


def uncut(steps: int) -> dict[str, Tensor]:
    d = rollout(steps, 4, 9)
    none = torch.zeros_like(d["trace_cut"])
    following = torch.cat((d["values"][1:], d["next_values"][-1:]))
    return {**d, "terminated": none, "trace_cut": none, "next_values": following}


def discounted_returns(d: dict[str, Tensor]) -> Tensor:
    total, out = d["next_values"][-1], []
    for r in reversed(d["rewards"]):
        total = r + GAMMA * total
        out.append(total)
    return torch.stack(out[::-1])


def test_gae_with_lambda_1_is_monte_carlo() -> None:
    d = uncut(10)
    found = gae(**d, gamma=GAMMA, lam=1.0)
    assert torch.allclose(found, discounted_returns(d) - d["values"], atol=1e-12)


def test_vtrace_on_policy_is_the_n_step_return() -> None:
    d = uncut(10)
    zeros = torch.zeros_like(d["rewards"])
    found = vtrace(zeros, **d, gamma=GAMMA, lam=1.0, rho_clip=1.0, c_clip=1.0)
    assert torch.allclose(found.targets, discounted_returns(d), atol=1e-12)
    assert torch.allclose(found.advantages, discounted_returns(d) - d["values"], atol=1e-12)


def test_the_tail_bootstraps_with_the_value_of_the_last_observation() -> None:
    """Fault 1 of Sample Factory: (V_T - r_T) / gamma made the last delta 0, whatever happened."""
    d = uncut(3)
    d["next_values"][-1] = 7.0
    zeros = torch.zeros_like(d["rewards"])
    expected = d["rewards"][-1] + GAMMA * 7.0 - d["values"][-1]
    v = vtrace(zeros, **d, gamma=GAMMA, lam=1.0, rho_clip=1.0, c_clip=1.0)
    assert torch.allclose(v.advantages[-1], expected)
    assert torch.allclose(v.targets[-1] - d["values"][-1], expected)
    assert torch.allclose(gae(**d, gamma=GAMMA, lam=LAM)[-1], expected)


def test_truncation_bootstraps_and_termination_does_not() -> None:
    d = uncut(4)
    d["trace_cut"] = torch.ones_like(d["trace_cut"])
    d["terminated"] = torch.zeros_like(d["trace_cut"])
    d["terminated"][:, :2] = True
    bootstrap = GAMMA * d["next_values"] * torch.tensor([0.0, 0.0, 1.0, 1.0])
    found = gae(**d, gamma=GAMMA, lam=LAM)
    assert torch.allclose(found, d["rewards"] + bootstrap - d["values"])


def test_targets_carry_no_gradient() -> None:
    d, logs = rollout(4, 2, 0), log_ratios(4, 2, 0).requires_grad_()
    d["values"].requires_grad_()
    v = vtrace(logs, **d, gamma=GAMMA, lam=1.0, rho_clip=1.0, c_clip=1.0)
    assert not v.targets.requires_grad and not v.advantages.requires_grad


@pytest.mark.parametrize("change", [{"rewards": torch.zeros(4)}, {"trace_cut": torch.zeros(4, 1)}])
def test_other_shapes_and_dtypes_are_refused(change: dict[str, Any]) -> None:
    d: dict[str, Any] = {**rollout(4, 2, 0), **change}
    with pytest.raises(AssertionError):
        gae(**d, gamma=GAMMA, lam=LAM)
