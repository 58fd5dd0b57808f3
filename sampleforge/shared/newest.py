"""The newest complete value of something in shared memory: the weights of a policy, the state of a
learner, the task of a curriculum. Each is in two `Halves`, without a lock."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import safetensors.torch
import torch

from sampleforge.config import ConfigError
from sampleforge.shared.arrays import Layout, SharedArrays
from sampleforge.shared.staging import page_lock, wait_for_copies

T = TypeVar("T")

COUNTS: Layout = {"begun": ((1,), "int64"), "published": ((1,), "int64")}
"""The arrays that `Halves` needs."""


class Halves:
    """The protocol of a value with two halves. ``arrays`` hold `COUNTS` beside the halves.

    The writer fills the half that is not in use and then announces it; readers copy the announced
    half. The publication after next overwrites the half that a reader copies, and the writer
    announces that in ``begun`` *before* it begins. A reader checks ``begun`` after its copy and
    copies again if it was overtaken. (The published count alone would not show a write in
    progress.) There is no lock and no torn read. If the writer is killed, the announced half is
    complete, and its successor writes the other half from the beginning.

    There is one writer at a time and any number of readers.
    """

    def __init__(self, arrays: SharedArrays) -> None:
        self._arrays = arrays

    @property
    def published(self) -> int:
        """Number of publications so far; half ``published % 2`` is the newest."""
        return int(self._arrays["published"][0])

    def begin(self) -> int:
        """Return the half (0 or 1) to write. Called by the writer."""
        count = self.published + 1
        self._arrays["begun"][0] = count
        return count % 2

    def publish(self) -> None:
        """Make the half of `begin` the newest one. Called by the writer."""
        self._arrays["published"][0] = self.published + 1

    def read(self, copy: Callable[[int], T]) -> tuple[int, T]:
        """Return the number of publications and what ``copy(half)`` returned for the newest half.
        ``copy`` is called again if the half was overwritten meanwhile."""
        while True:
            count = self.published
            copied = copy(count % 2)
            if int(self._arrays["begun"][0]) < count + 2:
                return count, copied


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


_PER_TENSOR = 1024
"""Bytes reserved per tensor, for its entry in the header."""
_OTHERS = 64 << 10
"""Bytes reserved for random generators, running statistics and plain values."""


class StateSnapshot:
    """The result of `Learner.state` in two `Halves`, so that one of them is always complete.

    There is one writer at a time and any number of readers. It can be pickled to child processes.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Reserve memory for states as large as that of a new learner, which are ``tensors``."""
        own = tensors.values()
        self.room = sum(t.nbytes for t in own) + _PER_TENSOR * len(own) + _OTHERS
        self._arrays = SharedArrays(
            {
                **COUNTS,
                "versions": ((2,), "int64"),
                "sizes": ((2,), "int64"),
                "0": ((self.room,), "uint8"),
                "1": ((self.room,), "uint8"),
            }
        )
        self._halves = Halves(self._arrays)

    @property
    def nbytes(self) -> int:
        return self._arrays.nbytes

    @property
    def version(self) -> int:
        """Policy version of the newest state; -1 before the first one."""
        count, version = self._halves.read(lambda half: int(self._arrays["versions"][half]))
        return version if count else -1

    def publish(self, tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any]) -> None:
        """Make this state the newest one; ``plain`` holds its ``version``. Raises ValueError if the
        state does not fit."""
        data = safetensors.torch.save(dict(tensors), {"plain": json.dumps(plain)})
        if len(data) > self.room:
            raise ValueError(f"a learner's state has {len(data)} bytes, but room for {self.room}")
        half = self._halves.begin()
        self._arrays.tensor(str(half))[: len(data)] = torch.frombuffer(
            bytearray(data), dtype=torch.uint8
        )
        self._arrays["sizes"][half] = len(data)
        self._arrays["versions"][half] = plain["version"]
        self._halves.publish()

    def read(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the newest state as it was published. Raises LookupError if there is none."""
        count, data = self._halves.read(self._copy)
        if not count:
            raise LookupError("no state was published yet")
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return safetensors.torch.load(data), json.loads(header["__metadata__"]["plain"])

    def _copy(self, half: int) -> bytes:
        return self._arrays[str(half)][: int(self._arrays["sizes"][half])].tobytes()


TASK_BYTES = 1 << 16
"""Largest size of a task, in bytes of JSON."""


class TaskBoard:
    """The newest task of a curriculum, and its number: the session writes it, environments of all
    processes read it. It can be pickled to child processes."""

    def __init__(self) -> None:
        self._arrays = SharedArrays(
            {**COUNTS, "size": ((2,), "int64"), "text": ((2, TASK_BYTES), "uint8")}
        )
        self._halves = Halves(self._arrays)

    @property
    def number(self) -> int:
        """Number of the newest task, from 1; 0 if none has been set."""
        return self._halves.published

    def set(self, task: Any) -> None:
        """Set the newest task. Raises ConfigError for a value that JSON does not have, or that is
        too large."""
        try:
            text = json.dumps(task, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the task {task!r:.80} cannot be kept in checkpoints: {error}; a task consists of "
                "numbers, strings, true, false, None, lists and dicts with strings as keys"
            ) from error
        if len(text) > TASK_BYTES:
            raise ConfigError(
                f"the task {task!r:.80} has {len(text):,} bytes as JSON, but may have "
                f"{TASK_BYTES:,}; let it name what the environment loads itself"
            )
        half = self._halves.begin()
        self._arrays["text"][half, : len(text)] = np.frombuffer(text, np.uint8)
        self._arrays["size"][half] = len(text)
        self._halves.publish()

    def read(self) -> tuple[int, Any]:
        """Return the number and the newest task; (0, None) if none has been set."""
        number, text = self._halves.read(self._copy)
        return number, json.loads(text) if number else None

    def _copy(self, half: int) -> bytes:
        return self._arrays["text"][half, : int(self._arrays["size"][half])].tobytes()
