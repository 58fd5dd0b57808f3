"""The share of a run's processor time that goes into callbacks and sinks, where no callback of the
user's own has hooks: `python benchmarks/callback_cost.py [--seconds 60] [--flags "..."]`.

Trains by the command line's own way, with metrics.jsonl, TensorBoard, the panel and metrics.csv,
and adds up the processor time of the driver's thread inside `tell`, through which the session
reaches every callback. That is set against the processor time of all processes of the run, start
and end included. What workers pay is one comparison with None per rollout and per update; its
cost is timed apart. Prints one line each.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shlex
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
from overhead import SET_CHILD_SUBREAPER, children_s

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
    from sampleforge.session import session

    timed = Timed(session.tell)  # type: ignore[attr-defined]
    session.tell = timed  # type: ignore[assignment, attr-defined]
    code: int = command_line(["train", "appo", *flags])
    costs.write_text(json.dumps([timed.calls, timed.seconds]))
    return code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="of training")
    parser.add_argument("--flags", default=FLAGS, help="of train appo")
    parser.add_argument("--costs", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.costs is not None:
        raise SystemExit(train(shlex.split(args.flags), args.costs))
    print(describe("numpy", "torch", "gymnasium"), end="\n\n", flush=True)
    ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        run, costs = f"{args.flags} --seed 1 --run-dir {folder}/run", Path(folder, "costs.json")
        run += f" --train-for-seconds {args.seconds}"
        command = [sys.executable, __file__, "--flags", run, "--costs", str(costs)]
        subprocess.run(command, check=True)
        with suppress(ChildProcessError):
            while True:
                os.wait()
        calls, seconds = json.loads(costs.read_text())
    whole = children_s()
    for hook, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        print(f"{hook}: {calls[hook]} calls, {spent * 1e3:.2f} ms, {spent / whole:.4%}")
    inside = sum(seconds.values())
    print(f"in callbacks and sinks: {inside:.3f} of {whole:.1f} s CPU: {inside / whole:.3%}")
    check = min(timeit.repeat("hook is not None", "hook = None", number=10**6, repeat=5)) * 1e3
    print(f"a worker's check of an unused hook: {check:.1f} ns, once per rollout and update")


if __name__ == "__main__":
    main()
