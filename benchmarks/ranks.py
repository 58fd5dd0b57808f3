"""DD-PPO with environments that sleep, as simulators on another device do: scaling over ranks, the
gain of pre-emption if some rank is slow, and returns with and without it.

    taskset -c 0,1 python benchmarks/ranks.py scaling --out benchmarks/results
    taskset -c 0,1 python benchmarks/ranks.py stragglers --step-ms 2 --rollout 128 --seconds 40 \\
        --out benchmarks/results
    taskset -c 0,1 python benchmarks/ranks.py learning --out benchmarks/results
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import setproctitle
from gymnasium import spaces

HERE = Path(__file__).resolve().parent
ROWS = 4
RANKS = (1, 2, 4, 8, 16)
WAITING, PREEMPTING = "waiting", "pre-empting"
WAYS: dict[str, dict[str, float]] = {
    WAITING: {"sync_fraction": 1.0, "max_rollout_fraction": 1.0},
    "pre-empting, early ranks wait": {"max_rollout_fraction": 1.0},
    PREEMPTING: {},
}
"""Flags. The second is the paper's pre-emption, the third the default: early ranks go on."""
CASES: dict[str, dict[str, float]] = {
    "even": {},
    "one of 4 ranks 4x slower": {"slow": 4.0},
    "Pareto step times, shape 2.5": {"tail": 2.5},
    "Pareto step times, shape 1.5": {"tail": 1.5},
}
"""Settings of the environment for 4 ranks."""
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
    """An environment whose steps only sleep."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, sleep: float, slow: float = 1.0, tail: float = 0.0) -> None:
        self.sleep = Sleep(sleep, slow, tail)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.sleep(self.np_random)
        return np.zeros(4, np.float32), float(action), False, False, {}


class SlowCartPole(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 whose steps also sleep."""

    def __init__(self, sleep: float, slow: float = 1.0, tail: float = 0.0) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.sleep = Sleep(sleep, slow, tail)

    def step(self, action: Any) -> Any:
        self.sleep(self.np_random)
        return self.env.step(action)


@dataclass(frozen=True)
class Measured:
    """``rate``: env steps learned from per second, once all ranks work. ``possible``: what the same
    ranks at the same speeds could make of it if none ever waited for another. Per update of a rank:
    rollouts that were cut short; milliseconds in all, from an update to complete rollouts, waiting
    for other ranks (part of "learn" and what follows it), of processor time, in each stage."""

    rate: float
    possible: float
    cut: float
    update_ms: float
    rollout_ms: float
    wait_ms: float
    cpu_ms: float
    stages_ms: dict[str, float]

    @property
    def lost(self) -> float:
        """Return the fraction of the possible rate that waiting has cost in this run."""
        return 1 - self.rate / self.possible


def measured(first: Mapping[str, float], last: Mapping[str, float], ranks: int) -> Measured:
    """Return the figures of the time between two reports, each just after an update, to which
    "cpu_s" was added."""

    def each(name: str) -> list[float]:
        return [last[f"rank{r}_{name}"] - first[f"rank{r}_{name}"] for r in range(ranks)]

    def stage_ms(report: Mapping[str, float], name: str) -> float:
        """Return the milliseconds of a stage, summed over the ranks."""
        return report[f"stage_{name}_us"] * report["env_steps"] / 1e3

    updates, wall = last["updates"] - first["updates"], last["wall_s"] - first["wall_s"]
    rank_updates, waits = updates * ranks, each("wait_s")
    return Measured(
        rate=sum(each("steps")) / wall,
        possible=sum(n / (wall - w) for n, w in zip(each("steps"), waits, strict=True)),
        cut=sum(each("preempted")) / updates,
        update_ms=1e3 * wall / updates,
        rollout_ms=1e3 * sum(each("rollout_s")) / rank_updates,
        wait_ms=1e3 * sum(waits) / rank_updates,
        cpu_ms=1e3 * (last["cpu_s"] - first["cpu_s"]) / rank_updates,
        stages_ms={n: (stage_ms(last, n) - stage_ms(first, n)) / rank_updates for n in STAGES},
    )


def measure(ranks: int, seconds: float, rollout: int, way: str, **env_kwargs: Any) -> Measured:
    """A run of so many ``seconds``, and until its next update."""
    from sampleforge.api import Trainer
    from sampleforge.models.config import ModelConfig
    from sampleforge.topologies.config import DdppoConfig

    with tempfile.TemporaryDirectory() as folder:
        config = DdppoConfig(
            env="ranks:SleepEnv",
            env_kwargs=env_kwargs,
            num_ranks=ranks,
            num_envs_per_worker=ROWS,
            rollout=rollout,
            minibatch_size=ROWS * rollout,
            num_epochs=1,
            model=ModelConfig(separate_critic=False),
            device="cpu",
            max_episode_steps=1000,
            decorrelate=False,
            report_interval=0.1,
            train_for_seconds=3600,
            run_dir=folder,
            seed=1,
            quiet=True,
            **WAYS[way],  # type: ignore[arg-type]
        )
        first: dict[str, float] | None = None
        latest: dict[str, float] | None = None
        updates = 2.0
        # It says on standard output that it is finished, and where: of no interest here.
        with contextlib.redirect_stdout(io.StringIO()), Trainer(config) as trainer:
            for report in trainer:
                if latest is not None:  # the other ranks have counted that update as well by now
                    latest |= {name: n for name, n in report.items() if name.startswith("rank")}
                    first = first or latest
                    if latest["wall_s"] - first["wall_s"] >= seconds:
                        return measured(first, latest, ranks)
                    latest = None
                if report["updates"] > updates:  # of two ends, both are just after an update
                    latest, updates = report, report["updates"]
                    latest["cpu_s"] = processor_seconds()
    raise AssertionError("it is stopped by time only")


def processor_seconds() -> float:
    """Return the processor seconds of all ranks since their start."""
    children = psutil.Process().children(recursive=True)
    ranks = [c for c in children if " ".join(c.cmdline()).startswith("sampleforge: rank")]
    return sum(sum(rank.cpu_times()[:2]) for rank in ranks)


def scaling(
    seconds: float, rollout: int, step_ms: float, repeats: int
) -> dict[str, dict[int, Measured]]:
    """Return the measurements by way and number of ranks."""
    ways = (WAITING, PREEMPTING)
    runs: dict[tuple[str, int], list[Measured]] = {}
    for _ in range(repeats):  # in turns: the machine's moods are shared out
        for way in ways:
            for ranks in RANKS:
                found = measure(ranks, seconds, rollout, way, sleep=step_ms / 1e3)
                runs.setdefault((way, ranks), []).append(found)
    return {
        way: {ranks: median(runs[way, ranks], key=lambda run: run.rate) for ranks in RANKS}
        for way in ways
    }


def median(runs: list[Measured], key: Callable[[Measured], float]) -> Measured:
    return sorted(runs, key=key)[len(runs) // 2]


def stragglers(
    seconds: float, rollout: int, step_ms: float, repeats: int
) -> dict[str, dict[str, Measured]]:
    """For each of `CASES` and `WAYS`. Environments' seeds are the same, so that all runs of a case
    draw the same step times."""
    runs: dict[tuple[str, str], list[Measured]] = {}
    for _ in range(repeats):
        for case, kwargs in CASES.items():
            for way in WAYS:
                found = measure(4, seconds, rollout, way, sleep=step_ms / 1e3, **kwargs)
                runs.setdefault((case, way), []).append(found)
    return {
        case: {way: median(runs[case, way], key=lambda run: run.lost) for way in WAYS}
        for case in CASES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["scaling", "stragglers", "learning"])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--step-ms", type=float, default=10.0, help="of sleep; not of learning")
    parser.add_argument("--rollout", type=int, default=32, help="not of learning")
    parser.add_argument("--repeats", type=int, default=3, help="of each, of which the median")
    parser.add_argument("--seeds", type=int, default=2, help="of learning")
    parser.add_argument("--out", type=Path, metavar="DIR", help="draw PNGs here (matplotlib)")
    args = parser.parse_args()
    # The processes import this file by name, whatever directory they run in.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    import ranks_learning
    import ranks_report as report

    print(report.heading())
    if args.what == "scaling":
        found = scaling(args.seconds, args.rollout, args.step_ms, args.repeats)
        report.scaling(found, args.step_ms, args.out)
    elif args.what == "stragglers":
        runs = stragglers(args.seconds, args.rollout, args.step_ms, args.repeats)
        report.stragglers(runs, f"sleep {args.step_ms:g} ms per step on average", args.out)
    else:
        report.learning(ranks_learning.learning(args.seeds), args.out)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
