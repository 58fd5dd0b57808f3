"""The losses with gradients by hand teach what `PpoLoss` teaches by autograd, minibatch by
minibatch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.ppo.loss import PpoLoss
from sampleforge.algorithms.rollout_learner import RolloutLearner
from tests.support.graphs import rollouts
from tests.support.learners import SMALL, config, model_of
from tests.support.literal_ppo import LiteralLoss

MODELS: dict[str, tuple[bool, dict[str, Any]]] = {
    # name: whether the passes are by hand, the settings of the run
    "shared": (True, {"model": dataclasses.replace(SMALL, separate_critic=False)}),
    "separate critic, relu": (
        True,
        {"model": dataclasses.replace(SMALL, separate_critic=True, activation="relu")},
    ),
    "masked, elu": (
        True,
        {
            "env": "tests.support.envs:MaskedEnv",
            "model": dataclasses.replace(SMALL, activation="elu"),
            "exploration": "symmetric_kl",
        },
    ),
    "mixed actions": (False, {"env": "tests.support.envs:MixedActionEnv", "kl_coeff": 0.1}),
    "squashed, state-dependent std": (
        True,
        {
            "env": "Pendulum-v1",
            "model": dataclasses.replace(SMALL, squash_actions=True, action_std="state"),
        },
    ),
    "silu": (False, {"model": dataclasses.replace(SMALL, activation="silu")}),
}


@pytest.mark.parametrize(
    ("advantage", "normalise_returns"), [("gae", True), ("gae", False), ("vtrace", True)]
)
@pytest.mark.parametrize("name", MODELS)
def test_updates_by_hand_are_those_by_autograd(
    name: str, advantage: Any, normalise_returns: bool
) -> None:
    """Weights, optimiser and metrics after several updates of several epochs, where not all steps
    count, and the last minibatch of an epoch is smaller."""
    by_hand, settings = MODELS[name]
    chosen = config(
        advantage=advantage,
        async_rl=False,
        minibatch_size=16,
        num_epochs=2,
        exploration_coeff=0.01,
        normalise_returns=normalise_returns,
        **settings,
    )
    batches = list(rollouts(chosen, 4))
    chosen = dataclasses.replace(chosen, minibatch_size=24)  # of 64 env steps, 8 of a row
    found = []
    for loss in (PpoLoss, LiteralLoss):
        learner = RolloutLearner(
            model_of(chosen),
            loss(chosen, chosen.gamma, normalises_returns=normalise_returns),
            chosen,
            LearnerPlace(torch.device("cpu"), seed=1),
        )
        metrics = []
        for batch in batches:
            LiteralLoss.kls.clear()
            metrics.append(learner.update(batch, 0.0).metrics)
            if loss is LiteralLoss:
                metrics[-1]["approx_kl_max"] = float(max(LiteralLoss.kls))
        found.append((learner.state()[0], metrics))
        if loss is PpoLoss:
            assert (learner._passes is not None) == by_hand
    (ours, said), (plain, expected) = found
    assert not torch.equal(plain["model/policy_weight"], model_of(chosen).policy_weight)
    for tensor in plain:
        torch.testing.assert_close(
            ours[tensor], plain[tensor], atol=2e-5, rtol=1e-4, msg=f"{tensor}: {{}}".format
        )
    for one, other in zip(said, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
