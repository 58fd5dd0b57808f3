"""Variable experience rollout against rollouts of a fixed length, in DD-PPO with environments that
take uneven times. Figures are parts of what the environments could give if none ever waited.

    taskset -c 0,1 python benchmarks/variable.py --repeat 3 --draw benchmarks/results/variable.png

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
RANKS, ROWS, ROLLOUT, EPISODE = 4, 4, 32, 40
CASES: dict[str, dict[str, float]] = {
    "equal step times": {},
    "Pareto step times, shape 2.5": {"tail": 2.5},
    "a speed per episode, log-normal, sigma 1": {"sigma": 1.0},
}
WAITING = {"sync_fraction": 1.0, "max_rollout_fraction": 1.0}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "fixed": ("UnevenRows", WAITING),
    "fixed, pre-empting": ("UnevenRows", {}),
    "variable": ("UnevenEnv", {"variable_experience": True, **WAITING}),
    "variable, pre-empting": ("UnevenEnv", {"variable_experience": True}),
}
"""The environment that suits each, and its flags. Pre-empting is the default."""
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


def measure(env: str, seconds: float, **settings: Any) -> float:
    """Env steps per second, over so many ``seconds`` from the third update on."""
    from sampleforge.api import Trainer
    from sampleforge.models.config import ModelConfig
    from sampleforge.topologies.config import DdppoConfig

    with tempfile.TemporaryDirectory() as folder:
        config = DdppoConfig(
            env=f"variable:{env}",
            num_ranks=RANKS,
            num_envs_per_worker=ROWS,
            rollout=ROLLOUT,
            minibatch_size=ROWS * ROLLOUT,
            num_epochs=1,
            model=ModelConfig(separate_critic=False),
            device="cpu",
            decorrelate=False,
            report_interval=0.25,
            train_for_seconds=3600,
            run_dir=folder,
            seed=1,
            quiet=True,
            **settings,
        )
        seen: list[tuple[float, float]] = []
        # It says on standard output that it is finished, and where: of no interest here.
        with contextlib.redirect_stdout(io.StringIO()), Trainer(config) as trainer:
            for report in trainer:
                if report["updates"] >= 3:
                    seen.append((report["wall_s"], report["env_steps"]))
                if seen and seen[-1][0] - seen[0][0] >= seconds:
                    break
    (begun, before), (ended, after) = seen[0], seen[-1]
    return (after - before) / (ended - begun)


def parts_of_ideal(seconds: float, mean: float, repeat: int) -> dict[str, dict[str, list[float]]]:
    """[case][way]: of so many sittings, in which the ways take turns."""
    ideal = RANKS * ROWS / mean
    found: dict[str, dict[str, list[float]]] = {}
    for case, times in CASES.items():
        found[case] = {way: [] for way in WAYS}
        for _ in range(repeat):
            for way, (env, flags) in WAYS.items():
                rate = measure(env, seconds, env_kwargs={"mean": mean, **times}, **flags)
                found[case][way].append(rate / ideal)
    return found


def report(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    rows = []
    for case, ways in found.items():
        plain, fixed, _, variable = ways.values()
        cells = [f"{median(parts):.0%}" for parts in ways.values()]
        for base in (plain, fixed):
            ratios = [v / f for v, f in zip(variable, base, strict=True)]
            cells.append(f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})")
        rows.append([case, *cells])
    return table(["of what is possible", *WAYS, "last : fixed", "last : fixed, pre-empting"], rows)


def draw(found: Mapping[str, Mapping[str, Sequence[float]]], out: Path) -> None:
    """A group of bars for each case: medians, and lines from the least to the most."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(WAYS)
    for number, (way, colour) in enumerate(zip(WAYS, COLOURS, strict=True)):
        parts = [100 * np.array(ways[way]) for ways in found.values()]
        middle = np.array([np.median(p) for p in parts])
        spread = [middle - [p.min() for p in parts], [p.max() for p in parts] - middle]
        at = np.arange(len(found)) + (number - (len(WAYS) - 1) / 2) * width
        bars = axes.bar(at, middle, width, yerr=spread, capsize=3, label=way, color=colour)
        axes.bar_label(bars, fmt="%.0f%%", fontsize=8, label_type="center", color="white")
    axes.axhline(100, color="grey", linewidth=1, linestyle="--")
    axes.set_xticks(range(len(found)), list(found), fontsize=9)
    axes.set_ylabel("env steps per second, % of what is possible")
    axes.set_title(f"DD-PPO, {RANKS} ranks of {ROWS} env rows, rollout {ROLLOUT}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(WAYS), fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=1, help="measurements, of which the median")
    parser.add_argument("--mean", type=float, default=0.02, help="seconds of an env step")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="a figure of it")
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    print(describe("torch", "gymnasium"))
    found = parts_of_ideal(args.seconds, args.mean, args.repeat)
    print(report(found))
    if args.draw is not None:
        draw(found, args.draw)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
