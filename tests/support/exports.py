"""Small policies of every kind, with weights that make their actions vary, and normalisers that
have seen observations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

from sampleforge.env.adapter import env_spec
from sampleforge.loaded_policy import LoadedPolicy
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig, QHeadsConfig
from sampleforge.models.q_heads import value_distribution
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.running_stats import Moments
from sampleforge.spec import EnvSpaces, EnvSpec, with_action_units

INF = np.inf
FLOATS = spaces.Box(-INF, INF, (4,), np.float64)
IMAGE = spaces.Box(0, 255, (12, 12, 3), np.uint8)
MIXED_DISCRETE = spaces.Tuple(
    (
        spaces.Discrete(3, start=5),
        spaces.MultiDiscrete([2, 3], dtype=np.int32, start=[1, -4]),
        spaces.MultiBinary((2, 2)),
    )
)
MIXED_BOXES = spaces.Dict(
    arm=spaces.Dict(
        bounded=spaces.Box(np.array([-0.01, 2.0], "f"), np.array([0.02, 900.0], "f")),
        unbounded=spaces.Box(-INF, INF, (), np.float64),
    ),
    half=spaces.Box(0.0, INF, (2,), np.float32),
    move=spaces.Discrete(2),
)
CATEGORIES = spaces.Dict(
    floats=FLOATS,
    cell=spaces.Discrete(4, start=2),
    codes=spaces.MultiDiscrete([2, 3], dtype=np.int32, start=[5, -1]),
    many=spaces.MultiDiscrete(np.full((4, 5), 4), dtype=np.uint8),
    embedded=spaces.MultiDiscrete([600, 90_000, 2], start=[3, 0, 0]),
    numbers=spaces.Box(-300, 500, (3,), np.int16),
    map=spaces.Box(0, 255, (2, 12, 12, 3), np.uint8),
    bytes=spaces.Box(0, 255, (3,), np.uint8),
    action_mask=spaces.MultiBinary(3 + 2 + 3 + 8),
)


class Case(NamedTuple):
    """A policy: its spaces, its model, and with ``heads`` a Q-network."""

    observation: spaces.Space[Any]
    action: spaces.Space[Any]
    model: Mapping[str, Any] = MappingProxyType({})
    mask_in_info: bool = False
    heads: dict[str, Any] | None = None
    rescale: bool = True
    has_values: bool = True


GRU = {"core": "gru", "core_size": 8}
LSTM = {"core": "lstm", "core_size": 8}
BOX = spaces.Box(-3.0, 7.0, (2,), np.float64)
CASES: dict[str, Case] = {
    "mlp, discrete actions of every kind, mask in the observation": Case(
        CATEGORIES, MIXED_DISCRETE
    ),
    "gru of its own for the critic, boxes of every kind": Case(
        FLOATS, MIXED_BOXES, {**GRU, "separate_critic": True, "action_std": "state"}
    ),
    "lstm, squashed box": Case(FLOATS, BOX, {**LSTM, "squash_actions": True}),
    "squashed box without values": Case(
        FLOATS, BOX, {"squash_actions": True, "action_std": "state"}, has_values=False
    ),
    "cnn, mask in the info": Case(IMAGE, spaces.Discrete(3, start=-1), {}, True),
    "dueling c51 of noisy layers, mask in the info": Case(
        FLOATS,
        spaces.Discrete(4, start=2),
        {},
        True,
        {"value_distribution": "c51", "num_atoms": 7, "v_min": -1.5, "v_max": 3.0},
    ),
}
SLOW_CASES: dict[str, Case] = {
    "quantiles": Case(
        FLOATS, spaces.Discrete(4), {}, False, {"value_distribution": "quantile", "num_atoms": 5}
    ),
    "Q-network with a gru": Case(FLOATS, spaces.Discrete(4), GRU, False, {}),
    "boxes in the environment's units": Case(FLOATS, MIXED_BOXES, rescale=False),
    "squashed box in the environment's units": Case(
        FLOATS, BOX, {"squash_actions": True}, rescale=False
    ),
    "without normaliser": Case(FLOATS, BOX, {"normalise_observations": False}),
    "image and floats": Case(
        spaces.Tuple((IMAGE, FLOATS)), spaces.MultiBinary(3), {"activation": "elu"}
    ),
    "doom_cnn": Case(
        spaces.Box(0, 255, (3, 48, 48), np.uint8), spaces.Discrete(3), {"encoder": "doom_cnn"}
    ),
    "dqn_cnn": Case(
        spaces.Box(0, 255, (3, 24, 24), np.uint8), spaces.Discrete(3), {"encoder": "dqn_cnn"}
    ),
    "impala_resnet": Case(IMAGE, spaces.Discrete(3), {"encoder": "impala_resnet", **LSTM}),
    "silu": Case(FLOATS, spaces.MultiDiscrete([3, 2]), {"activation": "silu"}),
    "planes of bools": Case(spaces.Box(0, 1, (10, 10, 4), np.bool_), spaces.Discrete(6)),
}


def policy_of(case: Case) -> LoadedPolicy:
    """The policy of a case."""
    torch.manual_seed(0)
    declared = EnvSpaces(case.observation, case.action, case.mask_in_info)
    spec = with_action_units(env_spec("Fake-v0", declared), rescale=case.rescale)
    small: dict[str, Any] = {"hidden_sizes": (16,), "cnn_features": 16, **case.model}
    config = ModelConfig(**small)
    if case.heads is not None:
        return LoadedPolicy(_q_network(config, spec, case.heads), spec)
    sizes = spec.observations, spec.actions
    model = ActorCritic(config, *sizes, has_values=case.has_values)
    with torch.no_grad():
        model.policy_weight.mul_(100.0)  # it begins with a gain of 0.01
    if case.has_values:
        model.rescale_values(3.0)
    _have_seen(model)
    return LoadedPolicy(model, spec)


def _q_network(config: ModelConfig, spec: EnvSpec, heads: dict[str, Any]) -> QNetwork:
    distribution = value_distribution(QHeadsConfig(**heads), rescaled=not heads)
    model = QNetwork(
        config,
        spec.observations,
        spec.actions,
        dueling=True,
        head_size=8,
        noisy_sigma=0.5 if heads.get("value_distribution") == "c51" else 0.0,
        value_distribution=distribution,
    )
    _have_seen(model)
    return model


def _have_seen(model: Any) -> None:
    """Give the normaliser statistics that change what it returns."""
    if model.normaliser is not None:
        seen = {}
        for name, leaf in model.normaliser._by_name:
            mean = torch.rand(leaf.total_mean.shape, dtype=torch.float64)
            seen[name] = Moments(mean, 0.5 + mean, torch.tensor(100.0, dtype=torch.float64))
        model.normaliser.merge(seen)
