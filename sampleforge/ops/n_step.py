"""n-step windows over one rollout, in numpy: they are computed where the rollout is, in an actor.

Time is axis 0, everything is [T, rows]. The window of step t takes the rewards of at most n steps
from t on and then bootstraps from ``obs[t + steps]``. It ends early where the episode does, so that
nothing crosses one, and at the end of the rollout, where the last observation is ``obs[T]``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.ops.value_rescaling import rescale, unrescale

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


class Windows(NamedTuple):
    """[T, rows] each. The target of step t is
    ``returns[t] + discount[t] * V(obs[t + steps[t]])``; no window where ``steps`` is 0."""

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
    """The window of every step.

    A step that is not valid has none, and ends those before it. A window ends with a truncated step
    and bootstraps from the final observation, which is ``obs[t + 1]``, or under same-step autoreset
    lies apart. With ``drop_truncated`` the final observations were not kept: windows stop before a
    truncated step, and it has none itself, unless it terminated as well: then nothing is
    bootstrapped.
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
    """[T, rows] each: steps after which the final observation lies apart, under same-step
    autoreset, and what it is worth; ``values`` mean nothing elsewhere."""

    truncated: Flags
    values: Floats


class KnownWindows(NamedTuple):
    """[T, rows] each: the windows as far as values of ``obs[:T]`` reach. The value of ``obs[T]`` is
    not known yet, so a window that ends there is cut by one step."""

    returns: Floats
    discount: Floats
    following: npt.NDArray[np.intp]  # what step the window bootstraps from, where discount > 0
    known: Flags  # False where there is no window, or nothing is left of it
    apart: Flags  # where the window bootstraps from what is seen after step ``following`` instead

    def bootstrap(self, values: Floats, final: Floats | None = None) -> Floats:
        """[T, rows]: of ``values`` [T, rows], or of those of final observations that lie apart,
        that which each window ends at; 0 where none."""
        at = self.following, np.arange(values.shape[1])
        found = values[at] if final is None else np.where(self.apart, final[at], values[at])
        return np.where(self.discount > 0, found, np.float32(0))

    def completed(self, errors: Floats) -> Floats:
        """``errors`` where windows are known, elsewhere the mean of these."""
        typical = errors[self.known].mean() if self.known.any() else np.float32(1.0)
        return np.where(self.known, errors, typical).astype(np.float32)


def known_windows(
    windows: Windows, reward: Floats, gamma: float, final: FinalValues | None = None
) -> KnownWindows:
    """What can be said of ``windows`` before ``obs[T]`` has a value. ``final``: where windows end
    with a final observation that lies apart."""
    length, rows = reward.shape
    time = np.arange(length)[:, None] + windows.steps
    bootstraps = windows.discount > 0
    apart = np.zeros_like(bootstraps)
    if final is not None:
        apart = bootstraps & final.truncated[np.maximum(time - 1, 0), np.arange(rows)]
    cut = (time == length) & bootstraps & ~apart
    following = np.minimum(time - (cut | apart), length - 1)
    last = np.float32(gamma) ** (windows.steps - 1.0) * reward[-1]
    returns = windows.returns - np.where(cut, last, 0)
    discount = np.where(cut, windows.discount / max(gamma, 1e-12), windows.discount)
    known = (windows.steps > 0) & ~(cut & (windows.steps == 1))
    return KnownWindows(returns, discount, following, known, apart)


def initial_errors(
    windows: Windows,
    reward: Floats,
    values: Floats,
    taken: Floats,
    gamma: float,
    *,
    rescaled: bool = False,
    final: FinalValues | None = None,
) -> Floats:
    """|TD error| [T, rows] by the behaviour network's own Q-values at sampling.

    ``values`` is max_a Q(obs[t], a), ``taken`` is Q(obs[t], a_t). Windows are those of
    `known_windows`; others get the mean. ``rescaled``: both are squashed (see
    `ops.value_rescaling`), those of ``final`` too.
    """

    def raw(each: Floats) -> Floats:
        return unrescale(torch.from_numpy(each)).numpy() if rescaled else each

    windows_known = known_windows(windows, reward, gamma, final)
    bootstrap = windows_known.bootstrap(raw(values), None if final is None else raw(final.values))
    target = windows_known.returns + windows_known.discount * bootstrap
    if rescaled:
        target = rescale(torch.from_numpy(target)).numpy()
    return windows_known.completed(np.abs(target - taken))
