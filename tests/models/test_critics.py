"""Critics see actions in units of their bounds, whatever the shapes of the leaves."""

from __future__ import annotations

import torch

from sampleforge.models.config import ModelConfig
from sampleforge.models.critics import Critics, unit_actions
from sampleforge.spec import ActionSpec, ArraySpec

ACTIONS = {
    "arm": ActionSpec("box", (2, 2), "float32", low=(-1.0, 0.0, 2.0, -4.0), high=(1.0, 1.0, 4, 4)),
    "leg": ActionSpec("box", (), "float64", low=(0.0,), high=(3.0,)),
}
OBSERVATIONS = {"obs": ArraySpec((3,), "float32"), "code": ArraySpec((), "int64", (5,))}


def critics(**more: object) -> Critics:
    torch.manual_seed(0)
    config = ModelConfig(hidden_sizes=(8, 4), **more)  # type: ignore[arg-type]
    return Critics(config, OBSERVATIONS, ACTIONS, 3)


def test_actions_are_in_units_of_their_bounds_in_the_order_of_the_leaves() -> None:
    arm = torch.tensor([[[-1.0, 1.0], [3.0, 2.0]], [[0.0, 0.5], [2.0, -4.0]]])
    leg = torch.tensor([3.0, 1.5], dtype=torch.float64)
    found = unit_actions(critics().layout, {"arm": arm, "leg": leg})
    wanted = [[-1.0, 1.0, 0.0, 0.5, 1.0], [0.0, 0.0, -1.0, -1.0, 0.0]]
    assert found.dtype == torch.float32 and found.tolist() == wanted


def test_each_critic_is_a_network_of_its_own() -> None:
    for each in (critics(), critics(layer_norm=True), critics(encoder="mlp")):
        obs = {"obs": torch.randn(6, 3), "code": torch.arange(6) % 5}
        features, actions = each.features(obs), torch.rand(6, 5)
        values = each(features, actions)
        assert values.shape == (3, 6) and features.shape == (6, 8)
        assert len(torch.unique(values)) == 18
        values[1].sum().backward()
        for name, parameter in each.named_parameters():
            if not name.startswith("encoder"):  # which all share
                assert parameter.grad is not None
                moved = parameter.grad.abs().sum((1, 2)) > 0
                assert moved.tolist() == [False, True, False], name
