"""Environments whose code ends its process, or tries to. A probe imports them: without torch, which
would take a second each time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from tests.support.envs import CodeEnv


def _raise(error: BaseException, cause: BaseException | None = None) -> None:
    raise error from cause


ENDS: dict[str, Callable[[], object]] = {
    "SystemExit": lambda: _raise(SystemExit(3)),
    "KeyboardInterrupt": lambda: _raise(KeyboardInterrupt()),
    "GeneratorExit": lambda: _raise(GeneratorExit()),
    "ValueError": lambda: _raise(ValueError("no such level"), KeyError("level 7")),
    "exit": lambda: os._exit(3),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda: time.sleep(100),
}


class EndingEnv(CodeEnv):
    """Does in ``where``, which is "init", "reset", "step" or "close", what ``raises`` says: one of
    `ENDS`; from the step ``after`` of its life on."""

    def __init__(self, raises: str, where: str, after: int = 0) -> None:
        super().__init__()
        self.raises, self.where, self.after, self.taken = raises, where, after, 0
        self._do("init")

    def _do(self, where: str) -> None:
        if where == self.where and self.taken >= self.after:
            ENDS[self.raises]()

    def reset(self, **kwargs: Any) -> Any:
        self._do("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.taken += 1
        self._do("step")
        return super().step(action)

    def close(self) -> None:
        self._do("close")
