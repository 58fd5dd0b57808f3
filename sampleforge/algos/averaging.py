"""Averaging of gradients and statistics over the ranks that learn the same policy.

Each of N ranks with B rows takes the step that one rank with N * B rows would take: sums are
weighted by the rows that count, and operations that are nonlinear in the rows (variances, clipping,
Adam) come after the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import torch

from sampleforge.distributed.group import RankGroup
from sampleforge.ops.running_stats import alone

BUCKET_BYTES = 4 << 20
"""Size of a bucket. Its all-reduce begins as soon as all its gradients are complete, and overlaps
with the rest of the backward pass. Below a few MiB the latency of messages outweighs that."""


class PartialLoss(Protocol):
    """The loss of this rank's part of a minibatch, and the fraction (0 to 1) of the whole minibatch
    that the part counts for. ``metrics`` are means like the loss, detached."""

    @property
    def loss(self) -> torch.Tensor: ...
    @property
    def metrics(self) -> dict[str, torch.Tensor]: ...
    @property
    def weight(self) -> torch.Tensor: ...


class Averaging(Protocol):
    """A learner's exchange with the other ranks. All ranks call the same methods in the same
    order. ``solo``: whether there are no other ranks."""

    solo: bool

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        """Set the parameters whose gradients are averaged."""

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return the ``values`` [k] of every rank as float64 [ranks, k], the same on all ranks."""

    def backward(self, output: PartialLoss) -> dict[str, torch.Tensor]:
        """Set the parameters' gradients to those of the loss over all ranks' rows; return the
        metrics over all ranks' rows. A gradient that is not finite on one rank is not finite on any
        rank."""


class Local:
    """The averaging of a single rank, which has all rows: it changes nothing."""

    solo = True

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = list(parameters)

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        return alone(values.double())

    def backward(self, output: PartialLoss) -> dict[str, torch.Tensor]:
        for parameter in self._parameters:
            parameter.grad = None
        output.loss.backward()  # type: ignore[no-untyped-call]
        return output.metrics


class DataParallel:
    """The averaging of one of several ranks, through its `RankGroup`. A new ``group`` may be set
    between two updates."""

    solo = False

    def __init__(self, group: RankGroup) -> None:
        self.group = group

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        self._buckets = GradientBuckets(parameters, lambda flat: self.group.all_reduce(flat))

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        return self.group.all_gather(values)

    def backward(self, output: PartialLoss) -> dict[str, torch.Tensor]:
        means = torch.stack([m.double() for m in output.metrics.values()]) * output.weight
        self._buckets.clear()
        wait_for_means = self.group.all_reduce(means)
        (output.loss * output.weight).backward()  # type: ignore[no-untyped-call]
        self._buckets.finish()
        wait_for_means()
        return dict(zip(output.metrics, means.unbind(), strict=True))


class GradientBuckets:
    """Gradients as views into a few flat tensors (buckets), each all-reduced as one message.

    The all-reduce of a bucket begins as soon as its last gradient is complete, in the order of the
    buckets, which is the same on all ranks. A parameter that a loss does not depend on contributes
    zeros.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        all_reduce: Callable[[torch.Tensor], Callable[[], None]],
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._all_reduce = all_reduce
        self._flat: list[torch.Tensor] = []
        self._sizes: list[int] = []
        # Backward passes complete the gradients of the last parameters first.
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
        """Set all gradients to zero; call it before each backward pass."""
        self._missing = list(self._sizes)
        self._waits: list[Callable[[], None]] = []
        for flat in self._flat:
            flat.zero_()

    def finish(self) -> None:
        """Wait until the gradients are sums over the ranks; call it after each backward pass."""
        for flat in self._flat[len(self._waits) :]:
            self._waits.append(self._all_reduce(flat))
        for wait in self._waits:
            wait()

    def _arrived(self, number: int, _: torch.Tensor) -> None:
        self._missing[number] -= 1
        while len(self._waits) < len(self._flat) and not self._missing[len(self._waits)]:
            self._waits.append(self._all_reduce(self._flat[len(self._waits)]))


def _buckets(parameters: list[torch.Tensor], limit: int) -> list[list[torch.Tensor]]:
    """Return the parameters in order, divided into buckets of at most ``limit`` bytes (a larger
    parameter has a bucket to itself)."""
    buckets: list[list[torch.Tensor]] = []
    room = 0
    for parameter in parameters:
        room -= parameter.nbytes
        if room < 0:
            buckets.append([])
            room = limit - parameter.nbytes
        buckets[-1].append(parameter)
    return buckets
