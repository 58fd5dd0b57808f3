"""What targets of Q-learning are made of: n-step windows, rescaled values, distributions of
returns, and the priorities of sequences.

Windows are in numpy, because actor workers compute them. Time is axis 0; all arrays are [T, rows].
The window of step t sums the rewards of at most n steps from t on and then bootstraps from
``obs[t + steps]``. It ends early at the end of an episode and at the end of the rollout, where the
last observation is ``obs[T]``.

The rescaling h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x is invertible (Pohlen et al. 2018, arXiv
1805.11593). It keeps returns of any size within what one network can learn, without clipping
rewards. R2D2 has it (Kapturowski et al. 2019), and the priorities of sequences (section 2.3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


class Windows(NamedTuple):
    """The windows of all steps, [T, rows] each. The target of step t is
    ``returns[t] + discount[t] * V(obs[t + steps[t]])``. Where ``steps`` is 0 there is no window."""

    returns: Floats
    discount: Floats  # 0 where the episode terminated within the window
    steps: npt.NDArray[np.uint8]


def n_step_windows(
    reward: Floats,
    terminated: Flags,
    truncated: Flags,
    valid: Flags,
    n: int,
    gamma: float,
    *,
    drop_truncated: bool = False,
) -> Windows:
    """Return the window of every step, of at most ``n`` (1 to 255) rewards; inputs are [T, rows].

    A step that is not valid has no window and ends the windows before it. A window ends with a
    truncated step and bootstraps from the final observation, which is ``obs[t + 1]``, or, under
    same-step autoreset, is stored apart from ``obs``. With ``drop_truncated`` the final
    observations were not kept: windows stop before a truncated step, and that step has no window
    itself, unless it also terminated: then nothing is bootstrapped.
    """
    assert reward.ndim == 2 and 1 <= n <= 255, (reward.shape, n)
    length = len(reward)
    returns = np.zeros_like(reward)
    discount = np.zeros_like(reward)
    steps = np.zeros(reward.shape, np.uint8)
    usable = valid & (terminated | ~truncated) if drop_truncated else valid
    open_ = np.ones_like(usable)
    for k in range(min(n, length)):
        here = slice(0, length - k)
        takes = open_[here] & usable[k:]
        returns[here] += np.where(takes, np.float32(gamma**k) * reward[k:], 0)
        steps[here] += takes
        discount[here] = np.where(takes, np.float32(gamma ** (k + 1)), discount[here])
        discount[here][takes & terminated[k:]] = 0
        open_[here] = takes & ~(terminated[k:] | truncated[k:])
    return Windows(returns, discount, steps)


class FinalValues(NamedTuple):
    """Final observations that are stored apart from ``obs`` (same-step autoreset), [T, rows] each:
    the steps after which there is one, and its value. Elsewhere ``values`` has no meaning."""

    truncated: Flags
    values: Floats


class KnownWindows(NamedTuple):
    """The windows with bootstrap values that are known already, [T, rows] each. The value of
    ``obs[T]`` is not known yet, so a window that ends there is one step shorter."""

    returns: Floats
    discount: Floats
    bootstrap_step: npt.NDArray[np.intp]  # t whose value the window ends with, where discount > 0
    known: Flags  # False where there is no window, or no step of it is left
    apart: Flags  # the window ends with the final observation after ``bootstrap_step`` instead

    def bootstrap(self, values: Floats, final: Floats | None = None) -> Floats:
        """Return the value [T, rows] that each window bootstraps from, or 0 if it does not.

        ``values`` [T, rows] are those of ``obs[:T]``, ``final`` [T, rows] those of final
        observations that are stored apart."""
        at = self.bootstrap_step, np.arange(values.shape[1])
        at_end = values[at] if final is None else np.where(self.apart, final[at], values[at])
        return np.where(self.discount > 0, at_end, np.float32(0))

    def completed(self, errors: Floats) -> Floats:
        """Return ``errors`` where the window is known, and the mean of these elsewhere."""
        typical = errors[self.known].mean() if self.known.any() else np.float32(1.0)
        return np.where(self.known, errors, typical).astype(np.float32)


def known_windows(
    windows: Windows, reward: Floats, gamma: float, final: FinalValues | None = None
) -> KnownWindows:
    """Return the part of ``windows`` that is known before ``obs[T]`` has a value. ``final``: final
    observations that are stored apart, with which windows may end."""
    length, rows = reward.shape
    time = np.arange(length)[:, None] + windows.steps
    bootstraps = windows.discount > 0
    apart = np.zeros_like(bootstraps)
    if final is not None:
        apart = bootstraps & final.truncated[np.maximum(time - 1, 0), np.arange(rows)]
    cut_short = (time == length) & bootstraps & ~apart
    bootstrap_step = np.minimum(time - (cut_short | apart), length - 1)
    last = np.float32(gamma) ** (windows.steps - 1.0) * reward[-1]
    returns = windows.returns - np.where(cut_short, last, 0)
    discount = np.where(cut_short, windows.discount / max(gamma, 1e-12), windows.discount)
    known = (windows.steps > 0) & ~(cut_short & (windows.steps == 1))
    return KnownWindows(returns, discount, bootstrap_step, known, apart)


def initial_errors(
    windows: Windows,
    reward: Floats,
    values: Floats,
    q_taken: Floats,
    gamma: float,
    *,
    rescaled: bool = False,
    final: FinalValues | None = None,
) -> Floats:
    """Return |TD error| [T, rows] from the behaviour network's own Q-values at sampling.

    ``values`` is max_a Q(obs[t], a), ``q_taken`` is Q(obs[t], a_t). Steps without a window of
    `known_windows` get the mean error. ``rescaled``: ``values``, ``q_taken`` and the values of
    ``final`` are squashed (see `rescale`).
    """

    def raw(each: Floats) -> Floats:
        return unrescale(torch.from_numpy(each)).numpy() if rescaled else each

    windows_known = known_windows(windows, reward, gamma, final)
    bootstrap = windows_known.bootstrap(raw(values), None if final is None else raw(final.values))
    target = windows_known.returns + windows_known.discount * bootstrap
    if rescaled:
        target = rescale(torch.from_numpy(target)).numpy()
    return windows_known.completed(np.abs(target - q_taken))


EPSILON = 1e-3
"""R2D2's value of eps."""


def rescale(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return h(x), elementwise.

    |x| / (sqrt(|x| + 1) + 1) equals sqrt(|x| + 1) - 1 without the cancellation near 0. In this form
    the gradient at 0 is h'(0); a factor sign(x) would make it 0."""
    return x / ((x.abs() + 1).sqrt() + 1) + epsilon * x


def unrescale(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return h^-1(x), elementwise.

    It is proposition A.2 of the paper in a form without cancellation, correct to 3 roundings in
    float32; the paper's form loses 5% of 0.001. With y = h^-1(x) and t = sqrt(|y| + 1) - 1,
    |x| = t (1 + 2 eps + eps t): t is the positive root, and |y| = t (t + 2).
    """
    linear = 1 + 2 * epsilon
    t = 2 * x / (linear + (linear * linear + 4 * epsilon * x.abs()).sqrt())
    return t * (t.abs() + 2)


def slope(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return h'(x), elementwise."""
    return 0.5 / (x.abs() + 1).sqrt() + epsilon


ETA = 0.9
"""R2D2's value: one large error counts, however long the sequence is."""


def sequence_priority(errors: Tensor, counted: Tensor, eta: float = ETA) -> Tensor:
    """Return eta max_t |error| + (1 - eta) mean_t |error| [B] over the steps that are ``counted``.

    ``errors`` float [T, B], ``counted`` bool [T, B]. A sequence without a counted step has 0.
    """
    sizes = errors.abs().masked_fill(~counted, 0.0)
    mean = sizes.sum(0) / counted.sum(0).clamp(min=1)
    return eta * sizes.amax(0) + (1 - eta) * mean


def project(positions: Tensor, probabilities: Tensor, atoms: Tensor) -> Tensor:
    """Project ``probabilities`` [B, K] at ``positions`` [B, K] onto evenly spaced ``atoms`` [K].

    Each probability is split between the two nearest atoms in proportion to its nearness;
    positions outside the atoms count as the outermost atom. Returns [B, K]:

        m_i = sum_j [1 - |clip(x_j) - z_i| / dz]_0^1 p_j

    (Bellemare et al. 2017, arXiv 1707.06887, eq. 7). Means within the atoms are kept.
    """
    assert positions.shape == probabilities.shape and positions.ndim == 2, positions.shape
    last = len(atoms) - 1
    spacing = (atoms[-1] - atoms[0]) / last
    place = ((positions - atoms[0]) / spacing).clamp(0, last)
    below = place.floor().clamp(max=last - 1)
    share = place - below
    below = below.long()
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(1, below, probabilities * (1 - share))
    return projected.scatter_add_(1, below + 1, probabilities * share)


def midpoints(count: int, device: torch.device | None = None) -> Tensor:
    """Return the tau of each of ``count`` quantiles, (2 i - 1) / (2 count), float32 [count]."""
    return (torch.arange(count, device=device) + 0.5) / count


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, kappa: float) -> Tensor:
    """Return sum_i mean_j |tau_i - 1{u_ij < 0}| L(u_ij) / kappa [...].

    Here u_ij = target_j - quantile_i, ``quantiles`` is [..., N], ``targets`` [..., M], and L is the
    Huber loss with ``kappa``. It is eq. 10 of Dabney et al. 2018, arXiv 1710.10044, divided by
    kappa. For kappa -> 0 it tends to the loss of quantile regression, with |u| in place of
    L(u) / kappa; kappa 0 gives that loss.
    """
    assert quantiles.shape[:-1] == targets.shape[:-1], (quantiles.shape, targets.shape)
    errors = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [..., N, M]
    size = errors.abs()
    if kappa:
        size = torch.where(size <= kappa, size.square() / (2 * kappa), size - kappa / 2)
    tau = midpoints(quantiles.shape[-1], quantiles.device).unsqueeze(-1)
    return ((tau - (errors.detach() < 0).float()).abs() * size).mean(-1).sum(-1)
