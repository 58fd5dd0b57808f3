"""How long a command takes to its first env step, and from its last env step to its exit.

The environments write the times of their steps into files; the command is what a user types, with
all its processes, folders and checkpoints.

    python benchmarks/start_end.py --repeats 5
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from machine import describe, table

HERE = Path(__file__).resolve().parent
ALGOS: dict[str, list[str]] = {
    "appo": [],
    "apex": ["--learning-starts", "1000"],
    "ddppo": ["--num-ranks", "2"],
}


class Stamped(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps the times of its first and its latest step in a file of its own in ``folder``, if a
    worker steps it: the probe of an environment takes steps, too, before a run starts."""

    def __init__(self, env: gym.Env[Any, Any], folder: str) -> None:
        super().__init__(env)
        self._times: Any = None
        if multiprocessing.current_process().name.startswith("sampleforge"):
            name = f"{os.getpid()}-{id(self)}"
            self._times = np.memmap(Path(folder) / name, np.float64, "w+", shape=(2,))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._times is not None:
            self._times[1] = time.time()
            self._times[0] = self._times[0] or self._times[1]
        return super().step(action)


def stamped(env_id: str, folder: str) -> gym.Env[Any, Any]:
    """Return the environment ``env_id`` as a `Stamped` one."""
    return Stamped(gym.make(env_id), folder)


def measure(algo: str, env_id: str, steps: int) -> tuple[float, float]:
    """Return the seconds from the command to the first env step, and from the last one to the end
    of the command."""
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder) / "stamps"
        stamps.mkdir()
        command = [
            *(sys.executable, str(HERE.parent / "train.py"), algo, "--quiet", "--device", "cpu"),
            *("--env", "benchmarks.start_end:stamped", "--run-dir", f"{folder}/run"),
            *("--env-kwargs", f"env_id={env_id}", f"folder={stamps}"),
            *("--train-for-env-steps", str(steps), *ALGOS[algo]),
        ]
        path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
        begun = time.time()
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
        ended = time.time()
        times = np.array([np.fromfile(file) for file in stamps.iterdir()])
    stepped = times[times[:, 0] > 0]
    return float(stepped[:, 0].min() - begun), float(ended - stepped[:, 1].max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--algos", nargs="+", choices=list(ALGOS), default=list(ALGOS))
    parser.add_argument("--envs", nargs="+", default=["CartPole-v1", "HalfCheetah-v5"])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(describe("torch", "gymnasium"), end="\n\n")
    rows = []
    for algo in args.algos:
        for env_id in args.envs:
            if algo == "apex" and env_id == "HalfCheetah-v5":
                continue  # Box actions
            found = [measure(algo, env_id, args.steps) for _ in range(args.repeats)]
            cells = [
                f"{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})"
                for each in zip(*found, strict=True)
            ]
            rows.append([algo, env_id, *cells])
    print(
        table(
            ["algorithm", "environment", "command to first step, s", "last step to exit, s"], rows
        )
    )


if __name__ == "__main__":
    main()
