"""Noise of Box actions that resembles that of the env step before."""

from __future__ import annotations

import math

import torch

from sampleforge.algorithms.acting import ActingPlace
from sampleforge.models.actor_critic import ActorCritic


class CorrelatedNoise:
    """Standard normal noise, which is correlated with that of the step before in every fourth env
    row: z_t = c z_{t-1} + sqrt(1 - c^2) e_t with e_t ~ N(0, 1), starting anew with each episode.

    Each z_t alone is N(0, 1), so that the log-probability of an action given its observation is
    that of independent noise (as with the coloured noise of Hollenstein et al. 2024, arXiv
    2312.11091). Independent noise cancels itself out over a few steps; correlated noise moves a
    system that has inertia. The other rows keep independent noise, because with correlated noise a
    system that balances falls (measured: Hopper).
    """

    EVERY = 4

    def __init__(
        self, correlation: float, env_rows: torch.Tensor, size: int, generator: torch.Generator
    ) -> None:
        """Make the source of noise for the agents of all env rows of the run, each with ``size``
        numbers per step. ``env_rows``: the index of the env row of each, int64 [R]; all agents of
        an env row have the same kind of noise."""
        correlated = env_rows.unsqueeze(1) % self.EVERY == self.EVERY - 1
        self._correlation = correlated.float() * correlation
        self._fresh = (1.0 - self._correlation.square()).sqrt()
        self._generator = generator
        self._last = torch.full((len(env_rows), size), math.nan, device=generator.device)

    def draw(self, rows: torch.Tensor, is_first: torch.Tensor) -> torch.Tensor:
        """Return the noise [B, size] of the agents ``rows`` (int64 [B]).

        ``is_first`` (bool [B]) marks the beginning of an episode. A row without earlier noise
        begins as well, as after a restart of the policy worker."""
        last = self._last[rows]
        noise = torch.empty_like(last).normal_(generator=self._generator)
        begins = is_first.unsqueeze(1) | last.isnan()
        correlated = self._correlation[rows] * last + self._fresh[rows] * noise
        noise = torch.where(begins, noise, correlated)
        self._last[rows] = noise
        return noise

    def is_independent(self, rows: torch.Tensor) -> torch.Tensor:
        """Return which of the agents ``rows`` (int64 [B]) have independent noise, bool [B]."""
        return self._correlation[rows, 0] == 0


def correlated_noise(
    correlation: float, network: ActorCritic, place: ActingPlace
) -> CorrelatedNoise | None:
    """Return the noise for the env rows of ``place``; None if it is independent in all of them, or
    if ``network`` draws its actions itself or has none with bounds."""
    size = network.layout.num_boxes
    if not correlation or not size or network.has_own_distribution:
        return None
    return CorrelatedNoise(correlation, place.env_rows, size, place.generator)
