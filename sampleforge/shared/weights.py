"""The newest weights of one policy in shared memory, from its learner to the workers that act with
them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.staging import page_lock, wait_for_copies


class SharedWeights:
    """Two copies (halves) of all tensors of a model's state_dict in shared memory.

    The learner writes the half that is not in use and then announces it; readers copy the announced
    half. The publication after next overwrites the half that a reader copies, and the writer
    announces that in ``begun`` *before* it begins. A reader checks ``begun`` after its copy and
    copies again if it was overtaken. (The published count alone would not show a write in
    progress.) There is no lock and no torn read.

    There is one writer and any number of readers. It can be pickled to child processes.
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
        """Number of publications so far."""
        return int(self._arrays["published"][0])

    @property
    def version(self) -> int:
        """Policy version of the newest weights."""
        return int(self._arrays["versions"][self.published % 2])

    def scalar(self, name: str) -> float:
        """Return the newest value of the scalar tensor [] ``name`` among the weights."""
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
        """Return the device of ``state``, after page-locking this memory if it is a CUDA device, so
        that copies need not be waited for one by one."""
        device = state[self._names[0]].device
        if device.type == "cuda":
            page_lock(self._arrays.buffer)
        return device
