"""What replay shards and learner know of each other, and the limit on samples per insert.

An item is a transition; with a recurrent core a sequence of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.shared.arrays import SharedArrays

_OF_SHARD = {
    "inserted": "int64",  # items that could be sampled, ever
    "leased": "int64",  # items of the slots that actors have
    "stored": "int64",  # items that can be sampled now
    "priority_sum": "float64",  # sum of their priorities
    "drawn": "int64",
    "age_sum": "float64",  # of the drawn, in items inserted since
    "full": "bool",  # it has begun to evict: it will not hold more
    "frame_bytes": "int64",  # of compressed frames
    "restoring": "bool",  # what was saved is being read
    "stale_updates": "int64",  # priorities that came too late: their item was evicted
}
_OF_LEARNER = {
    "base": "int64",  # of each shard: inserted before learning began
    "carried": "float64",  # [0]: the balance of the run before
    "sampled": "int64",  # [0]
    "learning": "bool",  # [0]
    "begun": "bool",  # [0]: learning had begun in the run whose replay is restored
}


class ReplayCounters:
    """Numbers of each shard [shards] in shared memory, each with one writer: the shard, or where it
    says so the learner."""

    inserted: npt.NDArray[np.int64]
    leased: npt.NDArray[np.int64]
    stored: npt.NDArray[np.int64]
    priority_sum: npt.NDArray[np.float64]
    drawn: npt.NDArray[np.int64]
    age_sum: npt.NDArray[np.float64]
    full: npt.NDArray[np.bool_]
    frame_bytes: npt.NDArray[np.int64]
    restoring: npt.NDArray[np.bool_]
    stale_updates: npt.NDArray[np.int64]
    base: npt.NDArray[np.int64]
    carried: npt.NDArray[np.float64]
    sampled: npt.NDArray[np.int64]
    learning: npt.NDArray[np.bool_]
    begun: npt.NDArray[np.bool_]

    def __init__(self, shards: int) -> None:
        columns = {**_OF_SHARD, **_OF_LEARNER}
        self.__setstate__(SharedArrays({n: ((shards,), dtype) for n, dtype in columns.items()}))

    def __getstate__(self) -> SharedArrays:
        return self._arrays

    def __setstate__(self, arrays: SharedArrays) -> None:
        self._arrays = arrays
        for name in (*_OF_SHARD, *_OF_LEARNER):
            setattr(self, name, arrays[name])

    @property
    def shards(self) -> int:
        return len(self.inserted)

    @property
    def inserted_since_start(self) -> int:
        """Items inserted since learning began."""
        return int((self.inserted - self.base).sum()) if self.learning[0] else 0


class ItemSteps(NamedTuple):
    """What an item is in env steps: of a transition 1 and 1."""

    inserted: int = 1
    """New ones in the replay: what a sequence does not share with the one before."""
    learned: int = 1
    """Learned from, each time that it is drawn: all but the burn-in."""


@dataclass(frozen=True)
class RateLimiter:
    """Holds ``|inserts * ratio - samples|`` within ``tolerance``, at every instant (Reverb's
    SampleToInsertRatio; Cassirer et al. 2021, arXiv 2102.04736).

    Inserts, samples and ``learning_starts`` are items. They count from the moment that
    ``learning_starts`` were there. A ``ratio`` of None lets both sides run freely. Inserts are
    limited where slots are leased to actors: what has been leased may come back at any moment, so
    it counts already, and each shard has an equal share of what is allowed. Neither side needs the
    other's lock.
    """

    replay_counters: ReplayCounters
    ratio: float | None
    tolerance: float
    learning_starts: int

    @property
    def balance(self) -> float:
        """inserts * ratio - samples: positive if samples are due."""
        replay_counters = self.replay_counters
        inserts = replay_counters.inserted_since_start * (self.ratio or 0.0)
        return float(replay_counters.carried[0] + inserts - replay_counters.sampled[0])

    def may_lease(self, shard: int, items: int) -> bool:
        """Shard: another slot of ``items`` items may be given to an actor."""
        replay_counters = self.replay_counters
        if self.ratio is None:
            return True
        committed = (
            replay_counters.inserted[shard]
            - replay_counters.base[shard]
            + replay_counters.leased[shard]
            + items
        )
        allowed = (
            self.tolerance - replay_counters.carried[0] + replay_counters.sampled[0]
        ) / self.ratio
        if replay_counters.learning[0]:
            return bool(committed <= allowed / replay_counters.shards)
        # Also before: a learner that starts late finds no pile of old steps. But what learning
        # needs to begin is always allowed, whatever the run before owed.
        needed = self.learning_starts / replay_counters.shards
        return bool(
            committed - items < needed or committed <= needed + allowed / replay_counters.shards
        )

    def begin_learning(self) -> bool:
        """Learner: whether there are enough items to learn from; remembers the first time. Full
        shards are enough, whatever ``learning_starts``: where episodes are short, steps that reset
        take room. So is a replay from which learning had begun before."""
        replay_counters = self.replay_counters
        if not replay_counters.learning[0]:
            if replay_counters.restoring.any():
                return False
            enough = (
                replay_counters.begun[0] or replay_counters.stored.sum() >= self.learning_starts
            )
            if not enough and not replay_counters.full.all():
                return False
            replay_counters.base[:] = replay_counters.inserted
            replay_counters.learning[0] = True
        return True

    def may_sample(self, count: int) -> bool:
        """Learner, once it may learn: ``count`` more samples may be drawn."""
        return self.ratio is None or self.balance - count >= -self.tolerance

    def count_samples(self, count: int) -> None:
        """Learner: ``count`` samples have been ordered."""
        self.replay_counters.sampled[0] += count

    def state(self) -> dict[str, Any]:
        return {
            "balance": self.balance if self.ratio is not None else 0.0,
            "learning": bool(self.replay_counters.learning[0] or self.replay_counters.begun[0]),
        }

    def load(self, state: dict[str, Any], *, restoring: bool = False) -> None:
        """Go on with the balance of a `state`. ``restoring``: with its replay, too, which each
        shard says it has by clearing its flag."""
        self.replay_counters.carried[0] = state["balance"] if self.ratio is not None else 0.0
        self.replay_counters.restoring[:] = restoring
        self.replay_counters.begun[0] = restoring and state["learning"]
