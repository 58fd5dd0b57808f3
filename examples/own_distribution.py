"""Train with an action distribution of your own: a beta distribution, whose samples stay within the
bounds of a Box (Chou et al. 2017, "Improving stochastic policy gradients in continuous control with
deep reinforcement learning using the beta distribution").

    python examples/own_distribution.py

From the command line the same training is

    cd examples
    python ../train.py appo --env Pendulum-v1 --model.head own_distribution:BetaHead

A policy head is between the features of the network and the distribution of the actions. Layers of
your own are another ``new_layers``; here they are the usual linear layer.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

import sampleforge as sf
from sampleforge.models.policy_head import PolicyHead
from sampleforge.ops.distributions import ActionDistribution, ActionLayout, bounds_of


class BetaHead(PolicyHead):
    """Two numbers for each element of one Box action: alpha and beta, both above 1."""

    def distribution(self, parameters: Tensor, mask: Tensor | None) -> ActionDistribution:
        return Beta(self.layout, parameters)


class Beta(ActionDistribution):
    """Independent beta distributions of the elements, scaled to the bounds of the Box."""

    def __init__(self, layout: ActionLayout, parameters: Tensor) -> None:
        (self.leaf,) = layout.leaves  # one Box
        self.low, high = (bound.float() for bound in bounds_of(layout, parameters.device))
        self.range = high - self.low
        self.alpha, self.beta = (1.0 + F.softplus(parameters.float())).chunk(2, -1)
        self.of_unit = torch.distributions.Beta(self.alpha, self.beta, validate_args=False)

    def sample(
        self, generator: torch.Generator | None = None, noise: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return a sample: x / (x + y) of gamma distributed x and y is beta distributed."""
        x, y = (torch._standard_gamma(each.detach(), generator) for each in (self.alpha, self.beta))
        return self._action(x / (x + y))

    def mode(self) -> dict[str, Tensor]:
        """Return the most likely action."""
        return self._action((self.alpha - 1.0) / (self.alpha + self.beta - 2.0))

    def log_prob(self, actions: Mapping[str, Tensor]) -> Tensor:
        """Return the log density of actions, summed over the elements."""
        x = (actions[self.leaf.name].flatten(-max(1, len(self.leaf.shape))) - self.low) / self.range
        density: Tensor = self.of_unit.log_prob(x.clamp(1e-6, 1.0 - 1e-6))  # type: ignore[no-untyped-call]
        return (density - self.range.log()).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy, summed over the elements."""
        entropy: Tensor = self.of_unit.entropy()  # type: ignore[no-untyped-call]
        return (entropy + self.range.log()).sum(-1)

    def _action(self, x: Tensor) -> dict[str, Tensor]:
        """Return the action for numbers from 0 to 1, [..., n]."""
        action = self.low + self.range * x
        return {self.leaf.name: action.reshape(*x.shape[:-1], *self.leaf.shape).to(self.leaf.dtype)}


def main() -> None:
    config = sf.AppoConfig(
        env="Pendulum-v1",
        model=sf.ModelConfig(head="own_distribution:BetaHead"),
        gamma=0.9,
        learning_rate=2e-3,
        train_for_env_steps=40_000,
        seed=1,
    )
    result = sf.train(config)
    print(f"mean return of the last 100 episodes: {result.summary['return_mean']:.1f}")


if __name__ == "__main__":  # workers are processes that import this file
    main()
