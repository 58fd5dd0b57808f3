"""The losses of soft actor-critic, their gradients and the averaging of targets are those of the
paper's sums, written out in float64 with torch's own distributions."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from sampleforge.algorithms.sac.learner import SacLearner, draw
from sampleforge.models.critics import Critics
from sampleforge.models.encoders import activation
from sampleforge.replay.samples import Transitions
from tests.support.sac import assert_two_take_the_steps_of_one, sac_config, sac_learner, sample

SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "priorities": {"priority_alpha": 0.6},
    "three critics, hot": {"num_critics": 3, "initial_temperature": 5.0},
    "elu": {"model": {"hidden_sizes": (8, 8), "activation": "elu"}},
    "by autograd": {},
    "layer norm": {"model": {"hidden_sizes": (8, 8), "layer_norm": True}},
}


def setting(name: str) -> Any:
    more = dict(SETTINGS[name])
    if "model" in more:
        from sampleforge.models.config import ModelConfig

        more["model"] = ModelConfig(**more["model"])
    return sac_config(**more)


class Literal:
    """The losses of a learner, as sums over the rows of a batch."""

    def __init__(self, learner: SacLearner, noise: Tensor) -> None:
        def doubled(network: Any) -> Any:
            return copy.deepcopy(network).double()

        self.actor, self.critics = doubled(learner.model), doubled(learner.critics)
        self.target = doubled(learner.target)
        self.temperature = doubled(learner.temperature)
        self.noise = noise.double()
        self.config = learner._config
        self.elu = learner.critics.act is activation("elu", "relu")

    def activation(self, x: Tensor) -> Tensor:
        return F.elu(x) if self.elu else x.clamp(min=0)

    def policy(self, obs: dict[str, Tensor]) -> Any:
        x, encoder = obs["obs"].double(), self.actor.actor.encoder
        for i, (weight, bias) in enumerate(encoder.layers):
            x = x @ weight.T + bias
            x = self.activation(x if encoder.norms is None else encoder.norms[i](x))
        parameters = x @ self.actor.policy_weight.T + self.actor.policy_bias
        mean, log_std = parameters.chunk(2, -1)
        return mean, log_std.exp(), self.squashed(mean, log_std.exp())

    def squashed(self, mean: Tensor, std: Tensor) -> Any:
        normal = TransformedDistribution(Normal(mean, std), [TanhTransform(cache_size=1)])
        return Independent(normal, 1)

    def value(self, critics: Critics, number: int, obs: Tensor, action: Tensor) -> Tensor:
        """Q of one critic for one row."""
        x = torch.cat((obs.double(), action))
        last = len(critics.layers) - 1
        for i, (weight, bias) in enumerate(critics.layers):
            x = weight[number] @ x + bias[number, 0]
            if i < last and critics.norms is not None:
                own = critics.norms[i]
                x = F.layer_norm(x, x.shape) * own.weight[number, 0] + own.bias[number, 0]
            x = self.activation(x) if i < last else x
        return x[0]

    def losses(self, batch: Transitions, beta: float) -> tuple[Tensor, Tensor, Tensor]:
        """The losses of the critics, the policy and the temperature."""
        rows, count = len(batch.returns), self.critics.count
        alpha, config = self.temperature.log.exp(), self.config
        weights = torch.ones(rows, dtype=torch.float64)
        if config.priority_exponent:
            weights = batch.scaled_probability**-beta
            weights = weights / weights.max()
        low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 5.0])
        unit = (2 * (batch.actions["action"] - low) / (high - low) - 1).double()
        mean, std, policy = self.policy(batch.next_obs)
        after = torch.tanh(mean + std * self.noise[0])
        log_after = policy.log_prob(after)
        mean, std, policy = self.policy(batch.obs)
        drawn = torch.tanh(mean + std * self.noise[1])
        log_drawn = policy.log_prob(drawn)
        critic = actor = heat = torch.zeros((), dtype=torch.float64)
        for b in range(rows):
            now, later = batch.obs["obs"][b], batch.next_obs["obs"][b]
            least = torch.stack(
                [self.value(self.target, i, later, after[b]) for i in range(count)]
            ).min()
            target = batch.returns[b] + batch.discount[b] * (least - alpha * log_after[b])
            for i in range(count):
                error = self.value(self.critics, i, now, unit[b]) - target.detach()
                critic = critic + weights[b] * error**2 / 2 / rows
            own = torch.stack([self.value(self.critics, i, now, drawn[b]) for i in range(count)])
            actor = actor + (alpha.detach() * log_drawn[b] - own.min()) / rows
            heat = (
                heat - self.temperature.log * (log_drawn[b].detach() + config.target_entropy) / rows
            )
        return critic, actor, heat


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_and_targets_of_an_update_are_those_of_the_papers_sums(name: str) -> None:
    config = setting(name)
    learner, batch = sac_learner(config), sample()
    by_hand = name not in ("by autograd", "layer norm")
    learner._passes = learner._passes if by_hand else None
    assert (learner._passes is not None) == by_hand
    for _ in range(3):
        learner.update(sample(seed=9), 0.0)  # so that the target critics are others
    literal = Literal(learner, learner._new_noise(16))
    assert isinstance(batch.items, Transitions)
    losses = literal.losses(batch.items, batch.beta)
    before = [p.detach().clone() for p in learner.target.parameters()]
    metrics = learner.update(batch, 0.0).metrics
    close(torch.tensor(metrics["loss"]), losses[0].detach())
    close(torch.tensor(metrics["actor_loss"]), losses[1].detach())
    networks = literal.critics, literal.actor, literal.temperature
    ours = learner.critics, learner.model, learner.temperature
    for loss, network, own in zip(losses, networks, ours, strict=True):
        wanted = torch.autograd.grad(loss, list(network.parameters()))
        for gradient, parameter in zip(wanted, own.parameters(), strict=True):
            assert parameter.grad is not None
            close(parameter.grad, gradient)
    rate = config.target_rate
    new = learner.critics.parameters(), learner.target.parameters()
    for old, critic, target in zip(before, *new, strict=True):
        close(target, (1 - rate) * old + rate * critic)


def test_equal_critics_share_the_gradient_of_the_policy_as_by_autograd() -> None:
    """No product is made for a critic whose value is not the least: here some rows need both
    critics, some the first alone and some the second."""
    gradients = []
    for by_hand in (True, False):
        learner = sac_learner(sac_config())
        with torch.no_grad():
            for parameter in learner.critics.parameters():
                parameter[1] = parameter[0]
            heads = learner.critics.layers[-1][0]
            heads[1, 0, 3] += 0.5  # a row that sees neither unit has equal values
            heads[1, 0, 6] -= 0.5
        learner._passes = learner._passes if by_hand else None
        learner.update(sample(64), 0.0)
        gradients.append([p.grad.clone() for p in learner.model.parameters() if p.grad is not None])
    for own, wanted in zip(*gradients, strict=True):
        close(own, wanted)


def test_errors_are_the_mean_absolute_errors_of_the_critics() -> None:
    learner, batch = sac_learner(setting("priorities")), sample()
    literal = Literal(learner, learner._new_noise(16))
    items = batch.items
    assert isinstance(items, Transitions)
    mean, std, policy = literal.policy(items.next_obs)
    after = torch.tanh(mean + std * literal.noise[0])
    errors = learner.update(batch, 0.0).errors
    assert errors is not None
    for b in range(16):
        later = items.next_obs["obs"][b]
        least = min(literal.value(literal.target, i, later, after[b]) for i in range(2))
        entropy = literal.temperature.log.exp() * policy.log_prob(after)[b]
        target = items.returns[b] + items.discount[b] * (least - entropy)
        low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 5.0])
        unit = (2 * (items.actions["action"][b] - low) / (high - low) - 1).double()
        values = [literal.value(literal.critics, i, items.obs["obs"][b], unit) for i in range(2)]
        wanted = sum(abs(float(value.detach() - target.detach())) for value in values) / 2
        assert errors[b] == pytest.approx(wanted, rel=1e-5)


def test_there_are_no_errors_of_items_that_are_drawn_uniformly() -> None:
    assert sac_learner(sac_config()).update(sample(), 0.0).errors is None


@pytest.mark.parametrize("spread", [-8.0, -1.0, 0.5, 3.0])
def test_the_density_of_drawn_actions_is_that_of_a_squashed_gaussian(spread: float) -> None:
    torch.manual_seed(0)
    mean, log_std = torch.randn(2000, 3), torch.full((2000, 3), spread)
    noise = torch.randn(2000, 3)
    ours = draw(torch.cat((mean, log_std), -1), noise)
    u = mean.double() + log_std.double().exp() * noise
    log_density = Normal(mean.double(), log_std.double().exp()).log_prob(u)
    slope = 2 * (torch.log(torch.tensor(2.0)) - u - torch.nn.functional.softplus(-2 * u))
    torch.testing.assert_close(
        ours.log_prob.double(), (log_density - slope).sum(-1), rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(ours.actions.double(), u.tanh(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["as it is", "priorities"])
def test_several_learners_take_the_steps_of_one_with_the_whole_batch(name: str) -> None:
    assert_two_take_the_steps_of_one(partial(sac_learner, setting(name)))
