"""The newest weights of one policy in shared memory, from its learner to the workers that act with
them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.halves import COUNTS, Halves
from sampleforge.shared.staging import page_lock, wait_for_copies


class SharedWeights:
    """All tensors of a model's state_dict in two `Halves`: there is no lock and no torn read.

    There is one writer and any number of readers. It can be pickled to child processes.
    """

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        layout: dict[str, tuple[tuple[int, ...], str]] = {
            **COUNTS,
            "versions": ((2,), "int64"),
        }
        for half in (0, 1):
            for name, tensor in state.items():
                dtype = str(tensor.dtype).removeprefix("torch.")
                layout[f"{half}/{name}"] = (tuple(tensor.shape), dtype)
        self._names = list(state)
        self._arrays = SharedArrays(layout)
        self._halves = Halves(self._arrays)

    def publish(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """Make ``state`` (the constructor's names and shapes, any device) the newest weights."""
        half = self._halves.begin()
        device = self._reach(state)
        for name in self._names:
            self._arrays.tensor(f"{half}/{name}").copy_(state[name], non_blocking=True)
        wait_for_copies(device)
        self._arrays["versions"][half] = version
        self._halves.publish()

    @property
    def published(self) -> int:
        """Number of publications so far."""
        return self._halves.published

    @property
    def version(self) -> int:
        """Policy version of the newest weights."""
        return self._halves.read(self._version)[1]

    def scalar(self, name: str) -> float:
        """Return the newest value of the scalar tensor [] ``name`` among the weights."""
        return self._halves.read(lambda half: float(self._arrays.tensor(f"{half}/{name}")))[1]

    def read(self, into: Mapping[str, torch.Tensor]) -> tuple[int, int]:
        """Copy the newest weights into the tensors of ``into`` (same names; any device).

        Returns (publication count, policy version) of what was copied.
        """
        device = self._reach(into)

        def copy(half: int) -> int:
            for name in self._names:
                into[name].copy_(self._arrays.tensor(f"{half}/{name}"), non_blocking=True)
            wait_for_copies(device)
            return self._version(half)

        return self._halves.read(copy)

    def _version(self, half: int) -> int:
        return int(self._arrays["versions"][half])

    def _reach(self, state: Mapping[str, torch.Tensor]) -> torch.device:
        """Return the device of ``state``, after page-locking this memory if it is a CUDA device, so
        that copies need not be waited for one by one."""
        device = state[self._names[0]].device
        if device.type == "cuda":
            page_lock(self._arrays.buffer)
        return device
