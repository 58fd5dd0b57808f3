"""Action distributions against torch.distributions and numerical integrals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, distributions

from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.ops.distributions import (
    MAX_LOG_STD,
    MIN_LOG_STD,
    ActionDistribution,
    Gaussian,
    action_layout,
)
from sampleforge.spec import ActionSpec, action_specs
from tests.support.action_spaces import BOX, DISCRETE, MIXED, SPACES, UNEVEN, parameters, seeded


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("batch", [(5,), (3, 2)])
def test_samples_have_the_leaves_shapes_and_dtypes(
    name: str, squash: bool, batch: tuple[int, ...]
) -> None:
    actions = SPACES[name]
    dist = ActionDistribution(actions, parameters(actions, *batch), squash=squash)
    for sample in (dist.sample(seeded()), dist.mode()):
        assert list(sample) == list(actions)
        for leaf, spec in actions.items():
            assert sample[leaf].shape == (*batch, *spec.shape)
            assert sample[leaf].dtype == getattr(torch, spec.dtype)
        assert dist.log_prob(sample).shape == batch and dist.log_prob(sample).isfinite().all()
    assert dist.entropy().shape == dist.symmetric_kl_to_uniform().shape == batch


def test_head_without_log_stds_is_shorter_by_them() -> None:
    assert (
        action_layout(MIXED).head_size(state_std=True) == 3 + 4 + 5 + 5
        and action_layout(MIXED).head_size(state_std=False) == 12
    )


def test_uneven_parts_equal_torchs_categoricals() -> None:
    params = parameters(UNEVEN, 6)
    dist = ActionDistribution(UNEVEN, params)
    parts = [distributions.Categorical(logits=x) for x in params.split([2, 5, 3, 1, 2, 2, 2, 4], 1)]
    sample = dist.sample(seeded())
    flat = torch.cat((sample["a"].flatten(1), sample["b"], sample["c"][:, None]), 1)
    expected = sum(p.log_prob(flat[:, i]) for i, p in enumerate(parts))
    assert isinstance(expected, Tensor)
    assert torch.allclose(dist.log_prob(sample), expected, atol=1e-5)
    entropy = torch.stack([p.entropy() for p in parts]).sum(0)
    assert torch.allclose(dist.entropy(), entropy, atol=1e-5)
    kls = []
    for p in parts:
        u = distributions.Categorical(logits=torch.zeros_like(p.logits))
        kl, back = distributions.kl_divergence(p, u), distributions.kl_divergence(u, p)
        kls.append((kl + back) / 2)
    assert torch.allclose(dist.symmetric_kl_to_uniform(), torch.stack(kls).sum(0), atol=1e-5)


def test_mode_is_right_for_every_row_of_tuple_actions() -> None:
    """Fault 6 of Sample Factory: it was right for the first row only."""
    params = parameters(UNEVEN, 50)
    mode = ActionDistribution(UNEVEN, params).mode()
    parts = [x.argmax(1) for x in params.split([2, 5, 3, 1, 2, 2, 2, 4], 1)]
    assert torch.equal(mode["a"], torch.stack(parts[:4], 1).reshape(50, 2, 2))
    assert torch.equal(mode["b"], torch.stack(parts[4:7], 1).to(torch.int8))
    assert torch.equal(mode["c"], parts[7])


@pytest.mark.parametrize("actions", [DISCRETE, UNEVEN], ids=["discrete", "uneven"])
def test_samples_follow_the_probabilities(actions: dict[str, ActionSpec]) -> None:
    n = 40_000
    dist = ActionDistribution(actions, parameters(actions, 1).expand(n, -1))
    sample = dist.sample(seeded())
    own = ActionDistribution(actions, parameters(actions, 1)).log_prob
    for leaf, spec in actions.items():
        count = torch.bincount(
            sample[leaf].reshape(n, -1)[:, 0].long(), minlength=spec.categories[0]
        )
        rows = []
        for value in range(spec.categories[0]):
            other = {k: v[:1].clone() for k, v in sample.items()}
            other[leaf].reshape(1, -1)[:, 0] = value
            rows.append(own(other))
        expected = torch.cat(rows).softmax(0)
        assert torch.allclose(count / n, expected, atol=4 * (0.25 / n) ** 0.5)


def test_generator_makes_samples_repeat() -> None:
    dist = ActionDistribution(MIXED, parameters(MIXED, 8), squash=True)
    a, b, c = dist.sample(seeded(3)), dist.sample(seeded(3)), dist.sample(seeded(4))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a["0"], c["0"])


@pytest.mark.parametrize("actions", [DISCRETE, UNEVEN], ids=["discrete", "uneven"])
def test_masked_categories_are_never_drawn_and_nothing_is_nan(
    actions: dict[str, ActionSpec],
) -> None:
    rows, n = 4000, action_layout(actions).head_size(state_std=True)
    mask = torch.rand(rows, n, generator=seeded(2)) < 0.4
    mask[0] = False
    params = parameters(actions, rows, scale=30.0).requires_grad_()
    dist = ActionDistribution(actions, params, mask)
    sizes = [c for spec in actions.values() for c in spec.categories]
    for drawn in (dist.sample(seeded()), dist.mode()):
        flat = torch.cat([drawn[k].reshape(rows, -1).long() for k in actions], 1)
        for part, allowed in enumerate(mask.split(sizes, 1)):
            chosen = allowed.gather(1, flat[:, part : part + 1]).squeeze(1)
            assert (chosen | ~allowed.any(1)).all()
            assert (flat[:, part] < sizes[part]).all()
    total = dist.log_prob(drawn) + dist.entropy() + dist.symmetric_kl_to_uniform()
    total.sum().backward()
    assert total.isfinite().all() and params.grad is not None and params.grad.isfinite().all()
    inside = torch.cat([m | ~m.any(1, keepdim=True) for m in mask.split(sizes, 1)], 1)
    assert (params.grad[~inside] == 0).all()


def test_masked_entropy_and_kl_are_those_of_the_allowed_categories() -> None:
    params, mask = torch.tensor([[1.0, 7.0, 2.0, 3.0]]), torch.tensor([[True, False, True, True]])
    masked = ActionDistribution(DISCRETE, params, mask)
    alone = ActionDistribution(action_specs(spaces.Discrete(3)), params[mask][None])
    assert torch.allclose(masked.entropy(), alone.entropy())
    assert torch.allclose(masked.symmetric_kl_to_uniform(), alone.symmetric_kl_to_uniform())
    uniform = ActionDistribution(DISCRETE, torch.zeros(1, 4), mask)
    assert torch.allclose(uniform.symmetric_kl_to_uniform(), torch.zeros(1), atol=1e-7)


def test_box_equals_torchs_normal() -> None:
    params = parameters(BOX, 6)
    dist = ActionDistribution(BOX, params)
    oracle = distributions.Independent(distributions.Normal(params[:, :2], params[:, 2:].exp()), 1)
    sample = dist.sample(seeded())
    assert torch.allclose(dist.log_prob(sample), oracle.log_prob(sample["action"]), atol=1e-5)
    assert torch.allclose(dist.entropy(), oracle.entropy(), atol=1e-6)
    assert torch.equal(dist.mode()["action"], params[:, :2])


@pytest.mark.parametrize("mean, log_std", [(0.0, 0.0), (1.0, -1.0), (-1.0, 0.3)])
def test_squashed_density_integrates_to_one_and_has_its_entropy(
    mean: float, log_std: float
) -> None:
    actions = action_specs(spaces.Box(-2.0, 4.0, (1,), dtype=np.float64))
    u = torch.linspace(mean - 7, mean + 7, 20_001, dtype=torch.float64)
    u = u.clamp(-7.0, 7.0).unique()
    a = (1.0 + 3.0 * u.tanh())[:, None]
    dist = ActionDistribution(
        actions, torch.tensor([[mean, log_std]]).expand(len(a), -1), squash=True
    )
    log_prob = dist.log_prob({"action": a}).double()
    integral = torch.trapezoid(log_prob.exp(), a[:, 0])
    entropy = -torch.trapezoid(log_prob.exp() * log_prob, a[:, 0])
    assert integral.item() == pytest.approx(1.0, abs=1e-3)
    assert dist.entropy()[0].item() == pytest.approx(entropy.item(), abs=2e-3)


@pytest.mark.long
@pytest.mark.parametrize("std", [1e-3, 0.03, 0.3, 1.0, 2.0, 4.5, 10.0, 30.0])
def test_squashed_entropy_is_the_integral_for_any_std(std: float) -> None:
    """To 1e-4, also where tanh is nearly a step within the distribution, and its gradient."""
    means = torch.tensor([0.0, 1e-3, 0.5, -1.0, 3.0, -20.0, 100.0], dtype=torch.float64)
    bounds = torch.tensor([-2.0], dtype=torch.float64), torch.tensor([4.0], dtype=torch.float64)

    def integral(log_std: torch.Tensor) -> torch.Tensor:
        z = torch.linspace(-9.0, 9.0, 400_001, dtype=torch.float64)
        density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
        found = []
        for mean in means:
            u = (mean + log_std.exp() * z).abs()
            log_slope = 2 * (math.log(2.0) - u - torch.log1p(torch.exp(-2 * u)))
            found.append(torch.trapezoid(density * log_slope, z))
        gaussian = log_std + 0.5 * math.log(2 * math.pi * math.e)
        return gaussian + math.log(3.0) + torch.stack(found)

    log_std = torch.tensor(math.log(std), dtype=torch.float64, requires_grad=True)
    exact = integral(log_std)
    (slopes,) = torch.autograd.grad(exact.sum(), log_std)
    ours = torch.full((len(means), 1), math.log(std), requires_grad=True)
    entropy = Gaussian(means.float()[:, None], ours, *bounds).entropy()
    (our_slopes,) = torch.autograd.grad(entropy.sum(), ours)
    torch.testing.assert_close(entropy.double(), exact, rtol=1e-6, atol=1e-4)
    assert our_slopes.sum().item() == pytest.approx(slopes.item(), abs=1e-3)


def test_gradients_of_the_squashed_entropy_are_right() -> None:
    mean = torch.tensor([[-30.0, -0.7, 0.0], [1e-3, 2.0, 8.0]], dtype=torch.float64)
    log_std = torch.tensor([[1.0, -7.0, 0.0], [3.4, -1.0, 2.0]], dtype=torch.float64)
    bounds = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

    def entropy(mean: Tensor, log_std: Tensor) -> Tensor:
        return Gaussian(mean, log_std, *bounds).entropy()

    inputs = mean.requires_grad_(), log_std.requires_grad_()
    assert torch.autograd.gradcheck(entropy, inputs)


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_stored_squashed_actions_give_ratio_one_and_stay_in_bounds(scale: float) -> None:
    params = parameters(BOX, 2000, scale=scale)
    dist = ActionDistribution(BOX, params, squash=True)
    stored = {k: torch.from_numpy(v.numpy().copy()) for k, v in dist.sample(seeded()).items()}
    low, high = (torch.tensor(x) for x in (BOX["action"].low, BOX["action"].high))
    assert ((stored["action"] >= low) & (stored["action"] <= high)).all()
    behaviour = dist.log_prob(stored)
    again = torch.cat(
        [
            ActionDistribution(BOX, p, squash=True).log_prob({"action": a})
            for p, a in zip(params.split(64), stored["action"].split(64), strict=True)
        ]
    )
    assert behaviour.isfinite().all()
    assert torch.allclose((again - behaviour).exp(), torch.ones(2000), atol=1e-5)


def test_squashed_log_prob_is_that_of_the_draw_where_tanh_is_not_flat() -> None:
    params = torch.zeros(500, 4)
    dist = ActionDistribution(BOX, params, squash=True)
    a = dist.sample(seeded())["action"].double()
    half = torch.tensor([2.0, 0.25], dtype=torch.float64)
    y = (a - torch.tensor([-2.0, 0.0])) / half - 1
    normal = distributions.Normal(0.0, 1.0)
    expected = (normal.log_prob(y.atanh()) - (half * (1 - y * y)).log()).sum(-1)
    assert torch.allclose(dist.log_prob({"action": a.float()}).double(), expected, atol=1e-4)


def test_a_log_std_that_would_be_clamped_at_the_start_is_refused() -> None:
    for log_std in (MIN_LOG_STD, MAX_LOG_STD):
        assert ModelConfig(initial_log_std=log_std).initial_log_std == log_std
        with pytest.raises(ConfigError, match=r"--model\.initial-log-std"):
            ModelConfig(initial_log_std=1.01 * log_std)


def test_squash_without_bounds_is_refused() -> None:
    actions = action_specs(spaces.Box(-math.inf, 1.0, (2,)))
    with pytest.raises(ValueError, match="finite bounds"):
        ActionDistribution(actions, torch.zeros(1, 4), squash=True)


@pytest.mark.parametrize("name", SPACES)
def test_bfloat16_parameters_are_computed_in_float32(name: str) -> None:
    actions = SPACES[name]
    params = parameters(actions, 5).bfloat16()
    dist, same = (ActionDistribution(actions, p) for p in (params, params.float()))
    sample = dist.sample(seeded())
    assert dist.log_prob(sample).dtype == torch.float32
    assert torch.equal(dist.log_prob(sample), same.log_prob(sample))


@pytest.mark.parametrize("name", SPACES)
def test_tensors_cached_in_inference_mode_work_in_training(name: str) -> None:
    """Cached index tensors must not be inference tensors, which autograd cannot save."""
    actions = {f"{k}{name}": v for k, v in SPACES[name].items()}
    with torch.inference_mode():
        ActionDistribution(actions, parameters(actions, 2), squash=True)
    params = parameters(actions, 2).requires_grad_()
    dist = ActionDistribution(actions, params, squash=True)
    (dist.log_prob(dist.sample(seeded())) + dist.entropy()).sum().backward()
    assert params.grad is not None and params.grad.isfinite().all()


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(AssertionError, match="action mask"):
        ActionDistribution(DISCRETE, torch.zeros(2, 4), torch.ones(4, dtype=torch.bool))
