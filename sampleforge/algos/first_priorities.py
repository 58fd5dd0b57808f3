"""First priorities: what an actor can say of its own rollout before a learner has seen it.

They must be of the learner's kind, or new experience would be drawn far too often or never. The
learner's are absolute TD errors, and actors know the Q-values for these. With distributions of
returns, they are losses: of these, an actor keeps mean and standard deviation only, of the action
it took and of the best, and computes the loss of normal distributions that have them. (Whole ones
would be kept as long as the experience is: 102 numbers of 51 atoms, where these are 4.)
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sampleforge.algos.config import DqnConfig
from sampleforge.ops.n_step import FinalValues, Windows, initial_errors, known_windows
from sampleforge.ops.value_distributions import quantile_huber_loss
from sampleforge.ops.value_rescaling import rescale, slope, unrescale

Floats = npt.NDArray[np.float32]
NORMAL_QUANTILES = 9
"""Of each normal distribution, for the loss of quantiles."""


def first_errors(
    config: DqnConfig,
    windows: Windows,
    reward: Floats,
    gamma: float,
    acted: Mapping[str, npt.NDArray[Any]],
    final: FinalValues | None = None,
) -> Floats:
    """[T, rows], as `DqnOutput.errors`, by the behaviour network itself instead of the target
    network. ``acted``: columns [T, rows] of `data.replay.EXTRAS`, and of `SPREADS` if there are
    distributions. ``final``: see `sampleforge.ops.n_step.known_windows`; the spread of a final
    observation's value is taken to be that of the one before."""
    values, taken, rescaled = acted["value"], acted["taken"], bool(config.value_rescaling)
    if config.value_distribution == "none":
        return initial_errors(windows, reward, values, taken, gamma, rescaled=rescaled, final=final)
    known = known_windows(windows, reward, gamma, final)
    final_values = None if final is None else final.values
    mean, std = moved_moments(
        torch.from_numpy(known.returns),
        torch.from_numpy(known.discount),
        torch.from_numpy(known.bootstrap(values, final_values)),
        torch.from_numpy(known.bootstrap(acted["value_std"], acted["value_std"])),
        rescaled=rescaled,
    )
    ours = torch.from_numpy(taken), torch.from_numpy(acted["taken_std"])
    if config.value_distribution == "c51":
        low, high = atom_ends(config)
        least = (high - low) / (config.num_atoms - 1) / 2
        errors = normal_divergence(mean.clamp(low, high), std, *ours, least=least)
    else:
        errors = normal_quantile_loss(*ours, mean, std, config.huber_delta)
    return known.completed(errors.numpy())


def atom_ends(config: DqnConfig) -> tuple[float, float]:
    """The first and the last atom of a fitted config."""
    assert config.v_min is not None and config.v_max is not None
    ends = torch.tensor([config.v_min, config.v_max])
    low, high = (rescale(ends) if config.value_rescaling else ends).tolist()
    return low, high


def moved_moments(
    returns: Tensor, discount: Tensor, mean: Tensor, std: Tensor, *, rescaled: bool
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, [...] each, of returns + discount * Z for Z with ``mean`` and
    ``std``; of h(returns + discount * h^-1(Z)) if rescaled, to first order."""
    if not rescaled:
        return returns + discount * mean, discount * std
    following = unrescale(mean)
    target = returns + discount * following
    return rescale(target), discount * std * slope(target) / slope(following)


def normal_divergence(
    mean: Tensor, std: Tensor, of_mean: Tensor, of_std: Tensor, *, least: float
) -> Tensor:
    """[...]: KL(N(mean, std) | N(of_mean, of_std)), no standard deviation less than ``least``: half
    the distance of two atoms, which a projection onto them blurs everything by."""
    std, of_std = std.clamp(min=least), of_std.clamp(min=least)
    ratio, shift = std / of_std, (mean - of_mean) / of_std
    return (ratio.square() + shift.square() - 1) / 2 - ratio.log()


def normal_quantile_loss(
    mean: Tensor, std: Tensor, target_mean: Tensor, target_std: Tensor, kappa: float
) -> Tensor:
    """[...]: `quantile_huber_loss` of a few quantiles of normal distributions, in the mean."""
    count = NORMAL_QUANTILES
    points = torch.tensor([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    points /= points.std(unbiased=False)
    ours = mean.unsqueeze(-1) + std.unsqueeze(-1) * points
    theirs = target_mean.unsqueeze(-1) + target_std.unsqueeze(-1) * points
    return quantile_huber_loss(ours, theirs, kappa) / count
