"""Flat parameters stay the model's own, and optimisers of them do what torch's do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sampleforge.algorithms.critics_learner import flat_data
from sampleforge.algorithms.flat_parameters import (
    Adam,
    FlatParameters,
    Optimiser,
    RmsProp,
    flatten,
    load_optimiser,
    optimiser_tensors,
)
from tests.support.learners import config, learner_of, model_of, one_batch

TorchOptimiser = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
OPTIMISERS: dict[str, tuple[Callable[[FlatParameters], Optimiser], TorchOptimiser]] = {
    "adam": (
        lambda flat: Adam(flat, (0.8, 0.99), 1e-5),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.99), eps=1e-5),
    ),
    "rmsprop": (
        lambda flat: RmsProp(flat, 0.9, 1e-3),
        lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-3, centered=True),
    ),
}


class Model(nn.Module):
    """Parameters of several shapes and dtypes; one that is not trained, one without gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 4)
        self.conv = nn.Conv2d(2, 3, 2)
        self.fixed = nn.Parameter(torch.ones(2), requires_grad=False)
        self.precise = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.unused = nn.Parameter(torch.randn(()))

    def loss(self, seed: int) -> Tensor:
        torch.manual_seed(seed)
        one = self.layer(torch.randn(5, 3)).square().mean() * self.fixed.sum()
        return one + self.conv(torch.randn(1, 2, 4, 4)).square().mean() + self.precise.pow(4).sum()


def steps(model: Model, seeds: Iterable[int], step: Callable[[], Any]) -> None:
    for seed in seeds:
        model.loss(seed).backward()
        step()


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_of_flat_parameters_step_like_torch_s(name: str) -> None:
    """And go on from torch's state; one of its parameters, which no loss uses, has none."""
    new, torchs = OPTIMISERS[name]
    plain, flat_model = Model(), Model()
    before = flat_model.state_dict()
    optimiser = torchs(p for p in plain.parameters() if p.requires_grad)

    def torch_step() -> None:
        optimiser.step()
        optimiser.zero_grad()

    steps(plain, range(3), torch_step)
    flat = flatten(flat_model)
    assert list(flat_model.state_dict()) == list(before) and len(flat.chunks) == 2
    assert all(map(torch.equal, before.values(), Model().state_dict().values()))
    flat_model.load_state_dict(plain.state_dict())
    ours = new(flat)
    stored = {
        f"optimiser/{i}/{n}": t
        for i, entry in optimiser.state_dict()["state"].items()
        for n, t in entry.items()
    }
    assert {n.split("/")[1] for n in stored} == set("02345"), "the unused parameter has none"
    load_optimiser(
        ours, {**optimiser_tensors(ours), **stored, "optimiser/1/step": torch.tensor(3.0)}
    )

    def flat_step() -> None:
        ours.step(0.01)
        flat.zero_gradient()

    steps(plain, range(3, 8), torch_step)
    steps(flat_model, range(3, 8), flat_step)
    for (key, a), b in zip(
        plain.state_dict().items(), flat_model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(b, a, atol=1e-7, rtol=1e-6, msg=f"{key}: {{}}".format)
    now = optimiser_tensors(ours)
    for index, entry in optimiser.state_dict()["state"].items():
        for key, value in entry.items():
            torch.testing.assert_close(now[f"optimiser/{index}/{key}"], value, atol=1e-7, rtol=1e-6)
    assert "optimiser/1/step" in now


def test_what_an_optimiser_stores_is_what_it_goes_on_from() -> None:
    flat = flatten(Model())
    optimiser = Adam(flat, (0.9, 0.999), 1e-8)
    for chunk in flat.chunks:
        chunk.gradient.normal_()
    optimiser.step(0.1)
    stored = {n: t.clone() for n, t in optimiser_tensors(optimiser).items()}
    other = Adam(flat, (0.9, 0.999), 1e-8)
    load_optimiser(other, stored)
    for name, tensors in optimiser.state.items():
        assert all(map(torch.equal, tensors, other.state[name])), name


def test_a_step_of_adam_is_skipped_where_asked_for() -> None:
    model = Model()
    flat = flatten(model)
    optimiser = Adam(flat, (0.9, 0.999), 1e-8)
    model.loss(0).backward()
    optimiser.step(0.1, torch.tensor(0.0))
    before = [c.data.clone() for c in flat.chunks], optimiser_tensors(optimiser)
    kept = {n: t.clone() for n, t in before[1].items()}
    flat.chunks[0].gradient.fill_(torch.nan)
    optimiser.step(0.1, torch.tensor(1.0))
    assert all(map(torch.equal, before[0], [c.data for c in flat.chunks]))
    assert all(torch.equal(kept[n], t) for n, t in optimiser_tensors(optimiser).items())


@pytest.mark.parametrize("held_for", [1, 2000])
def test_what_was_held_moves_by_the_learning_rate_once_it_is_released(held_for: int) -> None:
    """With a constant gradient each step of Adam is as long as the learning rate."""
    rate = 0.001
    first, second = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    flat = FlatParameters([first, second])
    optimiser = Adam(flat, (0.9, 0.999), 1e-8)
    flat.hold([first])
    for chunk in flat.chunks:
        chunk.gradient.fill_(2.0)
    for _ in range(held_for):
        optimiser.step(rate)
    assert torch.equal(first, torch.ones(3)), "to the bit"
    flat.release()
    for steps in range(1, 41):
        optimiser.step(rate)
        moved = 1.0 - first.detach()
        torch.testing.assert_close(moved, torch.full((3,), steps * rate), rtol=1e-3, atol=0)
    assert (second < first).all()


def test_the_norm_of_a_gradient_is_of_what_moves() -> None:
    first, second = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    flat = FlatParameters([first, second])
    flat.hold([first])
    flat.chunks[0].gradient.fill_(3.0)
    assert float(flat.clip_gradient(3.0)) == pytest.approx(6.0)
    torch.testing.assert_close(second.grad, torch.full((4,), 1.5), rtol=1e-4, atol=0)
    flat.release()
    flat.chunks[0].gradient.fill_(3.0)
    assert float(flat.clip_gradient(0.0)) == pytest.approx(6.0 * 2**0.5)
    flat.chunks[0].gradient[0] = torch.nan
    flat.hold([first])
    assert not flat.clip_gradient(0.0).isfinite(), "an optimiser follows it all the same"


@pytest.mark.parametrize("limit", [0.0, 0.5, 1e6])
def test_the_gradient_is_clipped_by_its_norm_over_all_parameters(limit: float) -> None:
    model, plain = Model(), Model()
    flat = flatten(model)
    model.loss(0).backward()
    plain.loss(0).backward()
    norm = flat.clip_gradient(limit)
    trained = [p for p in plain.parameters() if p.grad is not None]
    expected = torch.nn.utils.clip_grad_norm_(trained, limit or float("inf"))
    torch.testing.assert_close(norm.double(), expected.double())
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_parameters_that_are_frozen_too_late_are_named_and_not_trained_all_the_same() -> None:
    made, batch = learner_of(config()), one_batch(config())
    made.update(batch, 0.0)
    made.model.actor.encoder.requires_grad_(False)
    message = r"requires_grad of actor.encoder.weight_0, actor.encoder.bias_0 was changed"
    with pytest.raises(RuntimeError, match=message):
        made.update(batch, 0.0)
    made.model.actor.encoder.requires_grad_(True)
    made.update(batch, 0.0)


def test_parameters_that_were_frozen_before_stay_as_they_are() -> None:
    model = model_of(config())
    model.actor.encoder.requires_grad_(False)
    made = learner_of(config(), model=model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made.update(one_batch(config()), 0.0)
    moved = {name for name, tensor in model.state_dict().items() if not tensor.equal(before[name])}
    assert moved
    assert not {name for name in moved if name.startswith("actor.encoder")}
    model.actor.encoder.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"actor\.encoder\.weight_0, actor\.encoder\.bias_0"):
        made.update(one_batch(config()), 0.0)


def test_a_target_network_is_laid_out_as_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CUDA device recurrent layers are apart in both."""

    def apart(model: nn.Module) -> list[Tensor]:
        return [
            p
            for module in model.modules()
            if isinstance(module, nn.GRU)
            for p in module.parameters()
        ]

    for place in ("flat_parameters", "critics_learner"):
        monkeypatch.setattr(f"sampleforge.algorithms.{place}.kept_apart", apart)
    network, target = (nn.Sequential(nn.GRU(3, 4), nn.Linear(4, 2)) for _ in range(2))
    flat = flatten(network)
    data = flat_data(target, network)
    assert [len(each) for each in data] == [len(chunk.data) for chunk in flat.chunks]
    assert len(data) == 5, "four weights of the layer, and the rest"
    torch._foreach_lerp_(data, [chunk.data for chunk in flat.chunks], 1.0)
    for own, source in zip(target.parameters(), network.parameters(), strict=True):
        assert torch.equal(own, source)
