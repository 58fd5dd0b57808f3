"""What an actor adds to its complete rollout: n-step windows and first priorities, its estimate of
the learner's priorities.

First priorities must be of the same kind and size as the learner's, otherwise new experience would
be drawn far too often or never. The learner's priorities are absolute TD errors, and actors know
the Q-values for these. With distributions of returns they are losses. For these an actor keeps only
the mean and the standard deviation of two distributions, that of the action taken and that of the
best action, and computes the loss of normal distributions with these moments. (Whole distributions
would be kept as long as the experience: 102 numbers for 51 atoms, instead of 4.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.return_scale import typical_size
from sampleforge.algorithms.windows import MakeWindows
from sampleforge.ops.q_learning import (
    FinalValues,
    Windows,
    initial_errors,
    known_windows,
    quantile_huber_loss,
    rescale,
    slope,
    unrescale,
)
from sampleforge.replay.items import write_items
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.newest import SharedWeights

Floats = npt.NDArray[np.float32]
NORMAL_QUANTILES = 9
"""Number of quantiles by which `normal_quantile_loss` represents a normal distribution."""


def first_errors(
    config: DqnConfig,
    windows: Windows,
    reward: Floats,
    gamma: float,
    extras: Mapping[str, npt.NDArray[Any]],
    final: FinalValues | None = None,
) -> Floats:
    """Return the first errors [T, rows], as `DqnOutput.errors`, with the behaviour network in the
    place of the target network.

    ``extras`` are the columns [T, rows] of `columns`. ``final``: see
    `sampleforge.ops.q_learning.known_windows`. The value of a final observation is given the
    standard deviation of the observation before it."""
    values, q_taken, rescaled = extras["value"], extras["taken"], bool(config.value_rescaling)
    if config.value_distribution == "none":
        return initial_errors(
            windows, reward, values, q_taken, gamma, rescaled=rescaled, final=final
        )
    known = known_windows(windows, reward, gamma, final)
    final_values = None if final is None else final.values
    mean, std = moved_moments(
        torch.from_numpy(known.returns),
        torch.from_numpy(known.discount),
        torch.from_numpy(known.bootstrap(values, final_values)),
        torch.from_numpy(known.bootstrap(extras["value_std"], extras["value_std"])),
        rescaled=rescaled,
    )
    predicted = torch.from_numpy(q_taken), torch.from_numpy(extras["taken_std"])
    if config.value_distribution == "c51":
        low, high = atom_ends(config)
        least = (high - low) / (config.num_atoms - 1) / 2
        errors = normal_divergence(mean.clamp(low, high), std, *predicted, least=least)
    else:
        errors = normal_quantile_loss(*predicted, mean, std, config.huber_delta)
    return known.completed(errors.numpy())


def atom_ends(config: DqnConfig) -> tuple[float, float]:
    """Return the first and the last atom of a config with resolved defaults."""
    assert config.v_min is not None and config.v_max is not None
    ends = torch.tensor([config.v_min, config.v_max])
    low, high = (rescale(ends) if config.value_rescaling else ends).tolist()
    return low, high


def moved_moments(
    returns: Tensor, discount: Tensor, mean: Tensor, std: Tensor, *, rescaled: bool
) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation [...] of returns + discount * Z, for a random Z with
    ``mean`` and ``std``; if ``rescaled``, of h(returns + discount * h^-1(Z)), to first order."""
    if not rescaled:
        return returns + discount * mean, discount * std
    next_mean = unrescale(mean)
    target = returns + discount * next_mean
    return rescale(target), discount * std * slope(target) / slope(next_mean)


def normal_divergence(
    mean: Tensor, std: Tensor, of_mean: Tensor, of_std: Tensor, *, least: float
) -> Tensor:
    """Return KL(N(mean, std) | N(of_mean, of_std)) [...], with standard deviations clamped to
    ``least`` at the lower end. The caller gives half the distance of two atoms, because the
    projection onto atoms blurs every distribution by that much."""
    std, of_std = std.clamp(min=least), of_std.clamp(min=least)
    ratio, shift = std / of_std, (mean - of_mean) / of_std
    return (ratio.square() + shift.square() - 1) / 2 - ratio.log()


def normal_quantile_loss(
    mean: Tensor, std: Tensor, target_mean: Tensor, target_std: Tensor, kappa: float
) -> Tensor:
    """Return the `quantile_huber_loss` [...] between two normal distributions, from
    `NORMAL_QUANTILES` quantiles of each, divided by their number."""
    count = NORMAL_QUANTILES
    points = torch.tensor([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    points /= points.std(unbiased=False)
    quantiles = mean.unsqueeze(-1) + std.unsqueeze(-1) * points
    targets = target_mean.unsqueeze(-1) + target_std.unsqueeze(-1) * points
    return quantile_huber_loss(quantiles, targets, kappa) / count


def columns(config: DqnConfig) -> dict[str, str]:
    """Return the columns, name -> dtype, that acting records beside the actions: the values that
    `FinishRollout` makes first priorities from."""
    names = ["value", "taken"]  # max_a Q(obs[t], a) and Q(obs[t], action[t])
    if config.value_distribution != "none":  # standard deviations of their distributions
        names += ["value_std", "taken_std"]
    return dict.fromkeys(names, "float32")


@dataclass(frozen=True)
class FinishRollout:
    """Adds n-step windows and first priorities to an actor's complete rollout, from the values that
    it acted on."""

    config: DqnConfig
    weights: SharedWeights | None = None
    """The newest weights: their ``value_scale`` is needed if returns are normalised."""

    def __call__(self, slots: TrajectorySlots, slot: int) -> None:
        make = MakeWindows(self.config, slots.shape.drops_truncated)
        reward = slots.reward[slot]
        windows = make(reward, slots.terminated[slot], slots.truncated[slot], slots.valid[slot])
        rewards = make.rewards(reward)
        unit = self._unit(rewards)
        errors = first_errors(
            self.config,
            windows._replace(returns=windows.returns / unit),
            rewards / unit,
            make.gamma,
            {name: slots.extras[name][slot] for name in columns(self.config)},
            _final(slots, slot),
        )
        write_items(slots, slot, windows, errors)

    def _unit(self, rewards: Floats) -> np.float32:
        """Return the unit that returns are learned in: the learner's ``value_scale``, or, before
        the learner knows it, the typical size of these rewards."""
        if not self.config.normalise_returns:
            return np.float32(1.0)
        assert self.weights is not None
        scale = self.weights.scalar("value_scale")
        if scale > 0:
            return np.float32(scale)
        return np.float32(typical_size(torch.from_numpy(rewards)).item())


def _final(slots: TrajectorySlots, slot: int) -> FinalValues | None:
    """Return the values of a rollout's final observations if these are stored apart from ``obs``,
    otherwise None."""
    if not slots.final_obs:
        return None
    assert slots.final_value is not None
    truncated = slots.truncated[slot] & ~slots.terminated[slot] & slots.valid[slot]
    return FinalValues(truncated, slots.final_value[slot])
