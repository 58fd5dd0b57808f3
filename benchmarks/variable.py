"""Variable experience against env rows that step together, in DD-PPO, APPO and Ape-X with
environments that take uneven times. Figures are parts of what the environments could give if none
ever waited.

    taskset -c 0,1 python benchmarks/variable.py --repeat 3 --draw benchmarks/results/variable.png
    taskset -c 0,1 python benchmarks/variable.py appo apex --repeat 3 --rows 32 --workers 2

``--draw`` needs matplotlib.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from machine import describe, table

HERE = Path(__file__).resolve().parent
ROLLOUT, EPISODE = 32, 40
CASES: dict[str, dict[str, float]] = {
    "equal step times": {},
    "Pareto step times, shape 2.5": {"tail": 2.5},
    "a speed per episode, log-normal, sigma 1": {"sigma": 1.0},
}
WAITING = {"sync_fraction": 1.0, "max_rollout_fraction": 1.0}
Way = tuple[str, dict[str, Any]]
FIXED, VARIABLE = "UnevenRows", "UnevenEnv"
ACTORS: dict[str, Way] = {
    "fixed": (FIXED, {}),
    "variable": (VARIABLE, {"variable_experience": True}),
}
WAYS: dict[str, dict[str, Way]] = {
    "ddppo": {
        "fixed": (FIXED, WAITING),
        "fixed, pre-empting": (FIXED, {}),
        "variable": (VARIABLE, {"variable_experience": True, **WAITING}),
        "variable, pre-empting": (VARIABLE, {"variable_experience": True}),
    },
    "appo": ACTORS,
    "apex": ACTORS,
}
"""Of each algorithm: the environment that suits each way, and its flags. Pre-empting is the
default."""
NAMES = {"ddppo": "DD-PPO", "appo": "APPO", "apex": "Ape-X"}
COLOURS = ("#9aa5b1", "#52606d", "#6fa8dc", "#1f5fa8")


class Clock:
    """Seconds that the steps of one env take; their mean is ``mean``. With ``tail`` each is drawn
    from a Pareto distribution of that shape; with ``sigma`` each episode (as it were, each scene)
    has a speed, from a log-normal distribution."""

    def __init__(self, mean: float, tail: float, sigma: float, seed: int | None) -> None:
        self.mean, self.tail, self.sigma = mean, tail, sigma
        self.random = np.random.default_rng(seed)
        self.steps = 0

    def __call__(self) -> float:
        if self.steps % EPISODE == 0:
            normal = self.random.normal(-(self.sigma**2) / 2, self.sigma)
            self.of_episode = self.mean * float(np.exp(normal))
        self.steps += 1
        drawn = (self.tail - 1) * float(self.random.pareto(self.tail)) if self.tail else 1.0
        return self.of_episode * drawn


class UnevenEnv(gym.Env[Any, Any]):
    """An environment whose steps only sleep."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, mean: float, tail: float = 0.0, sigma: float = 0.0) -> None:
        self.settings, self.clock = (mean, tail, sigma), Clock(mean, tail, sigma, None)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        if seed is not None:
            self.clock = Clock(*self.settings, seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        time.sleep(self.clock())
        return np.zeros(4, np.float32), float(action), self.clock.steps % EPISODE == 0, False, {}


class UnevenRows(VectorEnv[Any, Any, Any]):
    """Rows of the same, all at once as in processes of their own: a step takes as long as that of
    the slowest row. Nothing is lost to messages or locks."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (gymnasium's own way)

    def __init__(self, num_envs: int, mean: float, tail: float = 0.0, sigma: float = 0.0) -> None:
        self.num_envs, self.settings = num_envs, (mean, tail, sigma)
        self.single_observation_space = UnevenEnv.observation_space
        self.single_action_space = UnevenEnv.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, Any]:
        self.clocks = [Clock(*self.settings, (seed or 0) + row) for row in range(self.num_envs)]
        return np.zeros((self.num_envs, 4), np.float32), {}

    def step(self, actions: Any) -> Any:
        time.sleep(max(clock() for clock in self.clocks))
        zeros = np.zeros((self.num_envs, 4), np.float32)
        ended = np.array([clock.steps % EPISODE == 0 for clock in self.clocks])
        info = {"final_obs": zeros} if ended.any() else {}
        return zeros, actions.astype(np.float32), ended, np.zeros_like(ended), info


@dataclass(frozen=True)
class Sizes:
    """``workers`` (ranks of DD-PPO) of ``rows`` env rows each, whose steps take ``mean`` seconds on
    average; each measurement takes ``seconds``."""

    workers: int
    rows: int
    mean: float
    seconds: float

    @property
    def ideal(self) -> float:
        """Env steps per second if no row ever waited."""
        return self.workers * self.rows / self.mean


def config_of(algo: str, sizes: Sizes, folder: str, **settings: Any) -> Any:
    """Return the config of a run whose learning takes little time."""
    from sampleforge.models.config import ModelConfig
    from sampleforge.topologies.config import ALGOS

    common = dict(
        num_envs_per_worker=sizes.rows,
        rollout=ROLLOUT,
        device="cpu",
        decorrelate=False,
        report_interval=0.25,
        train_for_seconds=3600,
        run_dir=folder,
        seed=1,
        quiet=True,
    )
    own: dict[str, dict[str, Any]] = {
        "ddppo": dict(
            num_ranks=sizes.workers,
            minibatch_size=sizes.rows * ROLLOUT,
            num_epochs=1,
            model=ModelConfig(separate_critic=False),
        ),
        "appo": dict(
            num_workers=sizes.workers, async_rl=True, model=ModelConfig(separate_critic=False)
        ),
        "apex": dict(num_workers=sizes.workers, samples_per_insert=1.0, replay_capacity=100_000),
    }
    return ALGOS[algo](**{**common, **own[algo], **settings})


def measure(algo: str, env: str, sizes: Sizes, **settings: Any) -> float:
    """Env steps per second, over so many seconds from the third update on."""
    from sampleforge.api import Trainer

    with tempfile.TemporaryDirectory() as folder:
        config = config_of(algo, sizes, folder, env=f"variable:{env}", **settings)
        seen: list[tuple[float, float]] = []
        # It says on standard output that it is finished, and where: of no interest here.
        with contextlib.redirect_stdout(io.StringIO()), Trainer(config) as trainer:
            for report in trainer:
                if report["updates"] >= 3:
                    seen.append((report["wall_s"], report["env_steps"]))
                if seen and seen[-1][0] - seen[0][0] >= sizes.seconds:
                    break
    (begun, before), (ended, after) = seen[0], seen[-1]
    return (after - before) / (ended - begun)


Found = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""Parts of what is possible: [case][algorithm][way], of each sitting."""


def parts_of_ideal(
    algos: Sequence[str], cases: Mapping[str, dict[str, float]], sizes: Sizes, repeat: int
) -> Found:
    """Measure so many sittings, in which the ways take turns."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for case, times in cases.items():
        found[case] = {algo: {way: [] for way in WAYS[algo]} for algo in algos}
        for _ in range(repeat):
            for algo in algos:
                for way, (env, flags) in WAYS[algo].items():
                    kwargs = {"mean": sizes.mean, **times}
                    rate = measure(algo, env, sizes, env_kwargs=kwargs, **flags)
                    found[case][algo][way].append(rate / sizes.ideal)
    return found


def report(found: Found) -> str:
    """Return a table: medians of each way, and how much more the last way of an algorithm gives
    than those whose rows step together."""
    rows: list[list[str]] = []
    header = ["of what is possible"]
    for case, algos in found.items():
        row = [case]
        for algo, ways in algos.items():
            *_, last = ways
            fixed = [way for way in ways if WAYS[algo][way][0] == FIXED]
            row += [f"{median(parts):.0%}" for parts in ways.values()]
            for base in fixed:
                ratios = [v / f for v, f in zip(ways[last], ways[base], strict=True)]
                row.append(f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})")
            if not rows:
                header += [f"{NAMES[algo]}: {way}" for way in ways]
                header += [f"last : {base}" for base in fixed]
        rows.append(row)
    return table(header, rows)


def draw(found: Found, sizes: Sizes, out: Path) -> None:
    """A group of bars for each case: medians, and lines from the least to the most."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    algos = next(iter(found.values()))
    bars_of = [(algo, way) for algo, ways in algos.items() for way in ways]
    width = 0.8 / len(bars_of)
    for number, (algo, way) in enumerate(bars_of):
        parts = [100 * np.array(each[algo][way]) for each in found.values()]
        middle = np.array([np.median(p) for p in parts])
        spread = [middle - [p.min() for p in parts], [p.max() for p in parts] - middle]
        at = np.arange(len(found)) + (number - (len(bars_of) - 1) / 2) * width
        label = way if len(algos) == 1 else f"{NAMES[algo]}, {way}"
        colour = COLOURS[number % len(COLOURS)]
        bars = axes.bar(at, middle, width, yerr=spread, capsize=3, label=label, color=colour)
        axes.bar_label(bars, fmt="%.0f%%", fontsize=8, label_type="center", color="white")
    axes.axhline(100, color="grey", linewidth=1, linestyle="--")
    axes.set_xticks(range(len(found)), list(found), fontsize=9)
    axes.set_ylabel("env steps per second, % of what is possible")
    names = " and ".join(NAMES[algo] for algo in algos)
    each = "ranks" if "ddppo" in algos else "actors"
    title = f"{names}, {sizes.workers} {each} of {sizes.rows} env rows, rollout {ROLLOUT}"
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(bars_of), fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("algos", nargs="*", metavar="ALGO", help=f"of {', '.join(WAYS)} (ddppo)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=1, help="measurements, of which the median")
    parser.add_argument("--mean", type=float, default=0.02, help="seconds of an env step")
    parser.add_argument("--workers", type=int, default=4, help="actors, or ranks")
    parser.add_argument("--rows", type=int, default=4, help="env rows of each of them")
    parser.add_argument("--cases", default="", metavar="TEXT", help="only those that contain it")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="a figure of it")
    args = parser.parse_args()
    unknown = [algo for algo in args.algos if algo not in WAYS]
    if unknown:
        parser.error(f"no algorithm {unknown[0]!r}; there are {', '.join(WAYS)}")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    print(describe("torch", "gymnasium"))
    sizes = Sizes(args.workers, args.rows, args.mean, args.seconds)
    cases = {name: times for name, times in CASES.items() if args.cases in name}
    found = parts_of_ideal(args.algos or ["ddppo"], cases, sizes, args.repeat)
    print(report(found))
    if args.draw is not None:
        draw(found, sizes, args.draw)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
