"""The opponents of self-play: which past snapshots stay in the pool, and which one is drawn.

Pure functions of numbers, without files and processes. Snapshots are ordered from the oldest to the
newest everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

DrawRule = Literal["uniform", "hard", "even"]
"""How an opponent is drawn among the past snapshots: all alike; by ``(1 - w)^power``, which prefers
snapshots that are hard to beat; or by ``w (1 - w)``, which prefers those of the same strength.
``w`` is the learning policy's win rate against the snapshot (prioritised fictitious self-play,
Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z)."""
DRAW_RULES: tuple[DrawRule, ...] = get_args(DrawRule)

Floats = npt.NDArray[np.float64]


def weights(win_rates: Sequence[float], rule: DrawRule, power: float = 2.0) -> Floats:
    """Return the probability [N] of each snapshot under ``rule`` alone; they sum to 1.

    ``win_rates``: how often the learning policy beats each snapshot, from 0 to 1; a draw counts
    half. Where all weights of a rule are 0 (every snapshot always loses), all probabilities are
    equal. Raises ValueError if there is no snapshot, or for a win rate outside of [0, 1].
    """
    rates = np.asarray(win_rates, np.float64)
    if rates.size == 0:
        raise ValueError("there is no snapshot to draw from")
    if not ((rates >= 0.0) & (rates <= 1.0)).all():
        raise ValueError(f"win rates must be in [0, 1], but are {list(win_rates)}")
    if rule == "hard":
        raw = (1.0 - rates) ** power
    elif rule == "even":
        raw = rates * (1.0 - rates)
    else:
        raw = np.ones_like(rates)
    total = raw.sum()
    return raw / total if total > 0.0 else np.full_like(rates, 1.0 / rates.size)


def probabilities(
    win_rates: Sequence[float],
    rule: DrawRule,
    *,
    latest: float = 0.5,
    power: float = 2.0,
    window: int | None = None,
) -> Floats:
    """Return the probability [N + 1] of each opponent of an episode: of the N snapshots, and last
    of the newest weights of the policy that learns.

    The newest weights are drawn with probability ``latest``, or always while there is no snapshot;
    otherwise one of the ``window`` newest snapshots (None: of all) is drawn by ``rule``. Raises
    ValueError as `weights` does, for a ``latest`` outside of [0, 1], and for a ``window`` below 1.
    """
    if not 0.0 <= latest <= 1.0:
        raise ValueError(f"the probability of the newest weights must be in [0, 1], not {latest}")
    if window is not None and window < 1:
        raise ValueError(f"the window must hold at least one snapshot, not {window}")
    count = len(win_rates)
    drawn = np.zeros(count + 1)
    drawn[-1] = latest if count else 1.0
    if count:
        first = 0 if window is None else max(0, count - window)
        drawn[first:-1] = (1.0 - latest) * weights(win_rates[first:], rule, power)
    return drawn


def to_remove(env_steps: Sequence[int]) -> int:
    """Return the index of the snapshot that leaves a pool which has one too many.

    ``env_steps``: when each was taken. The oldest and the newest stay; among the others, the one
    leaves whose neighbours are closest to each other (of several such, the oldest), so that the
    pool covers the whole training evenly, however long it lasts. Raises ValueError for fewer than
    two snapshots; of two, the older one leaves.
    """
    if len(env_steps) < 2:
        raise ValueError("a pool keeps at least one snapshot")
    if len(env_steps) == 2:
        return 0
    steps = np.asarray(env_steps, np.int64)
    return 1 + int(np.argmin(steps[2:] - steps[:-2]))


def expected_win_rate(wins: float, games: float) -> float:
    """Return the estimate of a win rate by which opponents are drawn, from ``games`` games with a
    sum of scores ``wins`` (a draw is half a win): as if one more game had been won and one more
    lost, so that a snapshot without games counts as an even one, not as one that always wins."""
    return (wins + 1.0) / (games + 2.0)
