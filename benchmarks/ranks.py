"""DD-PPO with environments that sleep, as simulators on another device do: how it scales over
ranks, what pre-emption recovers where some rank is slow, and what is learned meanwhile.

    taskset -c 0,1 python benchmarks/ranks.py scaling --out benchmarks/results
    taskset -c 0,1 python benchmarks/ranks.py stragglers --out benchmarks/results
    taskset -c 0,1 python benchmarks/ranks.py learning --out benchmarks/results
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import setproctitle
from gymnasium import spaces

HERE = Path(__file__).resolve().parent
ROWS, ROLLOUT = 4, 32
RANKS = (1, 2, 4, 8, 16)
SPEEDS: dict[str, tuple[dict[str, float], float]] = {
    "even": ({}, 1.0),
    "one of 4 ranks 4x slower": ({"slow": 4.0}, 3.25 / 4),
    "Pareto step times, shape 2.5": ({"tail": 2.5}, 1.0),
}
"""Settings of the environment for 4 ranks, and their speed together against even ones."""
STAGES = ("env", "infer", "batch", "learn", "publish")


class Sleep:
    """Takes ``seconds``; in rank 0 ``slow`` times as many; with ``tail`` Pareto distributed of that
    shape, with the same mean. Nothing in a process that is no rank."""

    def __init__(self, seconds: float, slow: float, tail: float) -> None:
        title = setproctitle.getproctitle()
        self.seconds = seconds * (slow if title.endswith("rank 0") else 1.0) * ("rank" in title)
        self.tail = tail

    def __call__(self, random: np.random.Generator) -> None:
        factor = (self.tail - 1) * float(random.pareto(self.tail)) if self.tail else 1.0
        time.sleep(self.seconds * factor)


class SleepEnv(gym.Env[Any, Any]):
    """Does nothing but to take its time."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, sleep: float = 0.004, slow: float = 1.0, tail: float = 0.0) -> None:
        self.sleep = Sleep(sleep, slow, tail)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.sleep(self.np_random)
        return np.zeros(4, np.float32), float(action), False, False, {}


class SlowCartPole(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 whose steps take their time."""

    def __init__(self, sleep: float, slow: float = 1.0, tail: float = 0.0) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.sleep = Sleep(sleep, slow, tail)

    def step(self, action: Any) -> Any:
        self.sleep(self.np_random)
        return self.env.step(action)


@dataclass(frozen=True)
class Measured:
    """``rate``: env steps per second once all ranks work. The others per update of a rank:
    rollouts that were cut short; milliseconds in all, from an update to complete rollouts, waiting
    for other ranks (part of "learn" and what follows it), of processor time, in each stage."""

    rate: float
    cut: float
    update_ms: float
    rollout_ms: float
    wait_ms: float
    cpu_ms: float
    stages_ms: dict[str, float]


def measured(first: Mapping[str, float], last: Mapping[str, float], ranks: int) -> Measured:
    """Of the time between two reports, to which "cpu_s" was added."""

    def ms(report: Mapping[str, float], name: str) -> float:
        """In all ranks together."""
        if name in STAGES:
            return report[f"stage_{name}_us"] * report["env_steps"] / 1e3
        return 1e3 * sum(report[f"rank{rank}_{name}"] for rank in range(ranks))

    updates, wall = last["updates"] - first["updates"], last["wall_s"] - first["wall_s"]
    each = {
        name: (ms(last, name) - ms(first, name)) / updates / ranks
        for name in (*STAGES, "rollout_s", "wait_s")
    }
    return Measured(
        rate=(last["env_steps"] - first["env_steps"]) / wall,
        cut=sum(last[f"rank{rank}_preempted"] for rank in range(ranks)) / last["updates"],
        update_ms=1e3 * wall / updates,
        rollout_ms=each["rollout_s"],
        wait_ms=each["wait_s"],
        cpu_ms=1e3 * (last["cpu_s"] - first["cpu_s"]) / updates / ranks,
        stages_ms={name: each[name] for name in STAGES},
    )


def measure(ranks: int, seconds: float, sync_fraction: float = 1.0, **env_kwargs: Any) -> Measured:
    """A run of so many ``seconds``, and until its next update."""
    from sampleforge.api import Trainer
    from sampleforge.topologies.config import DdppoConfig

    with tempfile.TemporaryDirectory() as folder:
        config = DdppoConfig(
            env="ranks:SleepEnv",
            env_kwargs=env_kwargs,
            num_ranks=ranks,
            num_envs_per_worker=ROWS,
            rollout=ROLLOUT,
            num_epochs=1,
            device="cpu",
            max_episode_steps=1000,
            decorrelate=False,
            report_interval=0.1,
            train_for_seconds=3600,
            run_dir=folder,
            seed=1,
            quiet=True,
            sync_fraction=sync_fraction,
        )
        first: dict[str, float] | None = None
        updates = 2.0
        with Trainer(config) as trainer:
            for report in trainer:
                if report["updates"] <= updates:  # of two ends, both are just after an update
                    continue
                report["cpu_s"] = processor_seconds()
                first, updates = first or report, report["updates"]
                if report["wall_s"] - first["wall_s"] >= seconds:
                    return measured(first, report, ranks)
    raise AssertionError("it is stopped by time only")


def processor_seconds() -> float:
    """Of all ranks since they began."""
    children = psutil.Process().children(recursive=True)
    ranks = [c for c in children if " ".join(c.cmdline()).startswith("sampleforge: rank")]
    return sum(sum(rank.cpu_times()[:2]) for rank in ranks)


def scaling(seconds: float, step_ms: float) -> dict[int, Measured]:
    return {ranks: measure(ranks, seconds, sleep=step_ms / 1e3) for ranks in RANKS}


def stragglers(seconds: float, fractions: tuple[float, ...]) -> dict[str, dict[float, Measured]]:
    """For each of `SPEEDS` a run per ``--sync-fraction``; 1 is waiting."""
    return {
        case: {fraction: measure(4, seconds, fraction, **kwargs) for fraction in fractions}
        for case, (kwargs, _) in SPEEDS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["scaling", "stragglers", "learning"])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--step-ms", type=float, default=10.0, help="of sleep; scaling only")
    parser.add_argument("--seeds", type=int, default=3, help="of learning")
    parser.add_argument("--out", type=Path, metavar="DIR", help="draw PNGs here (matplotlib)")
    args = parser.parse_args()
    # The processes import this file by name, whatever directory they run in.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    import ranks_learning
    import ranks_report as report

    print(report.heading())
    if args.what == "scaling":
        report.scaling(scaling(args.seconds, args.step_ms), args.step_ms, args.out)
    elif args.what == "stragglers":
        report.stragglers(stragglers(args.seconds, (1.0, 0.6, 0.25)), SPEEDS, args.out)
    else:
        report.learning(ranks_learning.learning(args.seeds), args.out)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
