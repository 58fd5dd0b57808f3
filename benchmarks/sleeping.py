"""How runs scale whose environments sleep, as simulators on another device do.

    taskset -c 0,1 python benchmarks/sleeping.py
    taskset -c 0,1 python benchmarks/sleeping.py --only ranks stragglers --seconds 20
    python benchmarks/sleeping.py --only beside --seconds 20

Of the sampler alone (real processes, --sampler-only, the stage times of --benchmark): ``actors``,
the env steps per second over their number; ``rows``, the own cost of an env step over the env rows
of an actor; ``memory`` private to an actor. ``beside``: what driver and learner, or ranks, of a run
that learns cost per env step, in processor time, over the number of actors or ranks; other programs
change that little. Of DD-PPO, which learns meanwhile: ``ranks``, the env
steps per second over their number; ``stragglers``, what pre-emption recovers where ranks need
uneven times.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
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
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from machine import describe, table

from sampleforge.models.config import ModelConfig

HERE = Path(__file__).resolve().parent
ACTORS = (1, 2, 4, 8, 16, 32, 64)
SLEEP_S = 0.02  # of a step in the scaling over actors
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MODEL = ModelConfig(separate_critic=False)
RANKS = (1, 2, 4, 8, 16)
RANK_ROWS, RANK_ROLLOUT = 4, 32
WAYS: dict[str, dict[str, float]] = {
    "waiting": {"sync_fraction": 1.0, "max_rollout_fraction": 1.0},
    "pre-empting, early ranks wait": {"max_rollout_fraction": 1.0},
    "pre-empting": {},
}
"""Flags. The second is the paper's pre-emption, the third the default: early ranks go on."""
CASES: dict[str, dict[str, float]] = {
    "even": {},
    "one of 4 ranks 4x slower": {"slow": 4.0},
    "Pareto step times, shape 2.5": {"tail": 2.5},
    "Pareto step times, shape 1.5": {"tail": 1.5},
}
"""Settings of the environment for 4 ranks."""


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


class SleepEnv(gym.Env[Any, Any]):
    """A step takes ``seconds`` of sleep; in rank 0 ``slow`` times as many; with ``tail`` Pareto
    distributed of that shape, with the same mean. None in a process that is no rank."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, seconds: float, slow: float = 1.0, tail: float = 0.0) -> None:
        title = setproctitle.getproctitle()
        self.seconds = seconds * (slow if title.endswith("rank 0") else 1.0) * ("rank" in title)
        self.tail = tail

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        drawn = (self.tail - 1) * float(self.np_random.pareto(self.tail)) if self.tail else 1.0
        time.sleep(self.seconds * drawn)
        return np.zeros(4, np.float32), float(action), False, False, {}


def settings(workers: int, rows: int, splits: int = 1, **others: Any) -> Any:
    """Return the config of a sampler with ``rows`` rows per split."""
    from sampleforge.topologies.config import AppoConfig

    return AppoConfig(
        env="benchmarks.sleeping:IdleEnv",
        num_workers=workers,
        num_envs_per_worker=rows * splits,
        num_splits=splits,
        worker_niceness=0,  # no learner to give way to
        sampler_only=True,
        device="cpu",
        precision="fp32",
        seed=1,
        quiet=True,
        **{"rollout": 32, "model": MODEL, **others},
    )


def benchmark(
    seconds: float, workers: int, rows: int, splits: int = 1, **others: Any
) -> dict[str, Any]:
    """Return the benchmark.json of a run with these `settings`, measured for so long; without the
    peak."""
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
    """Return the microseconds per env step of a stage of the actors' loop."""
    return next(float(s["us"]) for s in result["stages"] if s["name"] == name)


def over_actors(seconds: float) -> None:
    """One row per split, so that every env step is a split step; as many splits as are the
    default. Efficiency: against as many times the rate of one actor."""
    rows = []
    for inference, splits in (("inline", 1), ("worker", 2)):
        one = 0.0
        for actors in ACTORS:
            others = {"env_kwargs": {"seconds": SLEEP_S}, "inference": inference}
            result = benchmark(seconds, actors, 1, splits, **others)
            rate, cores = result["sampled_per_s"], sum(result["busy_cores"].values())
            one = one or rate
            cells = [f"{rate:.1f}", f"{rate / (one * actors):.1%}", f"{cores:.2f}"]
            rows.append([inference, str(actors), *cells])
    print(f"\nOver actors, {SLEEP_S * 1e3:g} ms per env step:\n")
    print(table(["inference", "actors", "env steps/s", "efficiency", "cores used"], rows))


MANY = {"appo": (16, 64, 128), "ddppo": (8, 32)}
"""Algorithm -> numbers of actors or ranks of `beside`, each with one env row."""


def beside(seconds: float, step_s: float) -> None:
    """Processor time of each role: until all work, and per env step after that."""
    rows = []
    for algo, numbers in MANY.items():
        for number in numbers:
            with tempfile.TemporaryDirectory() as folder:
                rows.append([algo, str(number), *of_many(algo, number, seconds, step_s, folder)])
    print(f"\nProcessor time beside env steps of {step_s * 1e3:g} ms; per env step in us:\n")
    header = ["start, s", "start, s of a core", "env steps/s", "driver", "learner", "actors, ranks"]
    print(table(["", "actors, ranks", *header], rows))


def of_many(algo: str, number: int, seconds: float, step_s: float, folder: str) -> list[str]:
    from sampleforge.api import Trainer
    from sampleforge.topologies.config import AppoConfig, DdppoConfig

    common: dict[str, Any] = dict(
        env="benchmarks.sleeping:IdleEnv",
        env_kwargs={"seconds": step_s},
        num_envs_per_worker=1,
        rollout=10,
        model=MODEL,
        device="cpu",
        report_interval=1.0,
        train_for_seconds=3600,
        run_dir=folder,
        seed=1,
        quiet=True,
    )
    config = (
        AppoConfig(num_workers=number, num_splits=1, async_rl=True, batch_size=320, **common)
        if algo == "appo"
        else DdppoConfig(num_ranks=number, minibatch_size=10, num_epochs=1, **common)
    )

    def used() -> dict[str, float]:
        roles = {"driver": [psutil.Process()]}
        roles |= {role: processes(role) for role in ("actor", "learner", "rank")}
        times = {role: [each.cpu_times() for each in of] for role, of in roles.items()}
        return {role: sum(t.user + t.system for t in of) for role, of in times.items()}

    begun, before = time.monotonic(), used()
    ready: tuple[float, dict[str, float], float] | None = None
    with contextlib.redirect_stdout(io.StringIO()), Trainer(config) as trainer:
        for report in trainer:
            steps = report["env_steps"]
            if ready is None and steps >= 30 * number and report["updates"] >= 2:
                ready = time.monotonic(), used(), steps
            elif ready is not None and time.monotonic() - ready[0] >= seconds:
                (at, then, first), now = ready, used()
                start = sum(then.values()) - before["driver"]
                each = [(now[r] - then[r]) / (steps - first) * 1e6 for r in ("driver", "learner")]
                own = (now["actor"] + now["rank"] - then["actor"] - then["rank"]) / (steps - first)
                rate = (steps - first) / (time.monotonic() - at)
                learner = f"{each[1]:.0f}" if algo == "appo" else ""
                cells = [f"{at - begun:.1f}", f"{start:.1f}", f"{rate:.0f}", f"{each[0]:.0f}"]
                return [*cells, learner, f"{own * 1e6:.0f}"]
    raise AssertionError("it is stopped by time only")


def over_rows(seconds: float, repeats: int) -> None:
    """One actor that infers inline, an env that does nothing. Each figure is the lowest of the
    repeats: stages are timed by the clock, to which other programs only add."""
    rows = []
    for number in ROWS:
        alone = env_alone_us(number)
        results = [benchmark(seconds, 1, number, inference="inline") for _ in range(repeats)]
        books = min(stage(r, "bookkeeping") + stage(r, "hand-over") for r in results)
        adapter = min(stage(r, "env step") for r in results) - alone
        forward = min(stage(r, "forward") for r in results)
        figures = (books, adapter, books + adapter, (books + adapter) * number, forward)
        rows.append([str(number), *(f"{figure:.3f}" for figure in figures)])
    print("\nOver env rows of one actor, us per env step:\n")
    header = ["rows", "bookkeeping", "env to slot", "own, both", "own x rows", "forward pass"]
    print(table(header, rows))


def env_alone_us(rows: int) -> float:
    """Return the time of a step of the env that does nothing, in us per env step."""
    env, actions = IdleEnv(rows), np.zeros(rows, np.int64)
    begun = time.perf_counter()
    for _ in range(20_000):
        env.step(actions)
    return (time.perf_counter() - begun) / 20_000 / rows * 1e6


def memory(seconds: float) -> None:
    """MB private to one of four actors (the largest; USS), and how much of it lies in slots that no
    other process has looked into yet."""
    from sampleforge.api import Trainer

    cases: dict[str, dict[str, Any]] = {
        "vectors, inline": {"inference": "inline"},
        "vectors, policy worker": {"inference": "worker"},
        "images, inline": {"inference": "inline", "env_kwargs": {"image": True}},
    }
    rows = []
    for case, others in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            config = settings(4, 16, run_dir=folder, report_interval=seconds, **others)
            with contextlib.redirect_stdout(io.StringIO()), Trainer(config) as trainer:
                next(iter(trainer))
                uss, slots = max(map(private_mb, processes("actor")))
        rows.append([case, f"{uss:.1f}", f"{slots:.1f}", f"{uss - slots:.1f}"])
    print("\nPrivate memory of an actor (4 actors of 16 rows), MB:\n")
    print(table(["model", "USS", "slots that no other has looked into", "beside them"], rows))


def processes(role: str) -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [c for c in children if " ".join(c.cmdline()).startswith(f"sampleforge: {role}")]


def private_mb(process: psutil.Process) -> tuple[float, float]:
    """Return the MB private to a process: all (USS), and the part in shared memory that it alone
    mapped."""
    uss = process.memory_full_info().uss
    shared = [m for m in process.memory_maps(grouped=False) if "memfd:sampleforge" in m.path]
    return uss / 1e6, sum(m.private_clean + m.private_dirty for m in shared) / 1e6


@dataclass(frozen=True)
class Learned:
    """``rate``: env steps learned from per second, once all ranks work. ``possible``: what the same
    ranks at the same speeds could make of it if none ever waited for another. Per update of a rank:
    rollouts that were ``cut`` short; milliseconds in all, waiting, of processor time."""

    rate: float
    possible: float
    cut: float
    update_ms: float
    wait_ms: float
    cpu_ms: float

    @property
    def lost(self) -> float:
        """Return the fraction of the possible rate that waiting has cost in this run."""
        return 1 - self.rate / self.possible


def learned(first: Mapping[str, float], last: Mapping[str, float], ranks: int) -> Learned:
    """Return the figures of the time between two reports, each just after an update, to which
    "cpu_s" was added."""

    def each(name: str) -> list[float]:
        return [last[f"rank{r}_{name}"] - first[f"rank{r}_{name}"] for r in range(ranks)]

    updates, wall = last["updates"] - first["updates"], last["wall_s"] - first["wall_s"]
    waits = each("wait_s")
    return Learned(
        rate=sum(each("steps")) / wall,
        possible=sum(n / (wall - w) for n, w in zip(each("steps"), waits, strict=True)),
        cut=sum(each("preempted")) / updates,
        update_ms=1e3 * wall / updates,
        wait_ms=1e3 * sum(waits) / (updates * ranks),
        cpu_ms=1e3 * (last["cpu_s"] - first["cpu_s"]) / (updates * ranks),
    )


def of_ranks(ranks: int, seconds: float, way: str, env_kwargs: dict[str, Any]) -> Learned:
    """Measure a run of so many ``seconds``, and until its next update."""
    from sampleforge.api import Trainer
    from sampleforge.topologies.config import DdppoConfig

    with tempfile.TemporaryDirectory() as folder:
        config = DdppoConfig(
            env="benchmarks.sleeping:SleepEnv",
            env_kwargs=env_kwargs,
            num_ranks=ranks,
            num_envs_per_worker=RANK_ROWS,
            rollout=RANK_ROLLOUT,
            minibatch_size=RANK_ROWS * RANK_ROLLOUT,
            num_epochs=1,
            model=MODEL,
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
                        return learned(first, latest, ranks)
                    latest = None
                if report["updates"] > updates:  # of two ends, both are just after an update
                    latest, updates = report, report["updates"]
                    times = [rank.cpu_times() for rank in processes("rank")]
                    latest["cpu_s"] = sum(time.user + time.system for time in times)
    raise AssertionError("it is stopped by time only")


def over_ranks(seconds: float, repeats: int, step_s: float) -> None:
    """The median of the repeats, by rate; the ways take turns, so that the machine's moods are
    shared out. Efficiency: against as many times the rate of one rank that waits."""
    runs: dict[tuple[str, int], list[Learned]] = {}
    for _ in range(repeats):
        for way, ranks in itertools.product(("waiting", "pre-empting"), RANKS):
            found = of_ranks(ranks, seconds, way, {"seconds": step_s})
            runs.setdefault((way, ranks), []).append(found)
    middle = {key: sorted(of, key=lambda run: run.rate)[repeats // 2] for key, of in runs.items()}
    one, rows = middle["waiting", 1].rate, []
    for (way, ranks), m in middle.items():
        cells = [f"{m.rate:.0f}", f"{m.rate / one / ranks:.1%}", f"{m.lost:.1%}"]
        cells += [f"{ms:.1f}" for ms in (m.update_ms, m.wait_ms, m.cpu_ms)]
        rows.append([way, str(ranks), *cells])
    print(f"\nOver ranks, {step_s * 1e3:g} ms per env step; ms per update of a rank:\n")
    header = ["env steps/s", "efficiency", "lost", "ms in all", "waiting", "processor"]
    print(table(["", "ranks", *header], rows))


def stragglers(seconds: float, repeats: int, step_s: float) -> None:
    """The median of the repeats, by what is lost. Each run is compared with what its own step times
    and updates would make possible: between runs a shared machine changes by more than pre-emption
    would have left to recover. All runs of a case draw the same step times."""
    rows = []
    for case, kwargs in CASES.items():
        runs: dict[str, list[Learned]] = {way: [] for way in WAYS}
        for _ in range(repeats):
            for way, of in runs.items():
                of.append(of_ranks(4, seconds, way, {"seconds": step_s, **kwargs}))
        middle = {
            way: sorted(of, key=lambda run: run.lost)[repeats // 2] for way, of in runs.items()
        }
        for way, m in middle.items():
            recovered = (middle["waiting"].lost - m.lost) / middle["waiting"].lost
            cells = [f"{m.rate:.0f}", f"{m.possible:.0f}", f"{m.lost:.1%}", f"{recovered:.0%}"]
            rows.append([case, way, *cells, f"{m.cut:.2f}"])
    print("\n4 ranks; possible: what they could make of it at these speeds if none ever waited;")
    print("recovered: of what waiting costs:\n")
    header = ["env steps/s", "possible", "lost", "recovered", "cut short"]
    print(table(["", "", *header], rows))


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parts = ["actors", "rows", "memory", "beside", "ranks", "stragglers"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3, help="of those over rows and of ranks")
    parser.add_argument("--step-ms", type=float, default=10.0, help="of a step of a rank's env")
    args = parser.parse_args()
    # The processes import this file by name, whatever directory they run in.
    path = [str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    sys.path.insert(0, str(HERE.parent))
    print(describe("torch", "gymnasium"), flush=True)
    each = (args.seconds, args.repeats, args.step_ms / 1e3)
    measurements: dict[str, Callable[[], None]] = {
        "actors": lambda: over_actors(args.seconds),
        "rows": lambda: over_rows(args.seconds, args.repeats),
        "memory": lambda: memory(args.seconds),
        "beside": lambda: beside(args.seconds, args.step_ms / 1e3),
        "ranks": lambda: over_ranks(*each),
        "stragglers": lambda: stragglers(*each),
    }
    for part in args.only:
        measurements[part]()


if __name__ == "__main__":
    main()
