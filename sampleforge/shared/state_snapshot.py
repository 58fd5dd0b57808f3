"""The newest complete state of a learner, in shared memory, where it outlives the learner's
process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch

from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.halves import COUNTS, Halves

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
