"""How the sampler scales: over actors, by double buffering, over env rows; memory per actor.

The environments sleep, as simulators on another device do, or do nothing. Real processes,
--sampler-only, the stage times of --benchmark; no learner.

    taskset -c 0,1 python benchmarks/scaling.py --out benchmarks/results
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

from sampleforge.models.config import ModelConfig
from sampleforge.spec import ArraySpec

HERE = Path(__file__).resolve().parent
ACTORS = (1, 2, 4, 8, 16, 32, 64)
SLEEP_S = 0.02
"""Of a step in the scaling over actors."""
INFERENCE_S = 0.01
"""Of a forward pass in the double buffering: known to the encoder, which is given no settings."""
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class IdleEnv(VectorEnv[Any, Any, Any]):
    """A step of all rows together takes ``seconds`` of sleep, and no processor time."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (gymnasium's own way)

    def __init__(self, num_envs: int, seconds: float = 0.0, image: bool = False) -> None:
        self.num_envs, self.seconds = num_envs, seconds
        pixels = spaces.Box(0, 255, (4, 84, 84), np.uint8)
        self.single_observation_space: gym.Space[Any] = (
            pixels if image else spaces.Box(-1, 1, (4,), np.float32)
        )
        self.single_action_space: gym.Space[Any] = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        dtype = np.uint8 if image else np.float32
        self._obs = np.zeros(self.observation_space.shape or (), dtype)
        self._reward, self._never = np.ones(num_envs), np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self.seconds:
            time.sleep(self.seconds)
        return self._obs, self._reward, self._never, self._never, {}


class SleepEncoder(nn.Module):
    """An encoder that takes `INFERENCE_S` of sleep, and hardly any processor time."""

    def __init__(self, observations: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__()
        self.out_features = 4

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        time.sleep(INFERENCE_S)
        return obs["obs"]


def settings(workers: int, rows: int, splits: int = 1, **others: Any) -> Any:
    """The config of a run with ``rows`` rows per split."""
    from sampleforge.models.config import ModelConfig
    from sampleforge.topologies.config import AppoConfig

    return AppoConfig(
        env="benchmarks.scaling:IdleEnv",
        num_workers=workers,
        num_envs_per_worker=rows * splits,
        num_splits=splits,
        worker_niceness=0,  # no learner to give way to
        sampler_only=True,
        device="cpu",
        precision="fp32",
        seed=1,
        quiet=True,
        **{"rollout": 32, "model": ModelConfig(separate_critic=False), **others},
    )


def benchmark(
    seconds: float, workers: int, rows: int, splits: int = 1, **others: Any
) -> dict[str, Any]:
    """benchmark.json of a run with these `settings`, measured for so long; without the peak."""
    from sampleforge.cli.running import run

    others |= {"benchmark": True, "benchmark_peak": False, "benchmark_seconds": seconds}
    with tempfile.TemporaryDirectory() as folder:
        config = settings(workers, rows, splits, run_dir=folder, **others)
        with contextlib.redirect_stdout(io.StringIO()):
            code = run(config)
        if code:
            raise SystemExit(code)
        result: dict[str, Any] = json.loads((Path(folder) / "benchmark.json").read_text())
    return result


def stage(result: dict[str, Any], name: str) -> float:
    """Microseconds per env step of a stage of the actors' loop."""
    return next(float(s["us"]) for s in result["stages"] if s["name"] == name)


def over_actors(seconds: float, inference: str) -> list[tuple[float, ...]]:
    """(actors, env steps/s, efficiency against as many times one actor, cores used); one row per
    split, so that every env step is a split step; as many splits as are the default."""
    splits = 2 if inference == "worker" else 1
    found: list[tuple[float, ...]] = []
    sleeping = {"seconds": SLEEP_S}
    for actors in ACTORS:
        result = benchmark(seconds, actors, 1, splits, env_kwargs=sleeping, inference=inference)
        rate, one = result["sampled_per_s"], found[0][1] if found else result["sampled_per_s"]
        cores = sum(result["busy_cores"].values())
        found.append((actors, rate, rate / (one * actors), cores))
    return found


def overlap(seconds: float) -> list[tuple[float, ...]]:
    """(E / I as asked; ms per split step in the env (E), in the policy worker (I), in all with 1
    split, with 2; share of min(E, I) hidden): one actor, one policy worker. A split has 1 row in
    both. E and I are measured, with 1 split: a sleep takes some 0.3 ms longer than asked."""
    found: list[tuple[float, ...]] = []
    for ratio in RATIOS:
        one, two = (
            benchmark(
                seconds * max(1.0, ratio),  # whole steps are counted: enough of them
                1,
                1,
                splits,
                env_kwargs={"seconds": ratio * INFERENCE_S},
                inference="worker",
                model=ModelConfig(encoder="benchmarks.scaling:SleepEncoder", separate_critic=False),
            )
            for splits in (1, 2)
        )
        env_ms, inference_ms = (stage(one, name) / 1e3 for name in ("env step", "forward"))
        before, after = (1e3 / result["sampled_per_s"] for result in (one, two))
        hidden = (before - after) / min(env_ms, inference_ms)
        found.append((ratio, env_ms, inference_ms, before, after, hidden))
    return found


def over_rows(seconds: float, repeats: int) -> list[tuple[float, ...]]:
    """(rows, and in us per env step: bookkeeping, the adapter between env and slot, the sum of
    both, the forward pass): one actor that infers inline, an env that does nothing. Each is the
    lowest of the repeats: stages are timed by the clock, to which other programs only add."""
    found: list[tuple[float, ...]] = []
    for rows in ROWS:
        alone = env_alone_us(rows)
        results = [benchmark(seconds, 1, rows, inference="inline") for _ in range(repeats)]
        own = min(stage(r, "bookkeeping") + stage(r, "hand-over") for r in results)
        adapter = min(stage(r, "env step") for r in results) - alone
        forward = min(stage(r, "forward") for r in results)
        found.append((rows, own, adapter, own + adapter, forward))
    return found


def env_alone_us(rows: int) -> float:
    """Return the time of a step of the env that does nothing, in us per env step."""
    env, actions = IdleEnv(rows), np.zeros(rows, np.int64)
    begun = time.perf_counter()
    for _ in range(20_000):
        env.step(actions)
    return (time.perf_counter() - begun) / 20_000 / rows * 1e6


def memory(seconds: float, **kwargs: Any) -> tuple[float, float]:
    """MB private to one of four actors (the largest), and how much of it lies in slots that no
    other process has looked into yet."""
    from sampleforge.api import Trainer

    with tempfile.TemporaryDirectory() as folder:
        config = settings(4, 16, run_dir=folder, report_interval=seconds, **kwargs)
        with contextlib.redirect_stdout(io.StringIO()), Trainer(config) as trainer:
            next(iter(trainer))
            return max(map(private_mb, actor_processes()))


def actor_processes() -> list[Any]:
    import psutil

    children = psutil.Process().children(recursive=True)
    return [c for c in children if " ".join(c.cmdline()).startswith("sampleforge: actor")]


def private_mb(process: Any) -> tuple[float, float]:
    """MB private to a process: all (USS), and the part in shared memory that it alone mapped."""
    uss = process.memory_full_info().uss
    shared = [m for m in process.memory_maps(grouped=False) if "memfd:sampleforge" in m.path]
    return uss / 1e6, sum(m.private_clean + m.private_dirty for m in shared) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parts = ["actors", "overlap", "rows", "memory"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3, help="of those over rows: the lowest")
    parser.add_argument("--out", type=Path, metavar="DIR", help="draw PNGs here (matplotlib)")
    args = parser.parse_args()
    # The processes import this file by name, whatever directory they run in.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(HERE.parent))
    import scaling_report as report

    print(report.heading())
    if "actors" in args.only:
        kinds = ("inline", "worker")
        report.actors({kind: over_actors(args.seconds, kind) for kind in kinds}, args.out)
    if "overlap" in args.only:
        report.overlap(overlap(args.seconds), args.out)
    if "rows" in args.only:
        report.env_rows(over_rows(args.seconds, args.repeats), args.out)
    if "memory" in args.only:
        cases: dict[str, dict[str, Any]] = {
            "vectors, inline": {"inference": "inline"},
            "vectors, policy worker": {"inference": "worker"},
            "images, inline": {"inference": "inline", "env_kwargs": {"image": True}},
        }
        report.memory({name: memory(args.seconds, **case) for name, case in cases.items()})


if __name__ == "__main__":
    main()
