"""An actor whose splits step independently of each other and share a number of steps: the
sampling of variable experience rollout (Wijmans et al. 2022, arXiv 2210.05064)."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, time
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.rollouts.slots import end_rollout
from sampleforge.workers.actor import ActorWorker, Split, never
from sampleforge.workers.batched_inference import BatchedInference


class VariableActor(ActorWorker):
    """A round: ``round_steps`` of whichever splits are ready for one, unless ``round_ends`` says so
    before, after so many. Then all rollouts are handed over, and the next round begins when all
    slots are free again, after the update.

    A fast split fills several slots in a round, a slow one a part of one; each hands over at least
    one, if only an empty one. A step that is under way when the round ends goes on through the
    update. It counts in the next round, as the first one of its rollout, with the action, log-prob
    and policy version of when it began: the ratio says what it is worth under the newer policy.
    (Were it dropped, then the slowest steps would be, again and again.)

    ``parts`` are those of `ActorWorker`, with `ThreadedVector`, `BatchedInference` and slots that
    are ``variable``: those that ``round_steps`` fill, and one per split, which it may have open.
    """

    _inference: BatchedInference

    def __init__(
        self, *parts: Any, round_steps: int, round_ends: Callable[[int], bool] = never
    ) -> None:
        super().__init__(*parts)
        self._round_steps = round_steps
        self._round_ends = round_ends

    def start(self) -> None:
        self._sampling = False
        self._taken = 0
        self._under_way: dict[int, dict[str, npt.NDArray[Any]]] = {}
        self._sent: dict[int, float] = {}
        super().start()

    def step(self) -> bool:
        self._answer()
        moved = super().step()
        if self._sampling and self._round_ends(self._taken):
            self._end_round()
            moved = True
        return moved

    def alive_at(self) -> float:
        """When the oldest step began that is not done."""
        busy = [self._sent[s.index] for s in self._splits if s.stepping and not s.env.ready]
        return min(busy, default=time())

    def _answer(self) -> None:
        """Actions for all who wait; but a step that is under way has its own."""
        started = perf_counter()
        self._inference.answer()
        slots = self._exchange.slots
        for index, columns in list(self._under_way.items()):
            slot = self._splits[index].slot
            if slot is not None and self._inference.is_answered(index):
                for name, column in columns.items():
                    slots.arrays[name][slot, 0] = column
                del self._under_way[index]
        taken = perf_counter() - started
        self._count["infer_s"] += taken
        self._count["step_s"] += taken

    def _advance(self, split: Split) -> bool:
        if split.stepping and split.slot is None:
            return self._begin(split)
        if split.stepping and not (split.env.ready and self._inference.is_answered(split.index)):
            return False
        return super()._advance(split)

    def _is_next(self, split: Split) -> bool:
        """There is a slot for everybody: nobody waits for whoever has begun fewer rollouts, which
        fast splits would do at the beginning of a round, and miss a short one."""
        return True

    def _begin(self, split: Split) -> bool:
        if not self._sampling and self._exchange.fill()[0] < 1.0:
            return False
        if not super()._begin(split):
            return False
        if not self._sampling:
            self._sampling, self._taken = True, 0
        slots, rows = self._exchange.slots, split.env.num_rows
        assert slots.env_row is not None and slots.ends_batch is not None
        slots.env_row[split.slot] = split.index * rows + np.arange(rows)
        slots.ends_batch[split.slot] = False
        return True

    def _act(self, split: Split) -> bool:
        self._sent[split.index] = time()
        return super()._act(split)

    def _next(self, split: Split) -> bool:
        self._taken += 1
        if self._taken < self._round_steps:
            return super()._next(split)
        split.valuing = False
        split.t += 1
        if split.t < self._exchange.slots.shape.rollout:
            self._ask(split)
        self._end_round()
        return True

    def _end_round(self) -> None:
        """Every open rollout ends with the last step that is done. Its value is there: whoever is
        not stepping was asked for actions, and whoever is had been."""
        self._answer()
        self._sampling = False
        slots = self._exchange.slots
        assert slots.ends_batch is not None
        is_open = [split for split in self._splits if split.slot is not None]
        for split in is_open:
            slot, t = split.slot, split.t
            assert slot is not None
            if t < slots.shape.rollout:
                if split.stepping:
                    self._under_way[split.index] = self._action_at(slot, t)
                self._inference.state[split.index] = split.before
                end_rollout(slots, slot, t)
            slots.ends_batch[slot] = split is is_open[-1]
            self._hand_over(split)

    def _action_at(self, slot: int, t: int) -> dict[str, npt.NDArray[Any]]:
        """What was decided there; its value is asked for anew."""
        slots = self._exchange.slots
        names = [*(f"action/{name}" for name in slots.actions), "log_prob", "version"]
        return {name: slots.arrays[name][slot, t].copy() for name in names}
