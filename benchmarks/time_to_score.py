"""Seconds until greedy evaluations reach a score: SampleForge's presets and Stable-Baselines3.

    python benchmarks/time_to_score.py run --sb3-python SB3/bin/python cartpole minatar
    python benchmarks/time_to_score.py report        # the table as Markdown, the curves as PNG

The clock begins when the command starts, so it includes imports and the start of workers; it stops
during evaluations, which have 20 episodes each. Processor seconds are of all processes of a run;
they compare systems where other programs run. All systems take turns, in the opposite order for
every second seed. A run's result is appended to benchmarks/results/time_to_score.jsonl, and one
that is there already is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import machine

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "time_to_score.jsonl"
PLOT = HERE / "results" / "time_to_score.png"
EPISODES = 20
"""Episodes of an evaluation."""
EXIT_TIMEOUT = 60.0
"""Seconds after which a run that was asked to end is killed."""


class Task(NamedTuple):
    """A score to reach within ``limit`` seconds. ``every``: seconds between the weights of
    SampleForge that are evaluated; ``sb3_every``: env steps between two evaluations of
    Stable-Baselines3; ``stochastic``: evaluations sample actions."""

    env: str
    target: float
    limit: float
    presets: tuple[str, ...]
    every: float
    sb3_every: int
    stochastic: bool = False
    sb3_threads: int = 1


TASKS = {
    "cartpole": Task("CartPole-v1", 475.0, 120.0, ("appo cartpole", "ddppo cartpole"), 0.5, 5_000),
    "minatar": Task(
        "MinAtar/Breakout",
        *(10.0, 300.0, ("appo minatar-breakout", "ddppo minatar-breakout"), 3.0, 20_000),
    ),
    "halfcheetah": Task(
        "HalfCheetah-v5",
        *(2000.0, 600.0, ("appo halfcheetah", "ddppo halfcheetah"), 3.0, 25_000),
    ),
    "pong": Task(
        "ALE/Pong-v5",
        *(18.0, 3600.0, ("appo pong",), 30.0, 50_000),
        stochastic=True,  # without sticky actions the most likely ones can be caught in a loop
        sb3_threads=2,
    ),
}
SB3 = {"SB3 default": "default", "SB3 with CleanRL's settings": "cleanrl"}
"""Label -> ``--settings`` of `benchmarks/sb3_to_score.py`."""


class Point(NamedTuple):
    """An evaluation: seconds on the clock, processor seconds, env steps, mean return. Processes of
    Stable-Baselines3's environments (Pong) are not in its processor seconds."""

    s: float
    cpu: float
    steps: int
    mean: float


def command_of(args: argparse.Namespace, task: Task, system: str, seed: int) -> list[str]:
    """Return the command that trains a system and prints its scores: a preset of SampleForge, or
    Stable-Baselines3."""
    if system in SB3:
        words = [args.sb3_python, "-W", "ignore", str(HERE / "sb3_to_score.py")]
        words += ["--env", task.env, "--settings", SB3[system]]
        words += ["--threads", str(task.sb3_threads), "--every", str(task.sb3_every)]
    else:
        algo, preset = system.split()
        words = [sys.executable, str(HERE / "preset_to_score.py"), "--algo", algo]
        words += ["--preset", preset, "--every", str(task.every)]
    words += ["--target", str(task.target), "--limit", str(args.limit or task.limit)]
    words += ["--episodes", str(EPISODES), "--seed", str(seed)]
    return [*words, "--stochastic"] if task.stochastic else words


def scores(command: list[str]) -> Iterator[Point]:
    """Run a command; yield the scores that it prints."""
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [*command, "--started", str(time.time())],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            found = json.loads(line)
            yield Point(found["s"], found["cpu"], found["steps"], found["mean"])
        if process.wait():
            sys.exit(f"{' '.join(command)} failed with exit code {process.returncode}")
    finally:
        _end(process)


def _end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def measured(curve: Iterator[Point], target: float, limit: float) -> dict[str, Any]:
    """Take evaluations until one reaches ``target``; return the values to record. ``seconds``:
    until the target was reached, None if it was not."""
    points: list[Point] = []
    for point in curve:
        points.append(point)
        if point.mean >= target and point.s <= limit:
            break
    reached = bool(points) and points[-1].mean >= target and points[-1].s <= limit
    return {
        "seconds": round(points[-1].s, 2) if reached else None,
        "cpu_seconds": round(points[-1].cpu, 2) if points else None,
        "env_steps": points[-1].steps if points else 0,
        "curve": [(round(p.s, 2), round(p.cpu, 2), p.steps, round(p.mean, 3)) for p in points],
    }


def recorded() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def run(args: argparse.Namespace) -> None:
    conditions = machine.describe("torch", "gymnasium", "numpy")
    print(conditions, flush=True)
    with RESULTS.open("a") as file:  # the conditions of the runs that follow
        file.write(json.dumps({"conditions": conditions.splitlines()}) + "\n")
    names = args.tasks or list(TASKS)
    total = sum(len(systems(TASKS[name], args)) for name in names) * len(args.seeds)
    number = 0
    for order, seed in enumerate(args.seeds):
        for name in names:
            task = TASKS[name]
            limit = args.limit or task.limit
            for system in systems(task, args)[:: 1 if order % 2 == 0 else -1]:
                number += 1
                about = {"task": name, "system": system, "seed": seed, "limit": limit}
                if any(covers(found, about) for found in recorded()):
                    continue
                print(f"[{number}/{total}] {name}, {system}, seed {seed} ...", flush=True)
                curve = scores(command_of(args, task, system, seed))
                result = measured(curve, task.target, limit)
                with RESULTS.open("a") as file:
                    file.write(json.dumps({**about, "target": task.target, **result}) + "\n")
                print(f"    {result['seconds']} s, {result['env_steps']} env steps", flush=True)


def covers(found: dict[str, Any], about: dict[str, Any]) -> bool:
    """Return whether a recorded run answers for another of the same kind, maybe with another
    limit."""
    same = all(found.get(name) == about[name] for name in ("task", "system", "seed"))
    if not same:
        return False
    reached, limit = found["seconds"], about["limit"]
    return bool(found["limit"] >= limit if reached is None else reached <= limit)


def systems(task: Task, args: argparse.Namespace) -> list[str]:
    """Return the labels of the systems: presets of SampleForge as ``ALGO NAME``, and SB3's."""
    labels = [*task.presets, *(SB3 if args.sb3_python else ())]
    return [label for label in labels if not args.systems or label in args.systems]


def report(args: argparse.Namespace) -> None:
    """Print the table as Markdown, and draw the curves."""
    newest = {(r["task"], r["system"], r["seed"]): r for r in recorded() if "task" in r}
    runs = list(newest.values())
    rows = []
    for name, task in TASKS.items():
        own = [r for r in runs if r["task"] == name]
        for system in dict.fromkeys(r["system"] for r in own):
            of = [r for r in own if r["system"] == system]
            rows.append([f"{task.env} {task.target:g}", system, *cells(of)])
    print(
        machine.table(["score", "system", "median, s", "each seed, s", "CPU s", "env steps"], rows)
    )
    draw(runs, args.out)


def cells(runs: list[dict[str, Any]]) -> list[str]:
    """Return the median time over the seeds, each seed's time, and the medians of processor seconds
    and env steps. A run that failed took longer than its limit, so the median may be a bound too;
    its processor seconds and env steps are all that it had."""
    runs = sorted(runs, key=lambda r: r["seed"])
    shown = [f"> {r['limit']:g}" if r["seconds"] is None else f"{r['seconds']:.1f}" for r in runs]
    least = statistics.median_low(r["seconds"] or r["limit"] for r in runs)
    is_bound = any(r["seconds"] is None and r["limit"] <= least for r in runs)
    median = f"> {least:g}" if is_bound else f"{least:.1f}"
    steps = statistics.median(r["env_steps"] for r in runs)
    cpu = statistics.median(r["cpu_seconds"] or 0.0 for r in runs)
    return [median, ", ".join(shown), f"{cpu:.1f}", f"{steps:,.0f}"]


def draw(runs: list[dict[str, Any]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in TASKS if any(r["task"] == name for r in runs)]
    figure, axes = pyplot.subplots(
        1, len(names), figsize=(7 * len(names), 4.8), layout="constrained", squeeze=False
    )
    for axis, name in zip(axes.flat, names, strict=True):
        task, shown = TASKS[name], set()
        for result in (r for r in runs if r["task"] == name and r["curve"]):
            label = _label(result["system"])
            colour = COLOURS[label]
            seconds, _, _, means = zip(*result["curve"], strict=True)
            axis.plot(
                *(seconds, means),
                color=colour,
                lw=1.3,
                alpha=0.85,
                label=None if label in shown else label,
            )
            if result["seconds"] is not None:
                axis.plot(seconds[-1], means[-1], "o", color=colour, ms=6)
            shown.add(label)
        axis.axhline(task.target, color="0.4", ls="--", lw=1)
        axis.set_title(f"{task.env}: {task.target:g}")
        axis.set_xlabel("seconds since the command started")
        axis.set_ylabel(f"mean return of {EPISODES} evaluation episodes")
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right")
    figure.savefig(out, dpi=80)
    print(f"\ncurves: {out}")


COLOURS = {
    "SampleForge APPO": "tab:blue",
    "SampleForge DD-PPO": "tab:green",
    "SB3 default": "tab:orange",
    "SB3 with CleanRL's settings": "tab:red",
}


def _label(system: str) -> str:
    """Return the label in the plot, the same for an algorithm in all tasks."""
    own = {"appo": "SampleForge APPO", "ddppo": "SampleForge DD-PPO"}
    return system if system in SB3 else own[system.split()[0]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; all")
    parser.add_argument("--sb3-python", help="interpreter that has stable-baselines3 (none: ours)")
    parser.add_argument("--systems", nargs="+", metavar="LABEL", help="only these (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--limit", type=float, help="seconds instead of the tasks' own")
    parser.add_argument("--out", type=Path, default=PLOT, help="of the plot")
    args = parser.parse_intermixed_args()
    unknown = [name for name in args.tasks if name not in TASKS]
    if unknown:
        parser.error(f"no task {unknown[0]!r}; there are {', '.join(TASKS)}")
    if args.what == "run":
        run(args)
    else:
        report(args)


if __name__ == "__main__":
    main()
