"""The newest weights of one policy, from its learner to everyone who acts with it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.staging import page_lock, wait_for_copies


class SharedWeights:
    """All tensors of a model's state_dict, twice, in shared memory.

    The learner writes the idle half and then announces it; readers copy the announced half. A
    reader that is overtaken while it copies notices and copies again: the half it reads is written
    anew only by the publication after next, and the writer says so *before* it begins (``begun``).
    Looking at the announced count alone would miss a write in progress. No lock, no torn read.

    One writer, any number of readers. Picklable to child processes.
    """

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        layout: dict[str, tuple[tuple[int, ...], str]] = {
            "begun": ((1,), "int64"),
            "published": ((1,), "int64"),
            "versions": ((2,), "int64"),
        }
        for half in (0, 1):
            for name, tensor in state.items():
                dtype = str(tensor.dtype).removeprefix("torch.")
                layout[f"{half}/{name}"] = (tuple(tensor.shape), dtype)
        self._names = list(state)
        self._arrays = SharedArrays(layout)

    def publish(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """Make ``state`` (the constructor's names and shapes, any device) the newest weights."""
        count = int(self._arrays["published"][0]) + 1
        half = count % 2
        self._arrays["begun"][0] = count
        device = self._reach(state)
        for name in self._names:
            self._arrays.tensor(f"{half}/{name}").copy_(state[name], non_blocking=True)
        wait_for_copies(device)
        self._arrays["versions"][half] = version
        self._arrays["published"][0] = count

    @property
    def published(self) -> int:
        """How often weights were published; 0 before the first time."""
        return int(self._arrays["published"][0])

    @property
    def version(self) -> int:
        """Policy version of the newest weights."""
        return int(self._arrays["versions"][self.published % 2])

    def scalar(self, name: str) -> float:
        """The newest value of a tensor [] among the weights."""
        return float(self._arrays.tensor(f"{self.published % 2}/{name}"))

    def read(self, into: Mapping[str, torch.Tensor]) -> tuple[int, int]:
        """Copy the newest weights into the tensors of ``into`` (same names; any device).

        Returns (publication count, policy version) of what was copied.
        """
        device = self._reach(into)
        while True:
            count = self.published
            half = count % 2
            for name in self._names:
                into[name].copy_(self._arrays.tensor(f"{half}/{name}"), non_blocking=True)
            wait_for_copies(device)
            version = int(self._arrays["versions"][half])
            if int(self._arrays["begun"][0]) < count + 2:
                return count, version

    def _reach(self, state: Mapping[str, torch.Tensor]) -> torch.device:
        """The device that ``state`` is on, which copies to or from here without being waited for
        tensor by tensor."""
        device = state[self._names[0]].device
        if device.type == "cuda":
            page_lock(self._arrays.buffer)
        return device
