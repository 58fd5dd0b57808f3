"""What the learners of continuous control from a replay have in common: a policy, and critics."""

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
from sampleforge.algorithms.config import CriticsConfig, TargetsConfig
from sampleforge.algorithms.critics_passes import has_passes
from sampleforge.algorithms.flat_parameters import Adam, FlatParameters, Optimiser, kept_apart
from sampleforge.algorithms.learning import GradientLearner, LearnerPlace, Update, to_floats
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import Critics, unit_actions
from sampleforge.models.forward import autocast, compiled
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.samples import Transitions, importance_weights, share_of, zeros

Config = TypeVar("Config", bound=CriticsConfig)
HYPERPARAMETERS = ("learning_rate", "max_grad_norm")
"""Those that can change during the training. The discount is not among them, because the n-step
returns of stored experience depend on it."""
TARGET_HYPERPARAMETERS = (*HYPERPARAMETERS, "target_rate")
"""The same of learners with target networks."""


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
    """The policy (``model``) and critics, each with Adam, and target critics; if the config is no
    `TargetsConfig`, ``target`` is the critics themselves.

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
        changeable: tuple[str, ...],
        others: Mapping[str, nn.Module] | None = None,
    ) -> None:
        self.critics = critics
        own = {"critics": critics, **(others or {})}
        self.target = critics
        has_target = isinstance(config, TargetsConfig)
        if has_target:
            self.target = own["target"] = copy.deepcopy(critics).requires_grad_(False)
        super().__init__(model, config, changeable, place, own)
        self._seed, self._share, self._spec = place.noise_seed, place.share, place.spec
        self._generator = torch.Generator(place.device)
        self._of_actor = self._add_optimiser("actor_optimiser", model, self._adam)
        self._of_critics = self._add_optimiser("critic_optimiser", critics, self._adam)
        self._averaged = flat_data(self.target, critics) if has_target else []
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
        self._follow(acts)
        if drawing.weights is None:
            return Update(scalars, batch.trained)
        return Update(scalars, batch.trained, errors.cpu().numpy().astype(np.float32))

    def compile(self) -> None:
        """Compile the passes by hand, with all that is between them, for samples of the usual size;
        smaller ones, of which items were overwritten, are computed as before."""
        assert self._passes is not None, "the config refuses --compile for other networks"
        spec, rows = self._spec, self._config.batch_size
        assert spec is not None and rows is not None, "resolve_defaults comes first"
        plain = self._passes.gradients
        whole = compiled(plain, self._device)

        def gradients(drawing: Drawing, *rest: Any) -> Any:
            return (whole if len(drawing.batch.returns) == rows else plain)(drawing, *rest)

        self._passes.gradients = gradients
        sample = ReplaySample(zeros(spec, rows), 1.0, trained=0)
        for acts in {True, self._config.actor_interval == 1}:
            self._gradients(self._drawing(sample), acts)

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
        with autocast(self._device, self._precision):
            features = self.critics.features(self._normalised(drawing.batch.obs))
            metrics: dict[str, Tensor] = {}
            if acts:
                metrics |= self._differentiate_actor(drawing, features)
                metrics["grad_norm"] = self._clip_gradient(self._of_actor)
            actions = unit_actions(self.critics.layout, drawing.batch.actions)
            values, targets = self._values(drawing, features, actions)
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

    def _values(self, drawing: Drawing, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values [N, B] of ``features`` [B, F] and ``actions`` [B, A], and their targets
        [B], without gradient."""
        targets = self._targets(drawing.batch, drawing.noise[0])
        return self.critics(features, actions).float(), targets

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

    def _follow(self, acts: bool) -> None:
        """Have what follows the critics follow them, after an update that moved the policy or not:
        the target critics move towards them."""
        self._move_towards(self._averaged, self._of_critics)

    @torch.no_grad()
    def _move_towards(self, data: list[Tensor], source: Optimiser) -> None:
        """Move the ``data`` of a target network by ``target_rate`` of the way to its source."""
        assert isinstance(self._config, TargetsConfig)
        own = [chunk.data for chunk in source.flat.chunks]
        torch._foreach_lerp_(data, own, self._config.target_rate)

    def reseed(self, seed: int) -> None:
        """Seed the noise of the updates anew."""
        self._seed = seed


def new_critics(config: Any, place: LearnerPlace, *, renormed: bool = False) -> Critics:
    """Return the critics of a run with their initial weights, from torch's global generator."""
    spec = place.spec
    assert spec is not None
    sizes = spec.observations, spec.actions, config.num_critics
    return Critics(config.model, *sizes, renormed=renormed)


def flat_data(target: nn.Module, network: nn.Module) -> list[Tensor]:
    """Return the parameters of a ``target`` network that are trained in ``network``, as flat
    tensors, which they are views of from now on, laid out as those of `flatten`."""
    pairs = zip(target.parameters(), network.parameters(), strict=True)
    trained = [own for own, source in pairs if source.requires_grad]
    flat = FlatParameters(trained, kept_apart(target))
    return [chunk.data for chunk in flat.chunks]


def critic_loss(values: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum over critics of the mean of (Q - target) ** 2 / 2, [].

    ``values`` [N, B], ``targets`` [B]; ``weights`` [B]: importance weights (None: all are 1)."""
    squares = 0.5 * (values - targets).square()
    return (squares if weights is None else squares * weights).mean(1).sum()
