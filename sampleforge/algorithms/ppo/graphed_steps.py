"""The gradient steps of an update as one graph; see `sampleforge.algorithms.captured`."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

from sampleforge.algorithms.captured import CapturedWork, Graphs, Outputs
from sampleforge.algorithms.experience import Experience
from sampleforge.algorithms.losses import Minibatches


@dataclass(frozen=True)
class DrawnSteps:
    """The steps of an update: the ``experience``, and for each epoch the ``order`` (int64 [epochs,
    n]) of its columns or of its single steps; n = 0: each minibatch is the whole experience.
    ``rate`` (float32 []) is the learning rate."""

    experience: Experience
    order: torch.Tensor
    rate: torch.Tensor

    def minibatches(self, size: int, *, whole_rows: bool) -> Minibatches:
        """Return the minibatches of ``size`` env steps, as `minibatch_positions` draws them."""
        per = size // self.experience.reward.shape[0] if whole_rows else size
        drawn: list[torch.Tensor | None] = []
        for order in self.order.unbind():
            drawn += torch.split(order, per) if len(order) else [None]
        return Minibatches(drawn, self.experience, whole_rows=whole_rows)


class GraphedSteps:
    """Takes all steps of an update as one graph. ``learn(experience, minibatches, rate)`` takes
    them and returns their metrics; ``fixed()``: the hyperparameters, which are fixed in a graph."""

    def __init__(
        self,
        learn: Callable[[Experience, Minibatches, torch.Tensor], Outputs],
        graphs: Graphs,
        fixed: Callable[[], Hashable],
    ) -> None:
        self._learn = learn
        self._captured = CapturedWork(self._take, graphs, fixed)

    def __call__(
        self,
        experience: Experience,
        rate: float,
        generator: torch.Generator,
        *,
        epochs: int,
        size: int,
        whole_rows: bool,
    ) -> tuple[int, Outputs]:
        """Take the steps of all minibatches, in an order that ``generator`` draws; return their
        number and their metrics."""
        self._size, self._whole_rows = size, whole_rows
        rollout, rows = experience.reward.shape
        device = experience.reward.device
        count, per = (rows, size // rollout) if whole_rows else (rollout * rows, size)
        if size >= rollout * rows and whole_rows:
            count, per = 0, 1
        on_host = torch.empty((epochs, count), dtype=torch.int64)
        for order in on_host if count else ():
            order.copy_(torch.randperm(count, generator=generator))
        if device.type == "cuda":
            on_host = on_host.pin_memory()
        drawn = DrawnSteps(
            experience,
            on_host.to(device, non_blocking=True),
            torch.full((), rate, device=device),
        )
        return epochs * max(1, math.ceil(count / per)), self._captured(drawn)

    def _take(self, drawn: DrawnSteps) -> Outputs:
        minibatches = drawn.minibatches(self._size, whole_rows=self._whole_rows)
        return self._learn(drawn.experience, minibatches, drawn.rate)
