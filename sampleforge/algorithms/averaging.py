"""Averaging of gradients and statistics over the ranks that learn the same policy.

Each of N ranks with B rows takes the step that one rank with N * B rows would take: sums are
weighted by the rows that count, and operations that are nonlinear in the rows (variances, clipping,
Adam) come after the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from sampleforge.algorithms.flat_parameters import Chunk, FlatParameters
from sampleforge.ops.running_stats import alone
from sampleforge.peers.group import RankGroup

BUCKET_BYTES = 4 << 20
"""Size of a bucket. Its all-reduce begins as soon as all its gradients are complete, and overlaps
with the rest of the backward pass. Below a few MiB the latency of messages outweighs that."""


class Averaging:
    """A learner's exchange with the other ranks: none, for a single rank, which has all rows. All
    ranks call the same methods in the same order. ``solo``: whether there are no other ranks."""

    solo = True

    @property
    def ranks(self) -> int:
        """Number of ranks, with this one."""
        return 1

    def follow(self, flat: FlatParameters) -> None:
        """Prepare for the averaging of the gradients of ``flat``. A learner with several optimisers
        follows the parameters of each, one after the other."""

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return the ``values`` [k] of every rank as float64 [ranks, k], the same on all ranks."""
        return alone(values.double())

    def backward(
        self,
        flat: FlatParameters,
        loss: torch.Tensor,
        metrics: dict[str, torch.Tensor],
        weight: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        """Set the gradients of ``flat`` to those of the loss over all ranks' rows; return the
        metrics over all ranks' rows. A gradient that is not finite on one rank is not finite on any
        rank. To those of other parameters that the loss depends on, this rank's are added.

        ``loss`` and ``metrics`` (detached) are means over this rank's rows, and ``weight`` is the
        fraction (0 to 1) of all rows that these are."""
        self.clear(flat)
        loss.backward()  # type: ignore[no-untyped-call]
        return metrics

    def clear(self, flat: FlatParameters, terms: int = 1) -> None:
        """Set the gradients to zero, before the caller computes those of this rank's rows, in so
        many backward passes, one for each of the loss's ``terms``."""
        flat.zero_gradient()

    def finish(self, flat: FlatParameters) -> None:
        """Make the gradients, which the caller has computed since `clear`, sums over all ranks."""


class DataParallel(Averaging):
    """The averaging of one of several ranks, through its `RankGroup`. A new ``group`` may be set
    between two updates."""

    solo = False

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self._buckets: dict[FlatParameters, GradientBuckets] = {}

    @property
    def ranks(self) -> int:
        return self.group.size

    def follow(self, flat: FlatParameters) -> None:
        self._buckets[flat] = GradientBuckets(flat, lambda part: self.group.all_reduce(part))

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        return self.group.all_gather(values)

    def backward(
        self,
        flat: FlatParameters,
        loss: torch.Tensor,
        metrics: dict[str, torch.Tensor],
        weight: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        means = torch.stack([m.double() for m in metrics.values()]) * weight
        self.clear(flat)
        wait_for_means = self.group.all_reduce(means)
        (loss * weight).backward()  # type: ignore[no-untyped-call]
        self.finish(flat)
        wait_for_means()
        return dict(zip(metrics, means.unbind(), strict=True))

    def clear(self, flat: FlatParameters, terms: int = 1) -> None:
        self._buckets[flat].clear(terms)

    def finish(self, flat: FlatParameters) -> None:
        self._buckets[flat].finish()


class GradientBuckets:
    """Parts (buckets) of a flat gradient, each all-reduced as one message.

    If there are several, the all-reduce of a bucket begins as soon as its last gradient is
    complete, in the order of the buckets, which is the same on all ranks. A parameter that a loss
    does not depend on contributes zeros; one that only some of its terms depend on keeps its bucket
    and those after it until the end. Gradients that arrive outside `clear` and `finish`, of the
    loss of other parameters, send nothing.
    """

    def __init__(
        self,
        flat: FlatParameters,
        all_reduce: Callable[[torch.Tensor], Callable[[], None]],
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._parameters = flat
        self._all_reduce = all_reduce
        buckets = [b for chunk in flat.chunks for b in _buckets(chunk, bucket_bytes)]
        self._flat = [gradient for _, gradient in buckets]
        self._sizes = [len(parameters) for parameters, _ in buckets]
        if len(buckets) > 1:
            for number, (parameters, _) in enumerate(buckets):
                arrived = partial(self._arrived, number)
                for parameter in parameters:
                    parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]
        self._expects = False

    def clear(self, terms: int = 1) -> None:
        """Set all gradients to zero; call it before the backward passes, of which there are
        ``terms``."""
        self._expects = True
        self._missing = [terms * size for size in self._sizes]
        self._waits: list[Callable[[], None]] = []
        self._parameters.zero_gradient()

    def finish(self) -> None:
        """Wait until the gradients are sums over the ranks; call it after the backward passes."""
        self._expects = False
        for flat in self._flat[len(self._waits) :]:
            self._waits.append(self._all_reduce(flat))
        for wait in self._waits:
            wait()

    def _arrived(self, number: int, _: torch.Tensor) -> None:
        if not self._expects:
            return
        self._missing[number] -= 1
        while len(self._waits) < len(self._flat) and not self._missing[len(self._waits)]:
            self._waits.append(self._all_reduce(self._flat[len(self._waits)]))


def _buckets(chunk: Chunk, limit: int) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
    """Return the parameters of a chunk and the part of its gradient that is theirs, divided into
    buckets of at most ``limit`` bytes (a larger parameter has a bucket to itself), the last
    parameters first: backward passes complete their gradients first."""
    buckets: list[list[torch.Tensor]] = []
    room = 0
    for parameter in reversed(chunk.parameters):
        room -= parameter.nbytes
        if room < 0:
            buckets.append([])
            room = limit - parameter.nbytes
        buckets[-1].append(parameter)
    sizes = [sum(p.numel() for p in bucket) for bucket in buckets]
    parts = torch.split(chunk.gradient, sizes[::-1])[::-1]
    return list(zip(buckets, parts, strict=True))
