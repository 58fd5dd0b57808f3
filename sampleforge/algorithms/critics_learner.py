"""What the learners of continuous control from a replay have in common: a policy, and critics.

Where policy and critics are MLPs of one vector (`has_passes`), their passes are made by hand: each
matrix product once, and no others. Each network is passed backward right after its forward pass,
while its layers' outputs are near. Of the actions of the policy, only the gradient by them is
needed, and only through the critics whose values count.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sampleforge.algorithms.captured import CapturedWork, Graphs, Outputs
from sampleforge.algorithms.config import CriticsConfig
from sampleforge.algorithms.flat_parameters import Adam, FlatParameters, Optimiser
from sampleforge.algorithms.learning import GradientLearner, LearnerPlace, Update, to_floats
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import Critics, unit_actions
from sampleforge.models.encoders import Vector, derivative
from sampleforge.models.forward import autocast
from sampleforge.models.mlp_passes import DensePasses, Layer, dense_passes, is_dense, is_trained
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.samples import Transitions, importance_weights, share_of


class PolicyPasses:
    """The passes of a policy."""

    def __init__(self, model: ActorCritic) -> None:
        self._trunk = dense_passes(model.actor)
        self._head = Layer(model.policy_weight, model.policy_bias)
        self._features: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [B, P] of the head for inputs ``x`` [B, F]."""
        self._features, head = self._trunk.forward(x), self._head
        # Of so few outputs, this order takes half the time.
        return torch.addmm(head.bias[:, None], head.weight, self._features.t()).t()

    def backward(self, by_outputs: Tensor) -> None:
        """Set the gradients of the weights, given those of the last outputs [B, P]."""
        assert self._features is not None
        self._head.set_gradients(by_outputs, self._features)
        self._trunk.backward(torch.mm(by_outputs, self._head.weight))


class CriticPasses:
    """The passes of one of several critics, that with the index ``number``."""

    def __init__(self, critics: Critics, number: int) -> None:
        *hidden, head = (_part(layer, number) for layer in critics.layers)
        self._hidden, self._head = DensePasses(hidden, critics.act), Layer(*head)
        self._features: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the values [B] of ``x`` [B, F + A], features beside actions."""
        self._features = self._hidden.forward(x)
        return torch.addmm(self._head.bias, self._features, self._head.transposed).squeeze(1)

    def backward(self, by_values: Tensor) -> None:
        """Set the gradients of the weights, given those of the last values [B]."""
        assert self._features is not None
        by_output = by_values.unsqueeze(1)
        self._head.set_gradients(by_output, self._features)
        self._hidden.backward(torch.mm(by_output, self._head.weight))

    def add_input_gradient(self, by_values: Tensor, result: Tensor) -> None:
        """Add to ``result`` [B, A] the gradient of the last inputs [B, F + A] by the actions, given
        those of the values [B]. On a CPU no product is made for a value whose gradient is 0; on
        another device the number of these is not waited for."""
        if by_values.device.type == "cpu":
            rows = by_values.nonzero().squeeze(1)
        else:
            rows = torch.arange(len(by_values), device=by_values.device)
        columns = slice(-result.shape[1], None)
        by_output = torch.mm(by_values.index_select(0, rows).unsqueeze(1), self._head.weight)
        result.index_add_(0, rows, self._hidden.input_gradient(by_output, rows, columns))


class CriticsPasses:
    """The passes of several critics."""

    def __init__(self, critics: Critics) -> None:
        self.each = [CriticPasses(critics, number) for number in range(critics.count)]

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return the values [N, B] of ``features`` [B, F] and ``actions`` [B, A]."""
        x = torch.cat((features, actions), 1)
        return torch.stack([critic.forward(x) for critic in self.each])

    def fit(
        self, features: Tensor, actions: Tensor, targets: Tensor, weights: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Set the gradients of `critic_loss`; return metrics and the errors [B]."""
        x, rows = torch.cat((features, actions), 1), len(targets)
        values, sizes, squares = [], [], []
        for critic in self.each:
            values.append(critic.forward(x))
            errors = values[-1] - targets
            by_values = (errors if weights is None else errors * weights) / rows
            critic.backward(by_values)
            sizes.append(errors.abs())
            squares.append(torch.dot(by_values, errors))
        size = torch.stack(sizes).mean(0)
        metrics = {
            "loss": 0.5 * torch.stack(squares).sum(),
            "q_mean": torch.stack(values).mean(),
            "td_error_mean": size.mean(),
        }
        return metrics, size


def has_passes(model: ActorCritic, critics: Critics) -> bool:
    """Return whether there are passes by hand of a policy and its critics.

    There are for MLP encoders of tanh, relu or elu layers, without LayerNorm and embeddings, in
    float32, all of whose parameters, but the standard deviation of a policy, are trained and
    flat."""
    encoder = critics.encoder
    if type(encoder) is not Vector or any(True for _ in encoder.parameters()):
        return False
    if critics.norms is not None or derivative(critics.act) is None or not is_dense(model.actor):
        return False
    return is_trained(critics) and is_trained(model, (model.log_std,))


def _part(layer: tuple[Tensor, Tensor], number: int) -> tuple[Tensor, Tensor]:
    """Return weight [out, in] and bias [out] of one critic, with their gradients."""
    weights, biases = layer
    weight, bias = weights.detach()[number], biases.detach()[number, 0]
    if weights.grad is not None and biases.grad is not None:
        weight.grad, bias.grad = weights.grad[number], biases.grad[number, 0]
    return weight, bias


Config = TypeVar("Config", bound=CriticsConfig)
HYPERPARAMETERS = ("learning_rate", "max_grad_norm", "target_rate")
"""Those that can change during the training. The discount is not among them, because the n-step
returns of stored experience depend on it."""


@dataclass(frozen=True)
class Drawing:
    """A sample from which gradients are computed."""

    batch: Transitions
    noise: Tensor
    """[2, B, A], standard normal: of the targets, and of the policy's loss."""
    weights: Tensor | None
    """[B], the importance weights; None: items are drawn uniformly."""
    share: Tensor
    """This learner's part of the whole batch, float64 []."""


class CriticsLearner(GradientLearner[ActorCritic, Config], Generic[Config]):
    """The policy (``model``), critics and target critics, each with Adam.

    See `GradientLearner`. The gradients of an update are all taken at the weights before it. The
    noise of an update follows from the place's ``noise_seed`` and ``version``. ``others``: further
    networks of the learner. A subclass says what the critics learn (`_targets`) and what the policy
    does (`_differentiate_actor`).
    """

    def __init__(
        self,
        model: ActorCritic,
        critics: Critics,
        config: Config,
        place: LearnerPlace,
        changeable: tuple[str, ...] = HYPERPARAMETERS,
        others: Mapping[str, nn.Module] | None = None,
    ) -> None:
        self.critics = critics
        self.target = copy.deepcopy(critics).requires_grad_(False)
        own = {"critics": critics, "target": self.target, **(others or {})}
        super().__init__(model, config, changeable, place, own)
        self._seed, self._share = place.noise_seed, place.share
        self._generator = torch.Generator(place.device)
        self._of_actor = self._add_optimiser("actor_optimiser", model, self._adam)
        self._of_critics = self._add_optimiser("critic_optimiser", critics, self._adam)
        self._averaged = flat_data(self.target, critics)
        self._passes: Any = None  # a subclass's, by hand
        self._graphed: dict[bool, CapturedWork] = {}

    def _adam(self, flat: FlatParameters) -> Optimiser:
        return Adam(flat, (0.9, 0.999), self._config.adam_eps)

    @property
    def _by_hand(self) -> bool:
        """Whether gradients are computed by hand: by a learner without others, of networks of which
        there are such passes."""
        alone = self.averaging.solo and self._precision == "fp32"
        return alone and has_passes(self.model, self.critics)

    def update(self, batch: ReplaySample, progress: float) -> Update:
        """Learn from one sample, or from this learner's part of it.

        ``progress`` (0 to 1) is the fraction of the training that is done; it drives the
        schedules. A step whose gradient is not finite is skipped and counted. The errors are the
        mean absolute TD errors of the critics; there are none if items are drawn uniformly."""
        for seen in batch.seen:
            self._count_observations(seen)
        self._check_frozen()
        self._follow_schedules(progress)
        drawing, acts = self._drawing(batch), self.version % self._config.actor_interval == 0
        if self._graphed:
            metrics = dict(self._graphed[acts](drawing))
            errors = metrics.pop("errors")
        else:
            metrics, errors = self._gradients(drawing, acts)
        scalars = to_floats(metrics)
        finite = all(math.isfinite(scalars[n]) for n in scalars if n.endswith("grad_norm"))
        taken = self._moved(acts)
        scalars |= {**self._step_unless(not finite, taken), "beta": batch.beta}
        if not finite:
            return Update(scalars, batch.trained)
        self._average_targets(acts)
        if drawing.weights is None:
            return Update(scalars, batch.trained)
        return Update(scalars, batch.trained, errors.cpu().numpy().astype(np.float32))

    def use_graphs(self, graphs: Graphs) -> None:
        """Compute the gradients of each sample by one of the device's ``graphs`` from now on. Only
        for a single learner."""
        assert self.averaging.solo
        self._passes = None  # by hand takes as long from a graph, and on a CPU it chooses rows

        def fixed() -> Hashable:
            rest = self.hyperparameters()
            del rest["learning_rate"]
            return tuple(rest.items())

        def work(acts: bool, drawing: Drawing) -> Outputs:
            metrics, errors = self._gradients(drawing, acts)
            return {**metrics, "errors": errors}

        for acts in (False, True):
            self._graphed[acts] = CapturedWork(partial(work, acts), graphs, fixed)

    def _drawing(self, sample: ReplaySample) -> Drawing:
        """Return what an update computes with."""
        items, config = sample.items, self._config
        assert isinstance(items, Transitions), "the config refuses a recurrent core"
        batch = items.to(self._device)
        weights: Tensor | None = None
        if config.priority_exponent:
            weights, share = importance_weights(
                batch.scaled_probability, sample.beta, batch.count, self._gather
            )
        else:
            share = share_of(batch.count, self._device, self._gather)
        return Drawing(batch, self._new_noise(len(batch.returns)), weights, share)

    def _moved(self, acts: bool) -> tuple[Optimiser, ...]:
        """Return the optimisers that take a step in an update."""
        return (self._of_critics, self._of_actor) if acts else (self._of_critics,)

    def _gradients(self, drawing: Drawing, acts: bool) -> tuple[dict[str, Tensor], Tensor]:
        """Compute the gradients of all losses, of the policy's if the update ``acts``: moves the
        policy as well. Return the metrics, and the errors [B]."""
        batch = drawing.batch
        targets = self._targets(batch, drawing.noise[0])
        with autocast(self._device, self._precision):
            features = self.critics.features(self._normalised(batch.obs))
            metrics: dict[str, Tensor] = {}
            if acts:
                metrics |= self._differentiate_actor(drawing, features)
                metrics["grad_norm"] = self._clip_gradient(self._of_actor)
            values = self.critics(features, unit_actions(self.critics.layout, batch.actions))
        values = values.float()
        loss = critic_loss(values, targets, drawing.weights)
        errors = (values.detach() - targets).abs().mean(0)
        found = {
            "loss": loss.detach(),
            "q_mean": values.detach().mean(),
            "td_error_mean": errors.mean(),
        }
        metrics |= self.averaging.backward(self._of_critics.flat, loss, found, drawing.share)
        metrics["critic_grad_norm"] = self._clip_gradient(self._of_critics)
        return metrics, errors

    def _targets(self, batch: Transitions, noise: Tensor) -> Tensor:
        """Return the targets [B] of the critics, without gradient."""
        raise NotImplementedError

    def _differentiate_actor(self, drawing: Drawing, features: Tensor) -> dict[str, Tensor]:
        """Compute the gradients of the policy's loss, given the critics' ``features`` [B, F] of the
        observations; return the metrics."""
        raise NotImplementedError

    def _parameters(self, model: ActorCritic, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the parameters [B, 2A] of a policy for observation leaves [B, ...]."""
        some = next(iter(obs.values()))
        state = some.new_empty(len(some), 0, dtype=torch.float32)
        return model.policy_step(obs, state, some.new_zeros(len(some)).bool())[0]

    def _normalised(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        normaliser = self.model.normaliser
        return obs if normaliser is None else dict(normaliser(obs))

    def _new_noise(self, rows: int) -> Tensor:
        """Return the noise of an update: this learner's part of what one learner would draw for the
        whole batch."""
        self._generator.manual_seed(self._seed + self.version)
        shape = 2, self._share.learners, rows, self.critics.layout.num_boxes
        drawn = torch.empty(shape, device=self._device).normal_(generator=self._generator)
        return drawn[:, self._share.learner]

    def _average_targets(self, acts: bool) -> None:
        """Move the target critics towards the critics, after an update that moved the policy or
        not."""
        self._move_towards(self._averaged, self._of_critics)

    @torch.no_grad()
    def _move_towards(self, data: list[Tensor], source: Optimiser) -> None:
        """Move the ``data`` of a target network by ``target_rate`` of the way to its source."""
        own = [chunk.data for chunk in source.flat.chunks]
        torch._foreach_lerp_(data, own, self._config.target_rate)

    def reseed(self, seed: int) -> None:
        """Seed the noise of the updates anew."""
        self._seed = seed


def new_critics(config: Any, place: LearnerPlace) -> Critics:
    """Return the critics of a run with their initial weights, from torch's global generator."""
    spec = place.spec
    assert spec is not None
    return Critics(config.model, spec.observations, spec.actions, config.num_critics)


def flat_data(target: nn.Module, network: nn.Module) -> list[Tensor]:
    """Return the parameters of a ``target`` network that are trained in ``network``, as flat
    tensors, which they are views of from now on."""
    pairs = zip(target.parameters(), network.parameters(), strict=True)
    flat = FlatParameters(own for own, source in pairs if source.requires_grad)
    return [chunk.data for chunk in flat.chunks]


def critic_loss(values: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum over critics of the mean of (Q - target) ** 2 / 2, [].

    ``values`` [N, B], ``targets`` [B]; ``weights`` [B]: importance weights (None: all are 1)."""
    squares = 0.5 * (values - targets).square()
    return (squares if weights is None else squares * weights).mean(1).sum()
