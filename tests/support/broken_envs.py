"""Environments with the faults that `sampleforge check-env` looks for."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from tests.support.envs import CodeEnv, Step


class LateFaultsEnv(CodeEnv):
    """Good for 100 steps of an instance. Then at step ``bounds`` an observation is out of its
    bounds, at each ``nan``-th it is not finite, and at each ``error``-th an error is raised."""

    observation_space = spaces.Box(-1000, 1000, (4,), np.float32)

    def __init__(self, bounds: int = 120, nan: int = 150, error: int = 400, **kwargs: Any) -> None:
        super().__init__(longest=50, **kwargs)
        self.bounds, self.nan, self.error, self.taken = bounds, nan, error, 0

    def step(self, action: Any) -> Step:
        self.taken += 1
        if self.taken % self.error == 0:
            raise ValueError("deliberate: late error")
        obs, *rest = super().step(action)
        if self.taken == self.bounds:
            obs[3] = 2000
        if self.taken % self.nan == 0:
            obs[2] = np.nan
        return (obs, *rest)  # type: ignore[return-value]


class CarelessEnv(CodeEnv):
    """Never ends, draws from a generator that nothing seeds, gives no reward, keeps ``leak`` bytes
    of each step, and leaves a process, a temporary file and one in the working directory."""

    # Pages that nothing has touched: small objects might take memory that the process has already.
    kept: ClassVar[Any] = np.zeros(2 << 30, np.uint8)
    num_kept: ClassVar[int] = 0
    engines: ClassVar[list[subprocess.Popen[bytes]]] = []

    def __init__(self, leak: int = 20_000) -> None:
        super().__init__(env_id=0, length=10**9)
        self.leak = leak
        self.engines.append(subprocess.Popen(["sleep", "60"]))
        os.close(tempfile.mkstemp(prefix="careless-")[0])
        with open("careless.log", "w") as file:
            file.write("here")

    def step(self, action: Any) -> Step:
        obs, _, terminated, truncated, info = super().step(action)
        begin = CarelessEnv.num_kept
        CarelessEnv.num_kept += self.leak
        self.kept[begin : begin + self.leak] = np.frombuffer(os.urandom(self.leak), np.uint8)
        obs[1] = np.random.default_rng().random()
        return obs, 0.0, terminated, truncated, info


class EndingEnv(CodeEnv):
    """Good for ``after`` steps, then it hangs or its process is killed (``how``)."""

    def __init__(self, how: str = "hangs", after: int = 300) -> None:
        super().__init__()
        self.how, self.left = how, after

    def step(self, action: Any) -> Step:
        self.left -= 1
        if self.left <= 0:
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(3600)
        return super().step(action)
