"""Environments whose code changes settings of its whole process, or asks it to end."""

from __future__ import annotations

import io
import logging
import logging.config
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.support.envs import CodeEnv

CHANGES: dict[str, Callable[[], object]] = {
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "grad": lambda: torch.set_grad_enabled(False),
    "threads": lambda: torch.set_num_threads(7),
    "numpy": lambda: np.seterr(all="raise"),
    "logging": lambda: logging.disable(logging.CRITICAL),
    "loggers": lambda: logging.config.dictConfig({"version": 1}),
    "folder": lambda: os.chdir("/"),
    "stdout": lambda: setattr(sys, "stdout", io.StringIO()),
    "warnings": lambda: warnings.simplefilter("error"),
    "signals": lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    "seeds": lambda: (random.seed(0), np.random.seed(0), torch.manual_seed(0)),
}


class ImpoliteEnv(CodeEnv):
    """Does ``change``, one or more of `CHANGES` with a + between them, in ``where``: "init",
    "reset" or "step". With ``expect``, its steps fail unless they find torch's defaults so."""

    def __init__(self, change: str = "", where: str = "init", expect: bool = False) -> None:
        super().__init__()
        self.changes, self.where, self.expect = change.split("+"), where, expect
        self._do("init")

    def _do(self, where: str) -> None:
        if where == self.where:
            for change in filter(None, self.changes):
                CHANGES[change]()

    def reset(self, **kwargs: Any) -> Any:
        self._do("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self.expect:
            made = torch.zeros(1)
            assert made.dtype is torch.float64 and made.device.type == "meta", made
            assert not torch.is_grad_enabled() and np.geterr()["under"] == "raise"
            assert os.getcwd() == "/" and not logging.getLogger().isEnabledFor(logging.CRITICAL)
        self._do("step")
        return super().step(action)


def _raise(error: BaseException, cause: BaseException | None = None) -> None:
    raise error from cause


ENDS: dict[str, Callable[[], object]] = {
    "SystemExit": lambda: _raise(SystemExit(3)),
    "KeyboardInterrupt": lambda: _raise(KeyboardInterrupt()),
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
