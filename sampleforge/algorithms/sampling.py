"""Acting by samples from the distribution of an actor-critic: in torch, and for few rows on
arrays, with the forward pass, sampling and log-probabilities in numpy.

The random numbers in numpy are those that `ActionDistribution` would draw, from the same generator,
so that the actions are the same too, but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.algorithms.acting import Acting, ActingPlace, Chooser
from sampleforge.algorithms.correlated_noise import CorrelatedNoise, correlated_noise
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.numpy_forward import NumpyForward, has_numpy_forward
from sampleforge.ops.distributions import MAX_LOG_STD, MIN_LOG_STD, ActionDistribution
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import ACTION_MASK

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
_LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)


class DirectActing:
    """Samples actions as `Stochastic` does, from arrays to arrays, with the weights of ``model``.

    Call `follow` whenever these have changed. What `act` returns is valid until its next call.
    """

    def __init__(
        self, model: ActorCritic, generator: torch.Generator, noise: CorrelatedNoise | None
    ) -> None:
        """``model``: one that `has_numpy_forward`. ``noise``: of the boxes, if it is not
        independent."""
        self._pass = NumpyForward(model)
        self._sampler = _sampler(model, generator)
        self._noise = noise

    def follow(self) -> None:
        """Take over the weights of the model."""
        self._pass.follow()
        self._sampler.follow()

    def act(
        self, obs: Mapping[str, Array], is_first: Array, rows: torch.Tensor
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return actions, leaf -> [B, ...], and the columns of the slot, name -> [B]; arguments as
        in `Acting.act_on_arrays`."""
        noise = None if self._noise is None else self._draw(self._noise, is_first, rows)
        with np.errstate(all="ignore"):  # outputs that are not finite are noticed elsewhere
            head, values = self._pass(obs)
            actions, log_prob = self._sampler(head, obs, noise)
        return actions, {"log_prob": log_prob, "value": values}

    @torch.inference_mode()
    def _draw(self, noise: CorrelatedNoise, is_first: Array, rows: torch.Tensor) -> torch.Tensor:
        return noise.draw(rows, torch.from_numpy(is_first))


def _sampler(model: ActorCritic, generator: torch.Generator) -> AnyActions:
    """Return the sampler for the model's actions."""
    layout = model.layout
    if layout.sizes and not layout.low and layout.leaves[0].shape == () and len(layout.sizes) == 1:
        return OneChoice(model, generator)
    exact = all(leaf.dtype in (torch.float32, torch.float64) for leaf in layout.leaves)
    if layout.low and not layout.sizes and not model.squash and exact:
        return Boxes(model, generator)
    return AnyActions(model, generator)


class AnyActions:
    """Draws actions of any kind from the model's own distribution, in torch."""

    def __init__(self, model: ActorCritic, generator: torch.Generator) -> None:
        self._model = model
        self._generator = generator

    def follow(self) -> None:
        """Take over the weights of the model, which have changed."""

    @torch.inference_mode()
    def __call__(
        self, head: Floats, obs: Mapping[str, Array], noise: torch.Tensor | None
    ) -> tuple[dict[str, Array], Array]:
        """Return actions, leaf -> [B, ...], and their log-probabilities [B], for outputs [H, B] of
        the policy head and observation leaves [B, ...]. ``noise`` [B, number of box elements]: that
        of the boxes, if it is not independent."""
        parameters = torch.from_numpy(head).T.contiguous()
        if self._model.log_std is not None:
            log_std = self._model.log_std.expand(len(parameters), -1)
            parameters = torch.cat((parameters, log_std), -1)
        mask = {name: torch.from_numpy(obs[name]) for name in obs if name == ACTION_MASK}
        distribution = self._model.distribution(parameters, mask)
        actions = distribution.sample(self._generator, noise)
        log_prob = distribution.log_prob(actions)
        return {name: leaf.numpy() for name, leaf in actions.items()}, log_prob.numpy()


class OneChoice(AnyActions):
    """Draws one discrete action of each row: argmax p_i / e_i with e_i ~ Exp(1)."""

    def __init__(self, model: ActorCritic, generator: torch.Generator) -> None:
        super().__init__(model, generator)
        self._name = model.layout.leaves[0].name
        self._workspaces: dict[tuple[int, ...], _ChoiceWorkspace] = {}

    def __call__(
        self, head: Floats, obs: Mapping[str, Array], noise: torch.Tensor | None
    ) -> tuple[dict[str, Array], Array]:
        if ACTION_MASK in obs:
            return super().__call__(head, obs, noise)
        space = self._workspaces.get(head.shape)
        if space is None:
            space = self._workspaces[head.shape] = _choice_workspace(*head.shape)
        row, logits, probs = space.row, space.logits, space.probs
        np.maximum.reduce(head, axis=0, out=row)
        np.subtract(head, row, out=logits)
        np.exp(logits, out=probs)
        np.add.reduce(probs, axis=0, out=row)
        np.log(row, out=row)
        space.drawn.exponential_(generator=self._generator)
        np.divide(probs.T, space.noise, out=space.noise)
        actions = space.noise.argmax(-1)
        np.multiply(actions, len(row), out=space.places)
        np.add(space.places, space.rows, out=space.places)
        log_prob = logits.take(space.places)
        np.subtract(log_prob, row, out=log_prob)
        return {self._name: actions}, log_prob


class _ChoiceWorkspace(NamedTuple):
    """The arrays of `OneChoice` for ``B`` rows of ``A`` actions: ``row`` float32 [B]; ``logits``
    and ``probs`` float32 [A, B]; ``drawn`` and ``noise`` float32 [B, A], the same memory;
    ``places`` (in the flat logits) and ``rows`` int64 [B]."""

    row: Floats
    logits: Floats
    probs: Floats
    drawn: torch.Tensor
    noise: Floats
    places: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


def _choice_workspace(actions: int, rows: int) -> _ChoiceWorkspace:
    drawn = torch.empty(rows, actions)
    return _ChoiceWorkspace(
        np.empty(rows, np.float32),
        np.empty((actions, rows), np.float32),
        np.empty((actions, rows), np.float32),
        drawn,
        drawn.numpy(),
        np.empty(rows, np.int64),
        np.arange(rows),
    )


class Boxes(AnyActions):
    """Draws Box actions that are not squashed, from a Gaussian; see `ops.distributions`. Their
    log-probability is that of float32 numbers: a slot must not round them any further."""

    def __init__(self, model: ActorCritic, generator: torch.Generator) -> None:
        super().__init__(model, generator)
        self._layout = model.layout
        self._size = model.layout.num_boxes
        self._learned = None if model.log_std is None else model.log_std.detach().numpy()
        self.follow()

    def follow(self) -> None:
        """Take over the learned standard deviations."""
        if self._learned is not None:
            self._set_log_std(self._learned[:, None])

    def _set_log_std(self, log_std: Floats) -> None:
        """Set the standard deviations of the step, [n, B] or [n, 1]."""
        clipped = np.minimum(np.maximum(log_std, np.float32(MIN_LOG_STD)), np.float32(MAX_LOG_STD))
        self._std, self._precision = np.exp(clipped), np.exp(-clipped)
        self._offset = np.add.reduce(clipped, axis=0) + np.float32(self._size * _LOG_ROOT_TAU)

    def __call__(
        self, head: Floats, obs: Mapping[str, Array], noise: torch.Tensor | None
    ) -> tuple[dict[str, Array], Array]:
        mean = head[: self._size]
        if self._learned is None:
            self._set_log_std(head[self._size :])
        if noise is None:
            drawn = torch.empty(mean.shape[::-1]).normal_(generator=self._generator)
        else:
            drawn = noise
        u = np.array(drawn.numpy().T, order="C")  # a copy also where there is one element
        np.multiply(u, self._std, out=u)
        np.add(u, mean, out=u)
        actions = np.array(u.T, order="C")
        np.subtract(u, mean, out=u)
        np.multiply(u, self._precision, out=u)
        np.square(u, out=u)
        log_prob = np.add.reduce(u, axis=0)
        np.multiply(log_prob, np.float32(-0.5), out=log_prob)
        np.subtract(log_prob, self._offset, out=log_prob)
        return self._leaves(actions), log_prob

    def _leaves(self, flat: Floats) -> dict[str, Array]:
        """Return the leaves of actions [B, n]."""
        return {
            leaf.name: flat[:, leaf.elements].reshape(len(flat), *leaf.shape)
            for leaf in self._layout.leaves
        }


class Stochastic(Chooser):
    """Chooses actions by sampling from their distribution. ``noise``: of Box actions, if it is not
    independent."""

    def __init__(self, generator: torch.Generator, noise: CorrelatedNoise | None = None) -> None:
        self._generator = generator
        self._noise = noise

    def __call__(
        self, distribution: ActionDistribution, is_first: torch.Tensor, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        noise = None if self._noise is None else self._noise.draw(rows, is_first)
        return distribution.sample(self._generator, noise)

    def recorded(
        self, distribution: ActionDistribution, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        if self._noise is None:
            independent = torch.ones_like(rows, dtype=torch.bool)
        else:
            independent = self._noise.is_independent(rows)
        return {"parameters": distribution.parameters, "independent": independent}


def actor_critic_columns(
    distribution: ActionDistribution, values: torch.Tensor, actions: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the columns of an actor-critic's slots, [B] each."""
    return {"log_prob": distribution.log_prob(actions), "value": values}


def sampling(
    network: ActorCritic,
    weights: SharedWeights,
    place: ActingPlace,
    noise_correlation: float = 0.0,
) -> Acting:
    """Return what samples actions from the distribution of ``network``, in numpy where that can be.
    ``noise_correlation``: of the noise of Box actions, see `CorrelatedNoise`."""
    generator, direct = place.generator, None
    noise = correlated_noise(noise_correlation, network, place)
    if place.is_plain and has_numpy_forward(network):
        direct = DirectActing(network, generator, noise)
    choose = Stochastic(generator, noise)
    return Acting(network, weights, place, choose, actor_critic_columns, direct=direct)
