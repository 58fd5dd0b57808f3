"""Environments whose code changes settings of its whole process."""

from __future__ import annotations

import io
import logging
import logging.config
import os
import random
import signal
import sys
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
