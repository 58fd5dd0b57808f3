"""How gradients and statistics are shared between ranks that learn the same policy, or are not.

Of N ranks with B rows each, every one takes the step that one rank with N * B rows would take: sums
are weighted by the rows that count, and what is nonlinear in the rows (variances, clipping, Adam)
comes after the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import torch

from sampleforge.algos.appo import LossOutput
from sampleforge.distributed.group import RankGroup
from sampleforge.ops.running_stats import alone

BUCKET_BYTES = 4 << 20
"""A bucket's all-reduce begins when all its gradients are there, beside the rest of the backward
pass; below a few MiB the messages' latency outweighs that."""


class Averaging(Protocol):
    """What a learner shares with the other ranks. All call the same methods in the same order."""

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        """The parameters whose gradients are to be averaged."""

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """What every rank has: [k] here -> float64 [ranks, k], the same on all."""

    def backward(self, output: LossOutput) -> dict[str, torch.Tensor]:
        """Set the parameters' gradients to those of the loss over all ranks' rows; returns the
        metrics over all of them. A gradient that is not finite on one rank is so on all."""


class Local:
    """One rank with all the rows."""

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = list(parameters)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        return alone(values.double())

    def backward(self, output: LossOutput) -> dict[str, torch.Tensor]:
        for parameter in self._parameters:
            parameter.grad = None
        output.loss.backward()  # type: ignore[no-untyped-call]
        return output.metrics


class DataParallel:
    """One of several ranks; see `RankGroup`. ``group`` may be replaced between two updates."""

    def __init__(self, group: RankGroup) -> None:
        self.group = group

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        self._buckets = GradientBuckets(parameters, lambda flat: self.group.add(flat))

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        return self.group.gather(values)

    def backward(self, output: LossOutput) -> dict[str, torch.Tensor]:
        means = torch.stack([m.double() for m in output.metrics.values()]) * output.weight
        self._buckets.clear()
        means_are_there = self.group.add(means)
        (output.loss * output.weight).backward()  # type: ignore[no-untyped-call]
        self._buckets.finish()
        means_are_there()
        return dict(zip(output.metrics, means.unbind(), strict=True))


class GradientBuckets:
    """Gradients as views into a few flat tensors, each summed over the ranks as one message.

    A bucket's sum begins as soon as its last gradient is there, in the order of the buckets, which
    is the same on all ranks. A parameter that had no part in a loss takes part with zeros.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        add: Callable[[torch.Tensor], Callable[[], None]],
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._add = add
        self._flat: list[torch.Tensor] = []
        self._sizes: list[int] = []
        # Backward passes come to the last parameters first.
        for number, bucket in enumerate(_buckets(list(parameters)[::-1], bucket_bytes)):
            flat = torch.zeros(sum(p.numel() for p in bucket), device=bucket[0].device)
            views = torch.split(flat, [p.numel() for p in bucket])
            for parameter, view in zip(bucket, views, strict=True):
                parameter.grad = view.view_as(parameter)
                arrived = partial(self._arrived, number)
                parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]
            self._flat.append(flat)
            self._sizes.append(len(bucket))
        self.clear()

    def clear(self) -> None:
        """Before each backward pass."""
        self._missing = list(self._sizes)
        self._waits: list[Callable[[], None]] = []
        for flat in self._flat:
            flat.zero_()

    def finish(self) -> None:
        """After each backward pass: the gradients are then the sums over the ranks."""
        for flat in self._flat[len(self._waits) :]:
            self._waits.append(self._add(flat))
        for wait in self._waits:
            wait()

    def _arrived(self, number: int, _: torch.Tensor) -> None:
        self._missing[number] -= 1
        while len(self._waits) < len(self._flat) and not self._missing[len(self._waits)]:
            self._waits.append(self._add(self._flat[len(self._waits)]))


def _buckets(parameters: list[torch.Tensor], limit: int) -> list[list[torch.Tensor]]:
    """The parameters in order, cut into runs of at most ``limit`` bytes (or a single one)."""
    found: list[list[torch.Tensor]] = []
    room = 0
    for parameter in parameters:
        room -= parameter.nbytes
        if room < 0:
            found.append([])
            room = limit - parameter.nbytes
        found[-1].append(parameter)
    return found
