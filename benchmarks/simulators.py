"""The speed of the simulators alone: random actions, no network, in one process and in two, each
kept on a core of its own.

It is the upper limit of any sampler on this machine. Actions are drawn beforehand; resets are
included.

    taskset -c 0,1 python benchmarks/simulators.py --seconds 5
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
from machine import describe, pin, table

Step = Callable[[], int]
"""Steps the simulator once and says how many env steps that was."""


def single(env_id: str) -> Step:
    """One gymnasium env, through `gymnasium.make`, reset by us."""
    import gymnasium

    env: gymnasium.Env[Any, Any] = gymnasium.make(env_id)
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = iter_for_ever([env.action_space.sample() for _ in range(1024)])

    def step() -> int:
        _, _, terminated, truncated, _ = env.step(next(actions))
        if terminated or truncated:
            env.reset()
        return 1

    return step


def vector(env_id: str, rows: int) -> Step:
    """The vector env written in numpy that gymnasium has for a few of its own."""
    import gymnasium

    env = gymnasium.make_vec(env_id, rows, vectorization_mode="vector_entry_point")
    return step_of_vector(env)


def atari(game: str, rows: int) -> Step:
    """ALE's C++ vector env with one thread: 84x84 greyscale, 4 stacked, frame skip 4."""
    import ale_py

    return step_of_vector(ale_py.AtariVectorEnv(game, rows, num_threads=1))


def step_of_vector(env: Any) -> Step:
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = iter_for_ever([env.action_space.sample() for _ in range(256)])

    def step() -> int:
        env.step(next(actions))
        return int(env.num_envs)

    return step


def minatar(game: str) -> Step:
    """MinAtar's own interface, observation included."""
    from minatar import Environment

    env = Environment(game)
    env.seed(0)
    env.reset()
    count = env.num_actions()
    actions = iter_for_ever(np.random.default_rng(0).integers(count, size=1024).tolist())

    def step() -> int:
        _, terminated = env.act(next(actions))
        if terminated:
            env.reset()
        env.state()
        return 1

    return step


def iter_for_ever(values: list[Any]) -> Iterator[Any]:
    while True:
        yield from values


CASES: dict[str, tuple[Callable[[], Step], int]] = {
    "cartpole-single": (lambda: single("CartPole-v1"), 1),
    "cartpole-vector": (lambda: vector("CartPole-v1", 32), 1),
    "halfcheetah": (lambda: single("HalfCheetah-v5"), 1),
    "breakout-ale": (lambda: atari("breakout", 16), 4),
    "minatar-breakout": (lambda: minatar("breakout"), 1),
}
"""How to make it, and the frames of an env step."""


_start: Barrier
"""Holds the processes of one measurement until all have warmed up; set in each by its pool."""


def share(start: Barrier) -> None:
    global _start
    _start = start


def measure(index: int, case: str, seconds: float) -> float:
    """Env steps per second of one process, after a warm-up and together with the others."""
    pin(index)
    step = CASES[case][0]()
    warm = time.perf_counter() + seconds / 5
    while time.perf_counter() < warm:
        step()
    _start.wait(timeout=60)
    begin, steps = time.perf_counter(), 0
    while (now := time.perf_counter()) < begin + seconds:
        steps += step()
    return steps / (now - begin)


def rate(case: str, processes: int, seconds: float) -> float:
    """Env steps per second of all processes together."""
    context = multiprocessing.get_context("spawn")
    arguments = (context.Barrier(processes),)
    with ProcessPoolExecutor(processes, context, initializer=share, initargs=arguments) as pool:
        futures = [pool.submit(measure, index, case, seconds) for index in range(processes)]
        return sum(future.result() for future in futures)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all")
    parser.add_argument("--seconds", type=float, default=5.0, help="per case, after a warm-up")
    args = parser.parse_args()
    unknown = [case for case in args.cases if case not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    print(describe("gymnasium", "ale-py", "mujoco", "MinAtar", "numpy"), end="\n\n")
    rows = []
    for case in args.cases or CASES:
        one, two = (rate(case, processes, args.seconds) for processes in (1, 2))
        rows.append([case, f"{one:,.0f}", f"{two:,.0f}", f"{two * CASES[case][1]:,.0f}"])
    header = ["simulator", "one process, env steps/s", "two processes", "frames/s"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
