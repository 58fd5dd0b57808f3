"""Several networks in one pass: each row gets the outputs of its own network alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.models.q_network import QNetwork
from sampleforge.models.stacked import NetworkOfEachRow, StackedActors, network_of_each_row
from sampleforge.spec import action_specs, observation_specs

VECTOR = spaces.Box(-np.inf, np.inf, (5,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 36, 40), np.uint8)
BOTH = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1.0, 1.0, (2,), np.float32))
NETWORKS, ROWS = 5, 23


def randomised(network: ActorCritic | QNetwork, seed: int) -> ActorCritic | QNetwork:
    """Return the network with parameters and buffers of its own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if tensor.is_floating_point() and "total" not in name and "count" not in name:
                tensor.copy_(torch.rand(tensor.shape, generator=generator) - 0.3)
    return network.eval()


def batch(space: spaces.Space[Any], state_size: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    space.seed(1)
    name = next(iter(observation_specs(space)))
    obs = torch.from_numpy(np.stack([np.asarray(space.sample()) for _ in range(ROWS)]))
    generator = torch.Generator().manual_seed(2)
    state = torch.rand(ROWS, state_size, generator=generator)
    return {name: obs}, state, torch.rand(ROWS, generator=generator) < 0.3


def check(networks: list[ActorCritic | QNetwork], space: spaces.Space[Any]) -> type:
    passes = network_of_each_row(networks)
    obs, state, is_first = batch(space, networks[0].state_size)
    chosen = torch.randint(NETWORKS, (ROWS,), generator=torch.Generator().manual_seed(3))
    for changed in (None, 2):
        if changed is not None:
            randomised(networks[changed], 99)
            passes.follow(changed)
        with torch.inference_mode():
            parameters, after = passes.policy_step(obs, state, is_first, chosen)
            for row, network in enumerate(chosen.tolist()):
                own = {name: leaf[row : row + 1] for name, leaf in obs.items()}
                arguments = own, state[row : row + 1], is_first[row : row + 1]
                alone, alone_after = networks[network].policy_step(*arguments)
                torch.testing.assert_close(parameters[row : row + 1], alone)
                torch.testing.assert_close(after[row : row + 1], alone_after)
                whole = networks[network].step(*arguments)
                torch.testing.assert_close(alone, whole.parameters)
    return type(passes)


@pytest.mark.parametrize(
    ("space", "action", "config", "kind"),
    [
        (VECTOR, spaces.Discrete(4), {}, StackedActors),
        (VECTOR, BOTH, {"hidden_sizes": (7,), "activation": "relu"}, StackedActors),
        (VECTOR, BOTH, {"normalise_observations": False}, StackedActors),
        (VECTOR, BOTH, {"hidden_sizes": (), "separate_critic": False}, StackedActors),
        (VECTOR, BOTH, {"action_std": "state"}, StackedActors),
        (VECTOR, BOTH, {"core": "gru", "core_size": 6}, NetworkOfEachRow),
        (
            VECTOR,
            BOTH,
            {"core": "lstm", "core_size": 6, "separate_critic": False},
            NetworkOfEachRow,
        ),
        (IMAGE, spaces.Discrete(4), {"encoder": "nature_cnn", "cnn_features": 8}, NetworkOfEachRow),
    ],
)
def test_each_row_has_the_policy_of_its_own_network(
    space: spaces.Space[Any], action: spaces.Space[Any], config: dict[str, Any], kind: type
) -> None:
    specs, actions = observation_specs(space), action_specs(action)
    model = ModelConfig(**config)
    networks = [randomised(ActorCritic(model, specs, actions), i) for i in range(NETWORKS)]
    assert check(networks, space) is kind


def test_q_networks_take_a_pass_each() -> None:
    specs, actions = observation_specs(VECTOR), action_specs(spaces.Discrete(4))
    networks = [
        randomised(QNetwork(ModelConfig(), specs, actions, dueling=True, head_size=4), i)
        for i in range(NETWORKS)
    ]
    assert check(networks, VECTOR) is NetworkOfEachRow
