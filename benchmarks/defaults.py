"""What the defaults learn, beside those of Stable-Baselines3: ten environments, no flag, no preset.

    python benchmarks/defaults.py run --sb3-python SB3/bin/python [--envs ID ...] [--seeds 1 2 3]
    python benchmarks/defaults.py report            # the table

`run` trains each environment with both libraries in turn and plays 100 greedy episodes; each run's
result is appended to benchmarks/results/defaults.jsonl, and one that is there already is not
repeated. Both sides get the same number of env steps and one process at a time; SB3 learns in one
thread, as its documentation advises for small networks, SampleForge uses the cores that are there.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "defaults.jsonl"
SMALL, LARGE = 200_000, 1_000_000
ENVS = {
    "CartPole-v1": SMALL,
    "Acrobot-v1": SMALL,
    "LunarLander-v3": SMALL,
    "MinAtar/Breakout-v1": SMALL,
    "FrozenLake-v1": SMALL,
    "MiniGrid-Empty-5x5-v0": SMALL,
    "Pendulum-v1": SMALL,
    "MountainCarContinuous-v0": SMALL,
    "HalfCheetah-v5": LARGE,
    "Hopper-v5": LARGE,
}
"""Env steps of training; the first six have discrete actions."""
DISCRETE = list(ENVS)[:6]
PAIRS = {"appo": "PPO", "ddppo": "PPO", "apex": "DQN"}
"""Algorithm -> the algorithm of Stable-Baselines3 that it is compared with."""
POINTS = 40
"""Number of points of a recorded curve."""


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
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
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
            for env in args.envs or (DISCRETE if algo == "apex" else ENVS):
                about = {"env": env, "seed": seed, "steps": ENVS[env]}
                done = {r["algo"] for r in recorded() if all(r[n] == about[n] for n in about)}
                if algo not in done:
                    record({"algo": algo, **about}, ours(algo, env, ENVS[env], seed))
                peer = PAIRS[algo]
                if args.sb3_python and peer not in done:
                    found = theirs(args.sb3_python, peer, env, ENVS[env], seed)
                    record({"algo": peer, **about}, found)


def report() -> None:
    """Print a table per pair of algorithms."""
    runs = recorded()
    for algo, peer in PAIRS.items():
        rows = []
        for env in ENVS:
            of = {a: [r for r in runs if (r["algo"], r["env"]) == (a, env)] for a in (algo, peer)}
            if any(of.values()):
                rows.append([env, *(cell for a in (algo, peer) for cell in cells(of[a]))])
        header = ["environment"]
        for name in (algo, f"SB3 {peer}"):
            header += [f"{name}: mean", "each seed", "s"]
        print(machine.table(header, rows), end="\n\n")


def cells(runs: list[dict[str, Any]]) -> list[str]:
    """Mean over the seeds with its 95% interval (over all their episodes), each seed's mean, median
    wall time."""
    if not runs:
        return ["", "", ""]
    means = [r["return_mean"] for r in runs]
    within = statistics.fmean(r["return_std"] ** 2 for r in runs)
    spread = 1.96 * math.sqrt((within + statistics.pvariance(means)) / (100 * len(runs)))
    seconds = statistics.median(r["seconds"] for r in runs)
    each = ", ".join(f"{mean:.4g}" for mean in means)
    return [f"{statistics.fmean(means):.4g} ± {spread:.2g}", each, f"{seconds:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--sb3-python", help="interpreter that has stable-baselines3 (none: ours)")
    parser.add_argument("--envs", nargs="+", choices=list(ENVS))
    parser.add_argument("--algos", nargs="+", choices=list(PAIRS), default=list(PAIRS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    args = parser.parse_args()
    if args.what == "run":
        run(args)
    else:
        report()


if __name__ == "__main__":
    main()
