"""DD-PPO with environments that sleep, as simulators on another device do: how it scales over
ranks, and what pre-emption recovers where some rank is slow.

    taskset -c 0,1 python benchmarks/ranks.py scaling
    taskset -c 0,1 python benchmarks/ranks.py stragglers
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import setproctitle
from gymnasium import spaces
from machine import describe, table

HERE = Path(__file__).resolve().parent
ROWS, ROLLOUT = 4, 32


class SleepEnv(gym.Env[Any, Any]):
    """A step takes ``sleep`` seconds; in rank 0 ``slow`` times as many; with ``tail`` Pareto
    distributed of that shape, with the same mean."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, sleep: float = 0.004, slow: float = 1.0, tail: float = 0.0) -> None:
        is_slow = setproctitle.getproctitle().endswith("rank 0")
        self.sleep, self.tail = sleep * (slow if is_slow else 1.0), tail

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        seconds = self.sleep
        if self.tail:
            seconds *= (self.tail - 1) * float(self.np_random.pareto(self.tail))
        time.sleep(seconds)
        return np.zeros(4, np.float32), float(action), False, False, {}


def measure(ranks: int, seconds: float, **settings: Any) -> tuple[float, float]:
    """(env steps per second once all ranks work, rollouts cut short per update of a rank)."""
    from sampleforge.api import Trainer
    from sampleforge.topologies.config import DdppoConfig

    env_kwargs = {k: settings.pop(k) for k in ("sleep", "slow", "tail") if k in settings}
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
            report_interval=0.25,
            train_for_seconds=3600,
            run_dir=folder,
            seed=1,
            quiet=True,
            **settings,
        )
        seen: list[tuple[float, float]] = []
        with Trainer(config) as trainer:
            for report in trainer:
                if report["updates"] < 3 * config.num_epochs:
                    continue
                seen.append((report["wall_s"], report["env_steps"]))
                if seen[-1][0] - seen[0][0] >= seconds:
                    break
        (begun, before), (ended, after) = seen[0], seen[-1]
        cut = sum(report[f"rank{r}_preempted"] for r in range(ranks)) / report["updates"]
        return (after - before) / (ended - begun), cut


def scaling(seconds: float) -> str:
    rows, one = [], 0.0
    for ranks in (1, 2, 4, 8, 16):
        rate, _ = measure(ranks, seconds, sleep=0.01, sync_fraction=1.0)
        one = one or rate
        rows.append([str(ranks), f"{rate:.0f}", f"{rate / one:.2f}", f"{rate / one / ranks:.0%}"])
    return table(["ranks", "env steps/s", "speed-up", "efficiency"], rows)


def stragglers(seconds: float) -> str:
    """``possible``: what the ranks could sample if none ever waited; ``cut short``: rollouts per
    update."""
    rows = []
    cases: dict[str, tuple[dict[str, float], float]] = {
        "one of 4 ranks 4x slower": ({"slow": 4.0}, 3.25 / 4),
        "Pareto step times, shape 2.5": ({"tail": 2.5}, 1.0),
    }
    even, _ = measure(4, seconds, sync_fraction=1.0)
    for case, (settings, speed) in cases.items():
        waiting, _ = measure(4, seconds, sync_fraction=1.0, **settings)
        cutting, cut = measure(4, seconds, sync_fraction=0.6, **settings)
        possible = even * speed
        recovered = (cutting - waiting) / (possible - waiting)
        rates = [f"{rate:.0f}" for rate in (possible, waiting, cutting)]
        rows.append([case, *rates, f"{recovered:.0%}", f"{cut:.2f}"])
    return table(
        ["env steps/s", "possible", "waiting", "pre-empting", "recovered", "cut short per update"],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["scaling", "stragglers"])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    print(describe("torch", "gymnasium"))
    print(scaling(args.seconds) if args.what == "scaling" else stragglers(args.seconds))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
