"""Acting for the rows of several requests at once, whose inputs and answers lie in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.algorithms.acting import Acted, Acting, Array, as_arrays
from sampleforge.algorithms.captured import CapturedWork, CudaGraphs, Graphs, Outputs
from sampleforge.ops.tensors import moved
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.shared.staging import page_locked, wait_for_copies

Places = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
"""Slots and time steps, int64 [n] each."""


@dataclass(frozen=True)
class Inputs:
    """What the rows of n requests act on, B = n * rows: host memory, which is used again."""

    obs: dict[str, torch.Tensor]  # [B, ...]
    state: torch.Tensor  # float32 [B, S]
    is_first: torch.Tensor  # bool [B]
    rows: torch.Tensor  # int64 [B], the numbers of the env rows in the run

    def first(self, count: int) -> Inputs:
        """Return the first ``count`` rows."""
        obs = {name: leaf[:count] for name, leaf in self.obs.items()}
        return Inputs(obs, self.state[:count], self.is_first[:count], self.rows[:count])


class StagedActing:
    """The policy ``acting`` for at most ``most`` requests at once, each with the rows of a slot of
    ``shape``.

    On a CUDA device inputs and answers lie in page-locked memory. From the second time on that a
    number of requests is answered, its copies to the device, its step and the copies back are
    launched at once, as a graph, if the policy has no recurrent core and `Acting.graphs` allows it;
    but not where the machine refuses to page-lock: a graph cannot copy from and to other memory.
    ``graphs``: in the place of the device's. ``spins``: the device is waited for in a loop.
    """

    def __init__(
        self,
        acting: Acting,
        shape: SlotShape,
        device: torch.device,
        most: int,
        graphs: Graphs | None = None,
        *,
        spins: bool = False,
    ) -> None:
        self._acting = acting
        self._per = shape.rows
        self._device = device
        self._spins = spins
        self._pins = device.type == "cuda"
        self._inputs = {most: _new_inputs(shape, most * shape.rows, device)}
        self._most = most
        locked = self._inputs[most].rows.is_pinned()
        self._answers: dict[int, Acted[torch.Tensor]] = {}  # the places of those of n rows
        self._arrays: dict[int, Acted[Array]] = {}  # the same places
        self._depends_on: object = None
        if graphs is None and locked and not shape.state_size and acting.graphs:
            graphs = CudaGraphs(device, acting.generator)
        self._captured: CapturedWork | None = None
        if graphs is not None:
            self._captured = CapturedWork(
                self._compute, graphs, lambda: self._depends_on, in_place=True
            )

    def at_once(self, waiting: int) -> int:
        """Return how many of the requests that wait are to be answered by one step: all, or as many
        as the largest power of two, so that there are graphs for few numbers only."""
        return waiting if self._captured is None else 1 << (waiting.bit_length() - 1)

    def inputs(self, requests: int) -> Inputs:
        """Return the memory for the inputs of ``requests`` requests: the same at each call."""
        if requests not in self._inputs:
            self._inputs[requests] = self._inputs[self._most].first(requests * self._per)
        return self._inputs[requests]

    def act(self, inputs: Inputs) -> Acted[Array]:
        """Return what `Acting.act` returns, as arrays that are valid until the next call."""
        self._depends_on = self._acting.begin(len(inputs.is_first))
        if self._captured is not None:
            self._captured(inputs)
        elif self._pins:
            self._compute(inputs)
        else:
            return as_arrays(self._step(inputs))
        wait_for_copies(self._device, spins=self._spins)
        return self._arrays[len(inputs.is_first)]

    def values(self, inputs: Inputs) -> Array:
        """Return what `Acting.values` returns, of ``obs`` and ``state`` of the inputs."""
        there = moved(inputs, self._device)
        values = self._acting.values(there.obs, there.state)
        wait_for_copies(self._device, spins=self._spins)  # the copy alone would wait in a loop
        found: Array = values.cpu().numpy()
        return found

    def _step(self, inputs: Inputs) -> Acted[torch.Tensor]:
        return self._acting.compute(inputs.obs, inputs.state, inputs.is_first, inputs.rows)

    def _compute(self, inputs: Inputs) -> Outputs:
        """Copy the inputs to the device, act, and copy the answers back, each to its place."""
        acted, count = self._step(moved(inputs, self._device)), len(inputs.is_first)
        if count not in self._answers:
            self._answers[count] = Acted(
                {name: self._place(leaf) for name, leaf in acted.actions.items()},
                {name: self._place(column) for name, column in acted.extras.items()},
                self._place(acted.state),
            )
            self._arrays[count] = as_arrays(self._answers[count])
        places = self._answers[count]
        for of, found in ((places.actions, acted.actions), (places.extras, acted.extras)):
            for name, tensor in found.items():
                of[name].copy_(tensor, non_blocking=True)
        places.state.copy_(acted.state, non_blocking=True)
        return {}

    def _place(self, answer: torch.Tensor) -> torch.Tensor:
        place = page_locked(torch.empty(answer.shape, dtype=answer.dtype), self._device)
        if self._pins and not place.is_pinned():
            self._captured = None
        return place


def gather(slots: TrajectorySlots, at: Places, inputs: Inputs) -> None:
    """Copy observations and beginnings at n places (slot, t) of the slots into the inputs."""
    for name, leaf in slots.obs.items():
        _take(leaf, at, inputs.obs[name])
    for name, stacks in slots.stacks.items():
        stacks.read_rows(*at, inputs.obs[name])
    _take(slots.first, at, inputs.is_first)


def scatter(slots: TrajectorySlots, at: Places, acted: Acted[Array]) -> None:
    """Write the actions and columns of n * rows rows to n places (slot, t)."""
    shape = len(at[0]), slots.shape.rows
    for columns, found in ((slots.actions, acted.actions), (slots.extras, acted.extras)):
        for name, answer in found.items():
            columns[name][at] = answer.reshape(*shape, *answer.shape[1:])


def fill(inputs: torch.Tensor, rows: Sequence[Array] | Array) -> None:
    """Copy arrays of n requests [n, rows, ...] into the inputs [n * rows, ...]."""
    blocks = np.asarray(rows)
    inputs.numpy().reshape(blocks.shape)[...] = blocks


def _take(column: npt.NDArray[np.generic], at: Places, into: torch.Tensor) -> None:
    """Copy ``column[at]``, blocks [n, rows, ...], into memory [n * rows, ...]."""
    slots, steps = column.shape[:2]
    flat = column.reshape(slots * steps, *column.shape[2:])
    blocks = into.numpy().reshape(len(at[0]), *column.shape[2:])
    flat.take(at[0] * steps + at[1], 0, blocks, "clip")  # without a buffer, unlike "raise"


def _new_inputs(shape: SlotShape, rows: int, device: torch.device) -> Inputs:
    def new(inner: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return page_locked(torch.zeros((rows, *inner), dtype=dtype), device)

    leaves = shape.spec.observations.items()
    return Inputs(
        {name: new(leaf.shape, getattr(torch, leaf.dtype)) for name, leaf in leaves},
        new((shape.state_size,), torch.float32),
        new((), torch.bool),
        new((), torch.int64),
    )
