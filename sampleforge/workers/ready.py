"""The actor whose env rows step independently of each other."""

from __future__ import annotations

from time import monotonic, perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.split import Split
from sampleforge.workers.stream import PolicyPort

LATE = 2.0
"""A rollout is late, and is cut, when the actor's splits have since its beginning taken on average
this multiple of the steps of a whole rollout."""
OF_OBSERVATIONS = ("value", "value_std")
"""Outputs of a policy that do not depend on the action."""


class ReadyActor(ActorWorker):
    """An actor whose splits step independently: each goes on as soon as its own step is done.

    Each split fills a slot of its own at its own t, so that no batch waits for a slow split: it
    consists of the rollouts that are complete. The actions of all splits that wait are computed
    with one forward pass.

    A late rollout (see `LATE`) is cut: it is handed over with the steps that it has, so that these
    do not become too old, and the rest of the slot is masked. Its bootstrap is the value of its own
    last observation. A step that is in progress then goes on. It counts in the next rollout, as the
    first step, with the action, the log-probability and the policy version of its beginning.

    The arguments are those of `ActorWorker`, with `ThreadedVector` environments; an inline
    inference must be `LocalInference`. ``late``: infinite for rollouts that are never cut.
    """

    def __init__(self, *args: Any, late: float = LATE, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._late = late

    def start(self) -> None:
        self._in_progress: dict[int, dict[str, npt.NDArray[Any]]] = {}
        self._sent: dict[int, float] = {}
        self._steps_taken = 0
        self._begun: dict[int, int] = {}
        super().start()
        slots = [p.exchange.slots for p in self._ports if isinstance(p, PolicyPort)]
        rollout = max(each.shape.rollout for each in slots)
        self._late_after = self._late * rollout * len(self._splits)

    def step(self) -> bool:
        self._answer()
        return super().step()

    def alive_at(self) -> float:
        """Return the time (of ``monotonic``) at which the oldest step in progress began; now
        if there is none."""
        busy = [self._sent[s.index] for s in self._splits if s.stepping and not s.env.ready]
        return min(busy, default=monotonic())

    def _answer(self) -> None:
        """Compute the actions of all splits that wait; a step in progress keeps its own action."""
        started = perf_counter()
        for port in self._ports:
            port.inference.answer()
        for index, columns in list(self._in_progress.items()):
            stream = self._splits[index].stream
            if stream.slot is not None and stream.is_answered():
                for name, column in columns.items():
                    stream.slots.arrays[name][stream.slot, 0] = column
                del self._in_progress[index]
        seconds = perf_counter() - started
        self._count["infer_s"] += seconds
        self._count["step_s"] += seconds

    def _advance(self, split: Split) -> bool:
        if not split.stepping:
            return super()._advance(split)
        if split.stream.slot is None:
            return self._begin(split)
        if split.index in self._in_progress:
            return False  # the next `_answer` writes its action into the slot
        if split.env.ready:
            return super()._advance(split)
        return self._is_late(split) and self._cut(split)

    def _begin(self, split: Split) -> bool:
        if not super()._begin(split):
            return False
        self._begun[split.index] = self._steps_taken
        return True

    def _act(self, split: Split) -> bool:
        self._sent[split.index] = monotonic()
        return super()._act(split)

    def _next(self, split: Split) -> bool:
        self._steps_taken += 1
        return super()._next(split)

    def _is_late(self, split: Split) -> bool:
        """Return whether the rollout, of which a step is in progress, is to be cut."""
        steps = self._steps_taken - self._begun[split.index]
        return split.stream.t > 0 and steps >= self._late_after

    def _cut(self, split: Split) -> bool:
        """Hand over the complete steps of a rollout, and go on with the step in progress in another
        slot."""
        self._end_early(split)
        return self._next_rollout(split)

    def _end_early(self, split: Split) -> None:
        """End the rollout with its last complete step. The policy's output for the observation
        after that step is in the slot."""
        if split.stepping:
            self._in_progress[split.index] = _decision(split)
        split.stream.end_early()


def _decision(split: Split) -> dict[str, npt.NDArray[Any]]:
    """Return copies of the columns of the action at (slot, t), which was taken but has not led to
    anything yet: action, version, and the policy's other outputs for it. What the policy says of
    the observation alone is computed again."""
    stream = split.stream
    slots, slot, t = stream.slots, stream.slot, stream.t
    outputs = set(slots.extras).difference(slots.shape.finished, OF_OBSERVATIONS)
    names = [*(f"action/{name}" for name in slots.actions), *outputs, "version"]
    return {name: np.array(slots.arrays[name][slot, t]) for name in names}
