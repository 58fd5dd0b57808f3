"""n-step windows over one rollout, in numpy, because actor workers compute them.

Time is axis 0; all arrays are [T, rows]. The window of step t sums the rewards of at most n steps
from t on and then bootstraps from ``obs[t + steps]``. It ends early at the end of an episode and at
the end of the rollout, where the last observation is ``obs[T]``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.ops.r2d2 import rescale, unrescale

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
    ``final`` are squashed (see `ops.value_rescaling`).
    """

    def raw(each: Floats) -> Floats:
        return unrescale(torch.from_numpy(each)).numpy() if rescaled else each

    windows_known = known_windows(windows, reward, gamma, final)
    bootstrap = windows_known.bootstrap(raw(values), None if final is None else raw(final.values))
    target = windows_known.returns + windows_known.discount * bootstrap
    if rescaled:
        target = rescale(torch.from_numpy(target)).numpy()
    return windows_known.completed(np.abs(target - q_taken))
