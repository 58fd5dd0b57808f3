"""What the defaults learn in twenty environments, beside those of Stable-Baselines3: no flag, no
preset.

    python benchmarks/defaults.py run [--algos appo ...] [--envs ID ...] [--seeds 1 2 3 ...]
    python benchmarks/defaults.py run --algos PPO --sb3-python SB3/bin/python
    python benchmarks/defaults.py report            # the tables; writes what check-env advises by

`run` trains, and then plays 100 greedy episodes; each run's result is appended to
benchmarks/results/defaults.jsonl, and one that is there already is not repeated: when the code has
changed, delete its line first. Both sides get the same number of env steps and one process at a
time; SB3 learns in one thread, as its documentation advises for small networks, SampleForge uses
the cores that are there (`taskset` gives it one).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import numpy as np

from sampleforge.tools.compare.statistics import (
    bootstrap,
    estimated,
    interval,
    iqm,
    probability_of_improvement,
)

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "defaults.jsonl"
ADVICE = HERE.parent / "sampleforge/presets/defaults.jsonl"
"""What `sampleforge check-env` tells of the defaults."""
SMALL, LARGE = 200_000, 1_000_000
DISCRETE = [
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "LunarLander-v3",
    "MinAtar/Breakout-v1",
    "MinAtar/Asterix-v1",
    "FrozenLake-v1",
    "Taxi-v4",
    "MiniGrid-Empty-5x5-v0",
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-LavaGapS5-v0",
]
MUJOCO = [
    "HalfCheetah-v5",
    "Hopper-v5",
    "Walker2d-v5",
    "Reacher-v5",
    "Pusher-v5",
    "InvertedDoublePendulum-v5",
]
ENVS = {
    **dict.fromkeys(DISCRETE, SMALL),
    **dict.fromkeys(["Pendulum-v1", "MountainCarContinuous-v0", "BipedalWalker-v3"], SMALL),
    **dict.fromkeys(MUJOCO, LARGE),
}
"""Env steps of training."""
PEERS = {"appo": "PPO", "ddppo": "PPO", "apex": "DQN"}
"""Algorithm -> the algorithm of Stable-Baselines3 that it is compared with."""
POINTS = 40
"""Number of points of a recorded curve."""
RESAMPLES = 5_000
"""Of the bootstrap."""


def ours(algo: str, env: str, steps: int, seed: int) -> dict[str, Any]:
    """Train and evaluate through the command line, as a user would who gives no flag."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        command = [sys.executable, str(HERE.parent / "train.py"), algo, "--env", env]
        command += ["--train-for-env-steps", str(steps), "--seed", str(seed), "--run-dir", run]
        started = time.perf_counter()
        output(command, cwd=folder)
        seconds = time.perf_counter() - started
        lines = (Path(run) / "metrics.jsonl").read_text().splitlines()
        evaluate = [sys.executable, "-m", "sampleforge", "eval", run, "--episodes", "100"]
        found = json.loads(output(evaluate, cwd=folder).splitlines()[-1])
    reports = [json.loads(line) for line in lines]
    curve = [(r["env_steps"], r["return_mean"]) for r in reports if "return_mean" in r]
    return {
        "seconds": seconds,
        "return_mean": found["return_mean"],
        "return_std": found["return_std"],
        "curve": thinned(curve),
    }


def theirs(python: str, algo: str, env: str, steps: int, seed: int) -> dict[str, Any]:
    """Train and evaluate with Stable-Baselines3 and its defaults."""
    command = [python, "-W", "ignore", str(HERE / "sb3_learn.py"), "--env", env]
    command += ["--algo", algo, "--steps", str(steps), "--seed", str(seed)]
    return summed_up(json.loads(output(command).splitlines()[-1]))


def summed_up(found: dict[str, Any]) -> dict[str, Any]:
    """Return the values to record from the line that `sb3_learn.py` prints."""
    last = [value for _, value in found["episodes"]]
    curve = [
        (step, statistics.fmean(last[max(0, i - 99) : i + 1]))
        for i, (step, _) in enumerate(found["episodes"])
    ]
    return {
        "seconds": found["seconds"],
        "return_mean": statistics.fmean(found["returns"]),
        "return_std": statistics.pstdev(found["returns"]),
        "curve": thinned(curve),
    }


def output(command: list[str], cwd: str | None = None) -> str:
    """Return what a command prints. It imports the package of this checkout."""
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def thinned(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most POINTS + 1 of the points, with the last one among them."""
    every = math.ceil(len(curve) / POINTS)
    kept = curve[::every] if curve else []
    return [(step, round(value, 4)) for step, value in [*kept, *curve[-1:]]]


def recorded() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def record(about: dict[str, Any], result: dict[str, Any]) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps(about | {n: result[n] for n in result}) + "\n")
    print(json.dumps({**about, **{n: result[n] for n in result if n != "curve"}}), flush=True)


def run(args: argparse.Namespace) -> None:
    print(machine.describe("torch", "gymnasium", "numpy"), flush=True)
    for seed in args.seeds:
        for algo in args.algos:
            for env in args.envs or (DISCRETE if algo in ("apex", "DQN") else ENVS):
                about = {"algo": algo, "env": env, "seed": seed, "steps": ENVS[env]}
                if any(about.items() <= r.items() for r in recorded()):
                    continue
                if algo in PEERS:
                    result = ours(algo, env, ENVS[env], seed)
                    about["commit"] = machine.commit()
                else:
                    result = theirs(args.sb3_python, algo, env, ENVS[env], seed)
                record(about, result)


def report() -> None:
    """Print two tables per pair of algorithms: each seed, and how certain the difference is."""
    runs = recorded()
    for algo, peer in PEERS.items():
        each, certain, draws = [], [], []
        for env in ENVS:
            one, other = (of(runs, a, env) for a in (algo, peer))
            if one:
                each.append([env, *seeds_of(one), *seeds_of(other)])
            if one and other:
                row, drawn = compared(one, other)
                certain.append([env, *row])
                draws.append(drawn)
        print(machine.table(["environment", algo, "s", f"SB3 {peer}", "s"], each), end="\n\n")
        header = ["environment", f"{algo}: IQM", f"SB3 {peer}: IQM", "improvement", "worst", "kept"]
        print(machine.table(header, certain), end="\n\n")
        if draws:
            total = np.mean(draws, axis=0)
            low, high = interval(total[1:])
            print(f"mean probability of improvement: {total[0]:.2f} [{low:.2f}, {high:.2f}]\n")


def advice() -> str:
    """Return the lines of `ADVICE`: the median return of each algorithm and environment, and the
    least of the seconds, because others ran beside some."""
    runs = recorded()
    lines = []
    for algo, env in sorted({(run["algo"], run["env"]) for run in runs if run["algo"] in PEERS}):
        seeds = of(runs, algo, env)
        row = {"algo": algo, "env": env, "env_steps": ENVS[env]}
        row["seconds"] = round(min(run["seconds"] for run in seeds))
        row["score"] = float(f"{statistics.median(run['return_mean'] for run in seeds):.4g}")
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def of(runs: list[dict[str, Any]], algo: str, env: str) -> list[dict[str, Any]]:
    found = [r for r in runs if (r["algo"], r["env"]) == (algo, env)]
    return sorted(found, key=lambda r: r["seed"])


def seeds_of(runs: list[dict[str, Any]]) -> list[str]:
    """Each seed's mean return, and the median wall time."""
    if not runs:
        return ["", ""]
    each = ", ".join(f"{r['return_mean']:.4g}" for r in runs)
    return [each, f"{statistics.median(r['seconds'] for r in runs):.0f}"]


def compared(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> tuple[list[str], Any]:
    """Return the cells of a row, and the probability of improvement, followed by that of each
    resample.

    The cells: the interquartile means and the probability that a seed of ours has a higher return
    than one of theirs, with 95% intervals of the bootstrap over the seeds; the lowest return of
    each side; the least that a seed of each side has kept of what it had (`kept`).
    """
    both = [np.array([[r["return_mean"]] for r in runs]).round(6) for runs in (ours, theirs)]
    drawn = bootstrap(probability_of_improvement, *both, resamples=RESAMPLES)
    probability = float(probability_of_improvement(*both))
    low, high = interval(drawn)
    cells = [with_interval(scores) for scores in both]
    cells.append(f"{probability:.2f} [{low:.2f}, {high:.2f}]")
    cells.append(" / ".join(f"{scores.min():.4g}" for scores in both))
    cells.append(" / ".join(f"{min(map(kept, runs)):.0%}" for runs in (ours, theirs)))
    return cells, np.array([probability, *drawn])


def with_interval(scores: Any) -> str:
    found = estimated(iqm, scores, resamples=RESAMPLES)
    between = "" if found.low is None else f" [{found.low:.4g}, {found.high:.4g}]"
    return f"{found.value:.4g}{between}"


def kept(run: dict[str, Any]) -> float:
    """Return how far the greedy return at the end is above the lowest point of the curve, as a part
    of how far the curve has been: at most 1, and 1 if nothing was learned or lost. The points are
    means of training episodes; there are none if each env row has hardly ended one."""
    points = [value for _, value in run["curve"]] or [run["return_mean"]]
    low, high = min(points), max(points)
    return min(1.0, (run["return_mean"] - low) / (high - low)) if high > low else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--sb3-python", help="interpreter that has stable-baselines3")
    parser.add_argument("--envs", nargs="+", choices=list(ENVS))
    algos = [*PEERS, *sorted(set(PEERS.values()))]
    parser.add_argument("--algos", nargs="+", choices=algos, default=["appo"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(1, 11)))
    args = parser.parse_args()
    if args.what == "report":
        report()
        ADVICE.write_text(advice())
    elif not args.sb3_python and set(args.algos) - set(PEERS):
        parser.error("--algos PPO and DQN need --sb3-python")
    else:
        run(args)


if __name__ == "__main__":
    main()
