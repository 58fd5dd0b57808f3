"""The cost of --record: pairs of runs with and without it, alternating.

    python benchmarks/recording.py --pairs 15 --seconds 60

Each run trains APPO on ALE/Breakout-v5. Counted are, from the end of the warm-up on, env steps per
second, and the CPU time of all processes of the run per env step. The last line is one JSON object:
the mean ratio of each pair (with --record / without) and its 95% interval (Student's t).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

T_975 = {1: 12.71, 2: 4.30, 4: 2.78, 6: 2.45, 9: 2.26, 14: 2.14, 19: 2.09, 29: 2.05}
"""Student's t for a two-sided 95% interval, by degrees of freedom."""


class Cost(NamedTuple):
    steps_per_s: float
    cpu_us_per_step: float
    dropped: float
    recorded_mb: float


class CpuTime:
    """The CPU seconds of all processes of a session so far, those that have ended included."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._seconds: dict[tuple[int, float], float] = {}

    def look(self) -> float:
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self._session:
                    times = process.cpu_times()
                    key = process.pid, process.create_time()
                    self._seconds[key] = times.user + times.system
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        return sum(self._seconds.values())


def last_report(run: Path) -> dict[str, float]:
    """Return the newest whole line of metrics.jsonl; empty before the first one."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    found: dict[str, float] = json.loads(whole[-1]) if whole else {}
    return found


def measure(env: str, folder: Path, warm_up: float, seconds: float, record: bool) -> Cost:
    """Train for ``warm_up`` + ``seconds`` and return what the second part has cost."""
    run, data = folder / "run", folder / "data"
    command = [
        *(sys.executable, "-m", "sampleforge.cli", "train", "appo", "--env", env, "--quiet"),
        *("--seed", "1", "--run-dir", str(run), "--report-interval", "1"),
        *(["--record", str(data), "--record-max-gb", "1000"] if record else []),
    ]
    process = subprocess.Popen(command, start_new_session=True)
    cpu = CpuTime(process.pid)
    try:
        while not last_report(run).get("updates"):
            if process.poll() is not None:
                raise SystemExit(f"the run has ended: {process.returncode}")
            time.sleep(0.2)
        time.sleep(warm_up)
        before, cpu_before = last_report(run), cpu.look()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.5)
            cpu.look()
        after, cpu_after = last_report(run), cpu.look()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    steps = after["env_steps"] - before["env_steps"]
    size = sum(each.stat().st_size for each in data.rglob("*")) / 1e6 if record else 0.0
    return Cost(
        steps / (after["wall_s"] - before["wall_s"]),
        (cpu_after - cpu_before) / steps * 1e6,
        after.get("record_dropped_steps", 0.0),
        size,
    )


def interval(ratios: list[float]) -> dict[str, float]:
    """Return mean and 95% interval of the ratios of the pairs."""
    mean = statistics.mean(ratios)
    if len(ratios) == 1:
        return {"mean": mean}
    freedom = len(ratios) - 1
    t = T_975[max(known for known in T_975 if known <= freedom)]
    half = t * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="ALE/Breakout-v5")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--warm-up", type=float, default=15.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    pairs: list[dict[bool, Cost]] = []
    for number in range(args.pairs):
        pair = {}
        for record in (True, False) if number % 2 else (False, True):
            folder = Path(tempfile.mkdtemp(prefix="recording-"))
            try:
                pair[record] = measure(args.env, folder, args.warm_up, args.seconds, record)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        pairs.append(pair)
        print(f"pair {number + 1}: without {pair[False]}, with {pair[True]}", flush=True)
    result = {
        "env": args.env,
        "pairs": args.pairs,
        "seconds": args.seconds,
        "rate": interval([p[True].steps_per_s / p[False].steps_per_s for p in pairs]),
        "cpu_per_step": interval(
            [p[True].cpu_us_per_step / p[False].cpu_us_per_step for p in pairs]
        ),
        "dropped_steps": sum(pair[True].dropped for pair in pairs),
        "recorded_mb_per_run": statistics.mean(pair[True].recorded_mb for pair in pairs),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
