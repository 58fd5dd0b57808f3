"""The gradient steps of an update as one graph; see `sampleforge.algos.captured`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import torch

from sampleforge.algos.captured import CapturedWork, Graphs, Outputs
from sampleforge.algos.experience import Experience


@dataclass(frozen=True)
class DrawnSteps:
    """The steps of an update: the ``experience``, and for each epoch the ``order`` (int64 [epochs,
    n]) of its rows or of its single steps; n = 0: each minibatch is the whole experience. ``rate``
    (float32 []) is the learning rate."""

    experience: Experience
    order: torch.Tensor
    rate: torch.Tensor

    def minibatches(self, size: int, *, whole_rows: bool) -> Iterator[Experience]:
        """Yield the minibatches of ``size`` env steps, as
        `sampleforge.algos.experience.minibatches` does."""
        experience = self.experience
        per = size // experience.reward.shape[0] if whole_rows else size
        for order in self.order.unbind():
            if not len(order):
                yield experience
                continue
            for index in torch.split(order, per):
                yield experience.rows(index) if whole_rows else experience.steps(index)


class GraphedSteps:
    """Takes all steps of an update as one graph. ``step(minibatch, rate)`` takes one and returns
    its metrics; ``fixed()``: the hyperparameters, which are fixed in a graph."""

    def __init__(
        self,
        step: Callable[[Experience, torch.Tensor], Outputs],
        graphs: Graphs,
        fixed: Callable[[], Hashable],
    ) -> None:
        self._step = step
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
    ) -> list[Outputs]:
        """Take the steps of all minibatches, in an order that ``generator`` draws; return the
        metrics of each."""
        self._size, self._whole_rows = size, whole_rows
        rollout, rows = experience.reward.shape
        device = experience.reward.device
        count = rows if whole_rows else rollout * rows
        if size >= rollout * rows and whole_rows:
            count = 0
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
        columns = self._captured(drawn)
        names = list(columns)
        steps = zip(*(columns[name].unbind() for name in names), strict=True)
        return [dict(zip(names, step, strict=True)) for step in steps]

    def _take(self, drawn: DrawnSteps) -> Outputs:
        parts = drawn.minibatches(self._size, whole_rows=self._whole_rows)
        per_step = [self._step(part, drawn.rate) for part in parts]
        return {name: torch.stack([of[name] for of in per_step]) for name in per_step[0]}
