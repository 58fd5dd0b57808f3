"""A learner's work on the device as one CUDA graph, which is launched at once.

A graph repeats the same kernels on the same memory. So its inputs are copied into tensors that stay
in place, and everything that it reads or writes besides (weights, gradients, the optimiser's state)
must stay in place too. Python numbers, such as a clipping range, are fixed in the graph: work with
other numbers needs another graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch

from sampleforge.ops.tensors import mapped, tensors_of

MOST = 4
"""Graphs that are kept for inputs of different shapes, unless these stay in place. Each keeps the
memory of its work."""

Outputs = dict[str, torch.Tensor]
_Graph = tuple[Any, Callable[[], None], Outputs]
"""The inputs that stay in place, the function that repeats the work, and its results."""


class Graphs(Protocol):
    """A device that can record work and repeat it."""

    def record(self, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        """Record ``work`` without doing it. Return the function that does it, and the tensors that
        hold its results afterwards."""


class CudaGraphs:
    """The graphs of a CUDA device. ``generators``: those that recorded work may draw from; each
    replay goes on with them.

    Each graph has memory and a stream of its own, so that one can be dropped while others live:
    what graphs share is freed, or counted as gone, with the first of them."""

    def __init__(self, device: torch.device, *generators: torch.Generator) -> None:
        self._device = device
        self._generators = generators

    def record(self, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        graph: Any = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        stream: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        # Other threads go on copying to the device: only calls of this thread are checked.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            results = work()
        return graph.replay, results


class CapturedWork:
    """``work(inputs)`` from a graph, if the inputs have the same shapes as those before.

    The inputs are a dataclass of tensors, and of dicts and dataclasses of them; with ``in_place``
    those of the same shapes are always the same object. ``work`` may not wait for the device, and
    may draw random numbers only from generators that ``graphs`` knows; its results are valid until
    the next call. ``fixed()`` returns the values that are fixed in a graph; where they change, all
    graphs are dropped. Inputs of new shapes are worked on eagerly, so that the libraries choose
    their kernels; a graph is recorded when inputs of the same shapes follow, or in place when they
    come again.
    """

    def __init__(
        self,
        work: Callable[[Any], Outputs],
        graphs: Graphs,
        fixed: Callable[[], Hashable] = lambda: None,
        *,
        in_place: bool = False,
    ) -> None:
        self._work = work
        self._graphs = graphs
        self._fixed = fixed
        self._in_place = in_place
        self._valid_for: Hashable = None
        self._seen: set[Hashable] = set()  # the inputs in place, else the latest shapes
        self._captured: dict[Hashable, _Graph] = {}  # the graph that was used last at the end

    def __call__(self, inputs: Any) -> Outputs:
        """Return what ``work`` returns for ``inputs``."""
        if (fixed := self._fixed()) != self._valid_for:
            self._captured.clear()
            self._valid_for = fixed
            self._seen.clear()
        key: Hashable = id(inputs)
        if not self._in_place:
            values = tensors_of(inputs)
            key = tuple((value.shape, value.dtype) for value in values)
        again = key in self._seen
        if not self._in_place:
            self._seen.clear()
        self._seen.add(key)
        captured = self._captured.pop(key, None)
        if captured is None:
            if not again:
                return self._work(inputs)
            captured = self._capture(inputs)
        self._captured[key] = captured
        if not self._in_place:
            for place, value in zip(tensors_of(captured[0]), values, strict=True):
                place.copy_(value, non_blocking=True)
        _, replay, outputs = captured
        replay()
        return outputs

    def _capture(self, inputs: Any) -> _Graph:
        while len(self._captured) >= MOST and not self._in_place:
            del self._captured[next(iter(self._captured))]
        places = inputs if self._in_place else mapped(inputs, _copy)
        return places, *self._graphs.record(lambda: self._work(places))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)
