"""Train with an extra term in the loss: the network also predicts the reward of each step from its
features, so that these also hold what no gradient of the policy asks for (as the auxiliary tasks of
Jaderberg et al. 2017, "Reinforcement learning with unsupervised auxiliary tasks").

    python examples/own_loss.py

From the command line the same training is

    cd examples
    python ../train.py own_loss:PredictingConfig --env CartPole-v1 --prediction-coeff 0.1

It is PPO with another loss and another network: what differs is below, and all the rest is PPO's.
The weight of the term follows a schedule of its own (``--anneal``), as any hyperparameter can.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import sampleforge as sf
from sampleforge.algorithms.experience import Experience
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.losses import Loss, SumOfLosses
from sampleforge.algorithms.ppo.algorithm import PPO
from sampleforge.algorithms.ppo.loss import PpoLoss
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.ops.masked import masked_mean, valid_total
from sampleforge.ops.running_stats import Gather
from sampleforge.spec import EnvSpec
from sampleforge.topologies.pairings.ppo_defaults import APPO


@dataclass(frozen=True)
class PredictingConfig(sf.AppoConfig):
    """PPO that also predicts rewards."""

    algo: ClassVar[str] = "own_loss:PredictingConfig"
    pairing: ClassVar[str] = "own_loss:PREDICTING"
    prediction_coeff: float = 0.5
    """Weight of the squared error of the predicted reward."""


class PredictingNetwork(ActorCritic):
    """The network of PPO, with a further head."""

    def __init__(self, config: PredictingConfig, spec: EnvSpec) -> None:
        super().__init__(config.model, spec.observations, spec.actions)
        self.predict = nn.Linear(self.actor.out_features, 1)


class RewardPrediction(Loss):
    """c (r^ - r)^2 / s^2, with the scale s of the returns, as that of PPO's value loss."""

    def __init__(self, config: PredictingConfig) -> None:
        self._coeff = config.prediction_coeff

    def hyperparameters(self) -> dict[str, Any]:
        return {"prediction_coeff": self._coeff}  # for --anneal, populations and callbacks

    def change(self, new: Mapping[str, Any]) -> None:
        self._coeff = new.get("prediction_coeff", self._coeff)

    def __call__(
        self, model: PredictingNetwork, experience: Experience, gather: Gather
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the term of a minibatch, and its metrics."""
        steps = len(experience.reward)
        obs = {name: leaf[:steps] for name, leaf in experience.obs.items()}
        obs = obs if model.normaliser is None else model.normaliser(obs)
        features, _ = model.actor(obs, experience.state, experience.is_first[:steps])
        error = (model.predict(features).squeeze(-1) - experience.reward).square()
        mean = masked_mean(error, experience.counts, valid_total(experience.counts))
        scale = torch.where(model.value_scale > 0, model.value_scale, 1.0)
        return self._coeff * mean / scale.square(), {"prediction_error": mean}


def new_learner(config: Any, network: ActorCritic, place: LearnerPlace) -> RolloutLearner:
    """Return PPO's learner with the sum of both losses."""
    ppo = PpoLoss(config, config.gamma, normalises_returns=config.normalise_returns)
    return RolloutLearner(network, SumOfLosses(ppo, RewardPrediction(config)), config, place)


def new_network(config: Any, spec: EnvSpec) -> ActorCritic:
    """Return a new network."""
    return PredictingNetwork(config, spec)


PREDICTING = dataclasses.replace(
    APPO,
    algorithm=dataclasses.replace(
        PPO,
        new_network=new_network,
        new_learner=new_learner,
        changeable=(*PPO.changeable, "prediction_coeff"),
    ),
)


def fading(progress: float) -> float:
    """Return the weight of the term at a progress (0 to 1) of the training: it is to help at the
    beginning."""
    return 0.5 * (1.0 - progress) ** 2


def main() -> None:
    """Train for some seconds and print how well the rewards are predicted."""
    from own_loss import PredictingConfig as ByName  # as workers and run folders find it

    config = ByName(
        env="Pendulum-v1",
        gamma=0.9,
        learning_rate=2e-3,
        train_for_env_steps=40_000,
        anneal={"prediction_coeff": "own_loss:fading"},
        seed=1,
    )
    result = sf.train(config)
    lines = (Path(result.run_dir) / "metrics.jsonl").read_text().splitlines()
    errors = [json.loads(line)["prediction_error"] for line in lines if "prediction_error" in line]
    print(f"squared error of the predicted reward: {errors[0]:.2f} at first, {errors[-1]:.2f} last")
    print(f"mean return of the last 100 episodes: {result.summary['return_mean']:.1f}")


if __name__ == "__main__":
    main()
