"""A model that acts: newest weights in, actions out."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch

from sampleforge.data.weights import SharedWeights
from sampleforge.models.actor_critic import ActorCritic


class Acted(NamedTuple):
    """What the behaviour policy says of ``B`` rows."""

    actions: dict[str, torch.Tensor]  # [B, ...]
    log_prob: torch.Tensor  # float32 [B]
    value: torch.Tensor  # float32 [B]
    state: torch.Tensor  # float32 [B, S], after this step


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """The context of forward passes: bf16 autocast, or full precision."""
    if precision == "fp32":
        return nullcontext()  # a disabled autocast costs 5 us, as much as a layer of CartPole's MLP
    context: AbstractContextManager[None] = torch.autocast(device.type, dtype=torch.bfloat16)
    return context


class Policy:
    """Samples actions with a model whose weights follow a `SharedWeights`.

    ``version`` is the policy version of the weights in use. Deterministic for a seed, given the
    same observations and publications.
    """

    def __init__(
        self,
        model: ActorCritic,
        weights: SharedWeights,
        *,
        device: torch.device,
        precision: str,
        seed: int,
    ) -> None:
        self._model = model.to(device).eval()
        self._tensors = self._model.state_dict()
        self._weights = weights
        self._device = device
        self._precision = precision
        self._generator = torch.Generator(device).manual_seed(seed)
        self._published = -1
        self.version = 0

    def refresh(self) -> None:
        """Take the newest weights, if they moved."""
        if self._published != self._weights.published:
            with torch.no_grad():
                self._published, self.version = self._weights.read(self._tensors)

    @torch.inference_mode()
    def act(self, obs: dict[str, torch.Tensor], state: torch.Tensor, first: torch.Tensor) -> Acted:
        """Sample actions for obs leaves [B, ...], recurrent state [B, S], first bool [B]."""
        with autocast(self._device, self._precision):
            output = self._model.step(obs, state, first)
        distribution = self._model.distribution(output.parameters, obs)
        actions = distribution.sample(self._generator)
        return Acted(actions, distribution.log_prob(actions), output.values, output.state)

    @torch.inference_mode()
    def values(self, obs: dict[str, torch.Tensor], state: torch.Tensor) -> torch.Tensor:
        """Values [B] of observations that continue an episode (final observations)."""
        first = torch.zeros(state.shape[0], dtype=torch.bool, device=self._device)
        with autocast(self._device, self._precision):
            return self._model.step(obs, state, first).values
