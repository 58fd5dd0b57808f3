"""Fitted Q evaluation: targets by the formula, and the Q-function of a small task."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sampleforge.models.config import ModelConfig
from sampleforge.ops.distributions import action_layout
from sampleforge.tools.estimate.fitted_q import (
    Decisions,
    FittedQ,
    _Fit,
    cross_fitted_q,
    encode_actions,
)
from tests.support.action_spaces import MIXED
from tests.support.recorded import OBSERVATIONS

MODEL = ModelConfig(hidden_sizes=(32,), normalise_observations=False)
TARGET = np.array([0.3, 0.7])
"""The policy: probabilities of the two actions, in every state."""


def random_walks(episodes: int, seed: int = 0) -> Decisions:
    """Four steps each; the reward is the action times the sign in the state, which is random."""
    rng = np.random.default_rng(seed)
    sign = rng.choice([-1.0, 1.0], (episodes, 4))
    action = rng.integers(0, 2, (episodes, 4))
    obs = np.stack((sign, np.zeros_like(sign), np.ones_like(sign)), -1).reshape(-1, 3)
    steps = episodes * 4
    return Decisions(
        obs={"obs": torch.from_numpy(obs).float()},
        action=torch.eye(2)[torch.from_numpy(action.ravel())],
        choices=torch.eye(2).unsqueeze(0),
        probability=torch.from_numpy(np.tile(TARGET, (steps, 1))).float(),
        reward=(action * sign).ravel(),
        ratio=TARGET[action.ravel()] / 0.5,
        lengths=np.full(episodes, 4),
        horizon=4,
    )


def test_targets_are_the_literal_recursion() -> None:
    data = random_walks(3)
    lengths = np.array([4, 1, 7])
    object.__setattr__(data, "lengths", lengths)
    rng = np.random.default_rng(1)
    q, v = rng.normal(size=(2, 12))
    fit = _Fit(FittedQ(MODEL, OBSERVATIONS, 2), data, 0.9, 8, 1e-3)
    found = fit.targets(q, v)
    for start, end in ((0, 4), (4, 5), (5, 12)):
        y = data.reward[end - 1]
        assert found[end - 1] == y
        for t in range(end - 2, start - 1, -1):
            trace = min(1.0, data.ratio[t + 1])
            y = data.reward[t] + 0.9 * (v[t + 1] + trace * (y - q[t + 1]))
            assert found[t] == pytest.approx(y)


@pytest.mark.long
def test_the_fit_is_the_policys_own_q_function_on_episodes_it_has_not_seen() -> None:
    """q(s, a) = sign(s) a, because the signs to come are random with mean 0; v = .7 sign(s)."""
    data = random_walks(400)
    q, v = cross_fitted_q(data, MODEL, OBSERVATIONS, 1.0, seed=3, iterations=6, updates=60)
    sign = data.obs["obs"][:, 0].numpy()
    action = data.action[:, 1].numpy()
    assert np.sqrt(np.mean((q - sign * action) ** 2)) < 0.25
    assert np.sqrt(np.mean((v - 0.7 * sign) ** 2)) < 0.2


def test_actions_are_encoded_leaf_by_leaf() -> None:
    actions = {
        name: torch.zeros(5, *spec.shape, dtype=getattr(torch, spec.dtype))
        for name, spec in MIXED.items()
    }
    found = encode_actions(actions, action_layout(MIXED))
    assert found.shape == (5, 4 + 3 + 1 + 2 * 2) and found.sum(-1).eq(3.0).all()
