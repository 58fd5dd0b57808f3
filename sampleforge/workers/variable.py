"""The actor of variable experience rollout (VER, Wijmans et al. 2022, arXiv 2210.05064)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sampleforge.workers.actor import never
from sampleforge.workers.callback import WorkerCallbacks
from sampleforge.workers.inference import LocalInference
from sampleforge.workers.ready import ReadyActor
from sampleforge.workers.split import Split
from sampleforge.workers.stream import PolicyPort


class VariableActor(ReadyActor):
    """An actor that samples in rounds of ``round_steps`` steps, taken by the splits that are ready.

    Its splits step independently of each other. ``round_ends(steps)`` may end a round earlier. At
    the end of a round all rollouts are handed over. The next round begins when all slots are free
    again, after the update.

    A fast split fills several slots in a round, a slow one only a part of one; each split hands
    over at least one, which may be empty. A step that is in progress when the round ends continues
    during the update. It counts in the next round, as the first one of its rollout, with the
    action, log-probability and policy version of its beginning, and the importance ratio weights it
    under the newer policy. (If such steps were dropped, they would always be the slowest ones.)

    ``args`` are the arguments of `ActorWorker`, with `ThreadedVector` environments and one port,
    which has `LocalInference` and ``variable`` slots: as many as ``round_steps`` steps fill, and
    one more per split, for its incomplete rollout.
    """

    def __init__(
        self,
        *args: Any,
        round_steps: int,
        round_ends: Callable[[int], bool] = never,
        callbacks: WorkerCallbacks | None = None,
    ) -> None:
        super().__init__(*args, callbacks=callbacks, late=math.inf)
        (port,) = self._ports  # a rank has one policy
        assert isinstance(port, PolicyPort) and isinstance(port.inference, LocalInference)
        self._exchange = port.exchange
        self._round_steps = round_steps
        self._round_ends = round_ends

    def start(self) -> None:
        self._sampling = False
        self._taken = 0
        super().start()

    def step(self) -> bool:
        moved = super().step()
        if self._sampling and self._round_ends(self._taken):
            self._end_round()
            moved = True
        return moved

    def _is_next(self, split: Split) -> bool:
        """Return True, because there is a slot for every split. If fast splits waited for those
        with fewer rollouts at the beginning of a round, they would miss a short round."""
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
        slots.env_row[split.stream.slot] = split.index * rows + np.arange(rows)
        slots.ends_batch[split.stream.slot] = False
        return True

    def _next(self, split: Split) -> bool:
        self._taken += 1
        if self._taken < self._round_steps:
            return super()._next(split)
        stream = split.stream
        stream.valuing = False
        stream.t += 1
        if stream.t < stream.slots.shape.rollout:
            self._ask(split)
        self._end_round()
        return True

    def _end_round(self) -> None:
        """End every open rollout with its last complete step. The value for the bootstrap is in the
        slot, because every split has requested actions for the observation after that step."""
        self._answer()
        self._sampling = False
        slots = self._exchange.slots
        assert slots.ends_batch is not None
        is_open = [split for split in self._splits if split.stream.slot is not None]
        for split in is_open:
            slot, t = split.stream.slot, split.stream.t
            assert slot is not None
            if t < slots.shape.rollout:
                self._end_early(split)
            slots.ends_batch[slot] = split is is_open[-1]
            self._hand_over(split)
