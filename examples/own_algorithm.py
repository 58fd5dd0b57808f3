"""Train with an algorithm of your own, on one of the topologies that are there: advantage
actor-critic (A2C, Mnih et al. 2016, arXiv 1602.01783) on slots.

    python examples/own_algorithm.py

From the command line the same training is

    cd examples
    python ../train.py own_algorithm:A2cConfig --env CartPole-v1 --train-for-seconds 10

An algorithm is a class with its settings, which become flags, a loss, and a record of what else it
has: here the network, the acting and the columns of PPO. All the rest works with it as with any
other: checkpoints and resuming, evaluation, export, several learners, populations. A package that
brings an algorithm names its config class in the entry-point group ``sampleforge.algorithms``; then
it is trained by that name.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

import sampleforge as sf
from sampleforge.algorithms.experience import Experience
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.losses import Loss
from sampleforge.algorithms.ppo.algorithm import PPO
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.ops.masked import masked_mean, valid_total
from sampleforge.ops.running_stats import Gather
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import SlotsRunConfig
from sampleforge.topologies.registry import SLOTS, Pairing


@dataclass(frozen=True)
class A2cConfig(SlotsRunConfig):
    """Advantage actor-critic: one gradient step for each batch."""

    algo: ClassVar[str] = "own_algorithm:A2cConfig"
    pairing: ClassVar[str] = "own_algorithm:A2C"
    entropy_coeff: float = 0.01
    """Weight of the policy's entropy, which keeps it from becoming certain too early."""


class A2cLoss(Loss):
    """-A log pi(a) - c H(pi) + (V - R)^2 / 2, with the returns R and advantages A = R - V that
    `prepare` computes once per batch."""

    def __init__(self, config: A2cConfig) -> None:
        self._config = config

    @torch.no_grad()
    def prepare(self, model: ActorCritic, experience: Experience) -> Experience:
        """Return the experience with advantages and returns, and without the last observation."""
        last = {name: leaf[-1] for name, leaf in experience.obs.items()}
        after = model.step(last, experience.state, experience.is_first[-1]).values
        advantages = experience.advantages_at_sampling(after, self._config.gamma, 1.0)
        returns = advantages + experience.value
        return experience.without_last_observation(advantages=advantages, targets=returns)

    def __call__(
        self, model: ActorCritic, experience: Experience, gather: Gather
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch, or of this learner's part of one, and its metrics."""
        advantages, counts = experience.advantages, experience.counts
        assert advantages is not None and experience.targets is not None, "`prepare` comes first"
        output = model(experience.obs, experience.state, experience.is_first)
        distribution = model.distribution(output.parameters, experience.obs)
        scale = torch.where(model.value_scale > 0, model.value_scale, 1.0)  # of the returns
        total = valid_total(counts)
        policy_loss = -masked_mean(
            distribution.log_prob(experience.actions) * advantages / scale, counts, total
        )
        errors = (output.values - experience.targets) / scale
        value_loss = 0.5 * masked_mean(errors.square(), counts, total)
        entropy = masked_mean(distribution.entropy(), counts, total)
        loss = policy_loss + value_loss - self._config.entropy_coeff * entropy
        return loss, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
        }


def new_learner(config: A2cConfig, network: ActorCritic, place: LearnerPlace) -> RolloutLearner:
    """Return the learner of batches of rollouts, with this loss."""
    return RolloutLearner(network, A2cLoss(config), config, place)


def never(config: A2cConfig) -> bool:
    """Return False: a minibatch may have any steps."""
    return False


def resolve_defaults(config: A2cConfig, spec: EnvSpec) -> A2cConfig:
    """Return ``config`` with the settings that were not given."""
    usual: dict[str, Any] = {
        "rollout": 16,
        "num_envs_per_worker": 32,
        "num_workers": 1,
        "num_epochs": 1,
        "learning_rate": 2e-3,
        "async_rl": False,
        "lr_schedule": "constant",
    }
    unset = {name: value for name, value in usual.items() if getattr(config, name) is None}
    return dataclasses.replace(config, **unset)


def reason(config: A2cConfig, plan: Any, spec: EnvSpec) -> str:
    """Return the line that a run begins with."""
    return f"A2C: one step for each batch, learning rate {config.learning_rate:g}"


A2C = Pairing(
    dataclasses.replace(
        PPO, new_learner=new_learner, changeable=("learning_rate",), whole_rollouts=never
    ),
    SLOTS,
    resolve_defaults,
    reason,
)


def main() -> None:
    """Train for some seconds and print the returns at the end."""
    from own_algorithm import A2cConfig as ByName  # as workers and run folders find it

    config = ByName(
        env="CartPole-v1",
        train_for_env_steps=150_000,
        lr_schedule="linear",
        seed=1,
        quiet=True,
    )
    result = sf.train(config)
    print(f"mean return of the last 100 episodes: {result.summary['return_mean']:.1f}")


if __name__ == "__main__":
    main()
