"""Acting on arrays: the same draws, actions, log-probabilities and values as in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sampleforge.algorithms.acting import ActingPlace
from sampleforge.algorithms.sampling import sampling
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.models.numpy_forward import MAX_ROWS, has_numpy_forward
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import ACTION_MASK, OBSERVATION, ActionSpec, ArraySpec, action_specs
from tests.support.action_spaces import BOX, DISCRETE, MIXED, UNEVEN

VECTOR = {OBSERVATION: ArraySpec((5,), "float32")}
MASKED = {**VECTOR, ACTION_MASK: ArraySpec((4,), "bool")}
TWO = action_specs(spaces.Discrete(2))
ONE_ELEMENT = action_specs(spaces.Box(-2.0, 2.0, (1,)))
HALVES = action_specs(spaces.Box(-2.0, 2.0, (3,), np.float16))  # type: ignore[arg-type]
WHOLES = action_specs(spaces.Box(-2.0, 2.0, (3,)))
ROWS = 16
CASES: dict[str, tuple[dict[str, ActionSpec], dict[str, Any], dict[str, Any]]] = {
    "discrete": (DISCRETE, {}, {}),
    "two actions, one trunk": (TWO, {"separate_critic": False}, {}),
    "wide relu": (TWO, {"activation": "relu", "hidden_sizes": (128, 32, 8)}, {}),
    "no layers": (DISCRETE, {"hidden_sizes": ()}, {}),
    "no layers, one trunk": (DISCRETE, {"hidden_sizes": (), "separate_critic": False}, {}),
    "not normalised": (DISCRETE, {"normalise_observations": False}, {}),
    "masked": (DISCRETE, {}, {}),
    "several discrete": (UNEVEN, {}, {}),
    "mixed": (MIXED, {}, {"noise_correlation": 0.5}),
    "boxes": (BOX, {}, {}),
    "boxes, one trunk, correlated": (BOX, {"separate_critic": False}, {"noise_correlation": 0.7}),
    "boxes, deviation of the state": (BOX, {"action_std": "state"}, {}),
    "boxes of float16": (HALVES, {}, {}),
    "one element": (ONE_ELEMENT, {}, {}),
    "one element, correlated": (ONE_ELEMENT, {}, {"noise_correlation": 0.7}),
    "squashed boxes": (BOX, {"squash_actions": True}, {"noise_correlation": 0.7}),
}


def model(actions: dict[str, ActionSpec], seed: int, masked: bool, **config: Any) -> ActorCritic:
    """Return an actor-critic whose weights, biases, statistics and value scale are all random, and
    large enough that its policy is far from uniform."""
    torch.manual_seed(seed)
    chosen = ModelConfig(**{"separate_critic": True, **config})
    made = ActorCritic(chosen, MASKED if masked else VECTOR, actions)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        made.value_scale.fill_(1.7)
    if made.normaliser is not None:
        made.normaliser.update({OBSERVATION: 3.0 + 2.0 * torch.randn(64, 5)})
    return made


def observations(rows: int, step: int, masked: bool) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(step)
    obs: dict[str, np.ndarray[Any, Any]] = {}
    obs[OBSERVATION] = random.normal(3.0, 4.0, (rows, 5)).astype(np.float32)
    obs[OBSERVATION][0] = 1e4  # beyond the bounds of normalised observations
    if masked:
        obs[ACTION_MASK] = random.random((rows, 4)) < 0.5
        obs[ACTION_MASK][1:2] = False
    return obs


def close(now: Mapping[str, Any], then: Mapping[str, torch.Tensor]) -> None:
    """Equal, up to 1e-6 of the largest number of the column, or of 1."""
    assert list(now) == list(then)
    for name, column in then.items():
        scale = max(1.0, float(column.abs().max()))
        np.testing.assert_allclose(
            now[name], column.numpy(), rtol=1e-6, atol=1e-6 * scale, err_msg=name
        )


def close_halves(now: Mapping[str, Any], then: Mapping[str, torch.Tensor]) -> None:
    """Equal to the halves of numbers that `close` takes for ``then``, which is not rounded."""
    assert list(now) == list(then)
    for name, column in then.items():
        exact = column.numpy()
        assert (now[name].dtype, exact.dtype) == (np.float16, np.float32)
        error = 1e-6 * (np.abs(exact) + max(1.0, float(np.abs(exact).max())))
        lowest, highest = (exact + side * error for side in (-1, 1))
        assert (lowest.astype(np.float16) <= now[name]).all(), name
        assert (now[name] <= highest.astype(np.float16)).all(), name


@pytest.mark.parametrize("case", CASES)
def test_actions_log_probs_and_values_are_those_of_torch(case: str) -> None:
    actions, config, of_policy = CASES[case]
    masked, halved = case == "masked", case == "boxes of float16"
    exact = WHOLES if halved else actions
    weights = SharedWeights(model(actions, 1, masked, **config).state_dict())
    direct, of_torch, unrounded = [
        sampling(
            model(own, 0, masked, **config),
            weights,
            ActingPlace(torch.Generator().manual_seed(5), num_rows=2 * ROWS, recorded=in_torch),
            **of_policy,
        )
        for own, in_torch in ((actions, False), (actions, True), (exact, True))
    ]
    like, taken = model(actions, 0, masked, **config), []
    assert has_numpy_forward(like)
    for step in range(30):
        if step % 10 == 0:
            weights.publish(model(actions, 1 + step, masked, **config).state_dict(), step)
        rows = (ROWS, ROWS // 2, 1)[step % 3]
        obs, state = observations(rows, step, masked), np.zeros((rows, 0), np.float32)
        first, numbers = np.arange(rows) % 5 == step % 5, torch.arange(rows) + step % 2
        for policy in (direct, of_torch, unrounded):
            policy.refresh()
        torch_obs = {name: torch.from_numpy(leaf) for name, leaf in obs.items()}
        more = torch.from_numpy(state), torch.from_numpy(first), numbers
        then, expected = of_torch.act(torch_obs, *more), unrounded.act(torch_obs, *more).actions
        now = direct.act_on_arrays(obs, state, first, numbers)
        same = close_halves if halved else close
        same(now.actions, expected)
        same({name: leaf.numpy() for name, leaf in then.actions.items()}, expected)
        # Of the same actions: near a bound, a rounding of the action moves its log-probability.
        own = {name: torch.from_numpy(leaf) for name, leaf in now.actions.items()}
        distribution = like.distribution(then.extras["parameters"], torch_obs)
        close(now.extras, {"log_prob": distribution.log_prob(own), "value": then.extras["value"]})
        taken.append(np.concatenate([leaf.reshape(-1) for leaf in now.actions.values()]))
    assert len(np.unique(np.concatenate(taken))) > 1


@pytest.mark.parametrize(
    "other",
    [{"core": "gru", "separate_critic": False}, {"activation": "silu"}],
)
def test_other_models_act_in_torch(other: dict[str, Any]) -> None:
    assert not has_numpy_forward(model(DISCRETE, 0, False, **other))


@pytest.mark.parametrize("actions", [DISCRETE, BOX, MIXED], ids=["discrete", "box", "mixed"])
def test_outputs_that_are_not_finite_are_passed_on(actions: dict[str, ActionSpec]) -> None:
    """The actor drops such rows, and says why (`workers.policy_outputs`)."""
    broken = model(actions, 0, False)
    with torch.no_grad():
        broken.actor.encoder.get_parameter("weight_0").fill_(torch.nan)
        broken.value_weight.fill_(1e38)
    weights = SharedWeights(broken.state_dict())
    weights.publish(broken.state_dict(), 1)
    policy = sampling(broken, weights, ActingPlace(torch.Generator().manual_seed(1)))
    policy.refresh()
    obs, state = observations(4, 0, False), np.zeros((4, 0), np.float32)
    acted = policy.act_on_arrays(obs, state, np.ones(4, np.bool_), torch.arange(4))
    assert not np.isfinite(acted.extras["log_prob"]).any()


def test_many_rows_act_in_torch() -> None:
    made = model(TWO, 0, False)
    weights = SharedWeights(made.state_dict())
    policy = sampling(made, weights, ActingPlace(torch.Generator().manual_seed(1)))
    rows = MAX_ROWS + 1
    obs, state = observations(rows, 0, False), np.zeros((rows, 0), np.float32)
    first, numbers = np.ones(rows, np.bool_), torch.arange(rows)
    now = policy.act_on_arrays(obs, state, first, numbers)
    torch_obs = {name: torch.from_numpy(leaf) for name, leaf in obs.items()}
    with torch.inference_mode():
        then = made.step(torch_obs, torch.from_numpy(state), torch.from_numpy(first))
    np.testing.assert_array_equal(now.extras["value"], then.values.numpy())
