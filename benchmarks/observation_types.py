"""One task in observations of every type and layout: what is learned must not depend on them.

    python benchmarks/observation_types.py [--cases NAME ...] [--seeds 1 2 3]

A step shows a number from 0 to 3, the right action is that number, and an episode has 20 steps: a
random policy gets 5, the best 20. As a vector the number is two of eight bits, each of which is one
of two values of the type; as an image it is the corner where a square lies. Each case is trained by
APPO's defaults through the command line, in one process, and 100 greedy episodes are played. It
prints a line for each run and then a table; results/encodings.md is a record of one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

HERE = Path(__file__).resolve().parent
LENGTH, BITS, SIDE, BOARD = 20, 8, 36, 10
VECTORS: dict[str, tuple[float, float]] = {
    "float32": (1000, 1300),
    "float64": (1000, 1300),
    "int8": (40, 100),
    "int16": (1000, 1300),
    "int32": (1000, 1300),
    "int64": (1000, 1300),
    "uint8": (100, 160),
    "uint16": (1000, 1300),
    "uint32": (1000, 1300),
    "bool": (0, 1),
}
"""Type of a vector -> the two values of a bit."""
IMAGES: dict[str, tuple[str, tuple[int, ...], float]] = {
    "float32 HWC in [0, 1]": ("float32", (SIDE, SIDE, 3), 1),
    "float32 CHW in [0, 255]": ("float32", (3, SIDE, SIDE), 255),
    "uint8 HWC": ("uint8", (SIDE, SIDE, 3), 255),
    "uint8 CHW": ("uint8", (3, SIDE, SIDE), 255),
    "uint8 HW": ("uint8", (SIDE, SIDE), 255),
    "uint8 SHWC": ("uint8", (2, SIDE, SIDE, 3), 255),
    "uint8 SCHW": ("uint8", (2, 3, SIDE, SIDE), 255),
}
"""Name of an image -> its type, its shape and its largest bound."""
PLANES: dict[str, tuple[str, tuple[int, ...], float]] = {
    "float32 board": ("float32", (BOARD, BOARD, 12), 1),
    "bool board": ("bool", (BOARD, BOARD, 12), 1),
    "uint8 board": ("uint8", (BOARD, BOARD, 12), 1),
    "uint8 board CHW": ("uint8", (12, BOARD, BOARD), 1),
    "bool board HW": ("bool", (BOARD, BOARD), 1),
}
"""Name of a board -> its type, its shape and its largest bound."""
GROUPS: dict[str, dict[str, Any]] = {"vector": VECTORS, "image": IMAGES, "planes": PLANES}
STEPS = {"vector": 20_000, "image": 80_000, "planes": 20_000}
"""Env steps of a training."""


class Numbers(gym.Env[Any, Any]):
    """The task, in the observations of one case."""

    def __init__(self, case: str) -> None:
        self.action_space = spaces.Discrete(4)
        self._is_vector = case in VECTORS
        if self._is_vector:
            self._dtype = np.dtype(case)
            self._shape: tuple[int, ...] = (BITS,)
            self._values = VECTORS[case]
            low, high = limits(self._dtype)
        else:
            name, self._shape, high = (IMAGES | PLANES)[case]
            self._dtype, low = np.dtype(name), 0
            self._values = (0, high)
        lows, highs = (np.full(self._shape, each, self._dtype) for each in (low, high))
        kind: Any = self._dtype  # gymnasium's annotations do not have bool
        self.observation_space = spaces.Box(lows, highs, dtype=kind)
        self._number = self._time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._number)
        self._time += 1
        return self._shown(), reward, self._time == LENGTH, False, {}

    def _shown(self) -> Any:
        """Draw the next number, and return its observation."""
        self._number = int(self.np_random.integers(4))
        obs = np.full(self._shape, self._values[0], self._dtype)
        if self._is_vector:
            bits = self.np_random.random(BITS) < 0.5
            bits[:2] = self._number & 1, self._number >> 1
            obs[bits] = self._values[1]
            return obs
        sizes = [i for i, size in enumerate(self._shape) if size in (SIDE, BOARD)]
        half = self._shape[sizes[0]] // 2
        at = [slice(None)] * len(self._shape)
        for axis, bit in zip(sizes, (self._number & 1, self._number >> 1), strict=True):
            first = bit * half + int(self.np_random.integers(half // 2))
            at[axis] = slice(first, first + half // 2)
        obs[tuple(at)] = self._values[1]
        return obs


def limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the bounds of a type: none for floats."""
    if dtype.kind == "f":
        return -np.inf, np.inf
    if dtype.kind == "b":
        return False, True
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def make(case: str) -> gym.Env[Any, Any]:
    return Numbers(case)


def learned(case: str, steps: int, seed: int) -> tuple[float, str]:
    """Return the mean return of a trained policy, and the line that says how the leaf is
    encoded."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        train = [
            "train.py",
            "appo",
            "--env",
            "observation_types:make",
            "--env-kwargs",
            f"case={case}",
        ]
        train += ["--serial", "--train-for-env-steps", str(steps), "--seed", str(seed)]
        log = output([str(HERE.parent / train[0]), *train[1:], "--run-dir", run])
        played = output(["-m", "sampleforge", "eval", run, "--episodes", "100", "--trust"])
    how = next(line for line in log.splitlines() if line.startswith("Observation obs"))
    return float(json.loads(played.splitlines()[-1])["return_mean"]), how


def output(command: list[str]) -> str:
    """Return what a Python command prints; it runs in this folder, where this module is."""
    done = subprocess.run([sys.executable, *command], cwd=HERE, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", help="names of cases, or of groups of them")
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    args = parser.parse_args()
    rows = []
    for group, cases in GROUPS.items():
        first: float | None = None
        for case in cases:
            if args.cases and not {case, group} & {*args.cases}:
                continue
            found = [learned(case, STEPS[group], seed) for seed in args.seeds]
            returns = [mean for mean, _ in found]
            print(f"{case}: {returns}, {found[0][1]}", flush=True)
            mean = statistics.mean(returns)
            first = mean if first is None else first
            each = ", ".join(f"{value:.2f}" for value in returns)
            rows.append(f"| {group} | {case} | {mean:.2f} | {each} | {mean / first - 1:+.1%} |")
    print("\n| group | case | mean | each seed | against float32 |\n| :- | :- | -: | -: | -: |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
