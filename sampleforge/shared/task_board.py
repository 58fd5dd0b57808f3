"""The task of a curriculum in shared memory: the session writes it, environments of all processes
read it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from sampleforge.config import ConfigError
from sampleforge.shared.arrays import SharedArrays

CAPACITY = 1 << 16
"""Largest size of a task, in bytes of JSON."""


class TaskBoard:
    """The newest task and its number. It has one writer and no lock: the text of a task is in the
    half that its number does not share with the task before, so that a reader that was overtaken
    notices it. It can be pickled to child processes."""

    def __init__(self) -> None:
        self._arrays = SharedArrays(
            {
                "number": ((1,), "int64"),
                "size": ((2,), "int64"),
                "text": ((2, CAPACITY), "uint8"),
            }
        )

    @property
    def number(self) -> int:
        """Number of the newest task, from 1; 0 if none has been set."""
        return int(self._arrays["number"][0])

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
        if len(text) > CAPACITY:
            raise ConfigError(
                f"the task {task!r:.80} has {len(text):,} bytes as JSON, but may have "
                f"{CAPACITY:,}; let it name what the environment loads itself"
            )
        number = self.number + 1
        half = number % 2
        self._arrays["text"][half, : len(text)] = np.frombuffer(text, np.uint8)
        self._arrays["size"][half] = len(text)
        self._arrays["number"][0] = number  # last: it makes the task the newest

    def read(self) -> tuple[int, Any]:
        """Return the number and the newest task; (0, None) if none has been set."""
        while number := self.number:
            half = number % 2
            text = self._arrays["text"][half, : int(self._arrays["size"][half])].tobytes()
            if self.number == number:
                return number, json.loads(text)
        return 0, None
