"""The share of a run's processor time that goes into callbacks and sinks, where no callback of the
user's own has hooks.

    python benchmarks/callback_cost.py [--runs 15] [--seconds 20] [--flags "..."]

Trains by the command line's own way, with metrics.jsonl, TensorBoard, the lines on the screen and
metrics.csv, and adds up the processor time of the driver's thread inside `tell`, through which the
session reaches every callback. That is set against the processor time of all processes of the run,
start and end included. What workers pay is one comparison with None per rollout and per update; its
cost is timed apart. Prints a line per run, the hooks' shares of all, and with 15 runs a bound.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from machine import describe
from overhead import SET_CHILD_SUBREAPER, T_95, children_s

FLAGS = (
    "--env CartPole-v1 --async-rl --num-epochs 1 --num-workers 2 --num-envs-per-worker 64 "
    "--num-splits 1 --batch-size 4096 --rollout 32 --model.separate-critic False --track csv"
)


class Timed:
    """`tell`, with its calls counted and its processor time added up by the name of the hook."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self.calls: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()

    def __call__(self, callback: Any, hook: str, *args: Any) -> Any:
        began = time.thread_time()
        try:
            return self._tell(callback, hook, *args)
        finally:
            self.calls[hook] += 1
            self.seconds[hook] += time.thread_time() - began  # type: ignore[assignment]


def train(flags: list[str], costs: Path) -> int:
    """Train in this process; write calls and seconds of each hook into the file ``costs``."""
    from sampleforge.cli import main as command_line
    from sampleforge.run import session

    timed = Timed(session.tell)  # type: ignore[attr-defined]
    session.tell = timed  # type: ignore[assignment, attr-defined]
    code: int = command_line(["train", "appo", *flags])
    costs.write_text(json.dumps([timed.calls, timed.seconds]))
    return code


def measured(
    flags: str, seconds: float, seed: int
) -> tuple[dict[str, int], dict[str, float], float]:
    """Train once; return calls and seconds of each hook, and the seconds of processor time of all
    processes."""
    before = children_s()
    with tempfile.TemporaryDirectory() as folder:
        run, costs = f"{flags} --seed {seed} --run-dir {folder}/run", Path(folder, "costs")
        run += f" --train-for-seconds {seconds}"
        command = [sys.executable, __file__, "--flags", run, "--costs", str(costs)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with suppress(ChildProcessError):
            while True:
                os.wait()
        calls, spent = json.loads(costs.read_text())
    return calls, spent, children_s() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=15, help="with 15 there is a bound")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each training")
    parser.add_argument("--flags", default=FLAGS, help="of train appo")
    parser.add_argument("--costs", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.costs is not None:
        raise SystemExit(train(shlex.split(args.flags), args.costs))
    print(describe("numpy", "torch", "gymnasium"), end="\n\n", flush=True)
    ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    calls: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    shares, whole = [], 0.0
    for run in range(args.runs):
        called, spent, cpu = measured(args.flags, args.seconds, run)
        calls.update(called)
        seconds.update(spent)
        shares.append(sum(spent.values()) / cpu)
        whole += cpu
        print(f"run {run + 1}: {shares[-1]:.3%} of {cpu:.1f} s CPU", flush=True)
    for hook, inside in seconds.most_common():
        print(f"{hook}: {calls[hook]} calls, {inside * 1e3:.2f} ms, {inside / whole:.4%}")
    bound = ""
    if len(shares) == 15:
        within = T_95 * statistics.stdev(shares) / math.sqrt(len(shares))
        bound = f"; 95% bound: below {statistics.fmean(shares) + within:.3%}"
    print(f"in callbacks and sinks: {statistics.fmean(shares):.3%}{bound}")
    check = min(timeit.repeat("hook is not None", "hook = None", number=10**6, repeat=5)) * 1e3
    print(f"a worker's check of an unused hook: {check:.1f} ns, once per rollout and update")


if __name__ == "__main__":
    main()
