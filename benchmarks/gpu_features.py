"""Every algorithm with every feature that has to do with a GPU: short runs, several at a time.

    python benchmarks/gpu_features.py --device cuda --jobs 5 --seconds 200
    python benchmarks/gpu_features.py --device cpu --only appo --jobs 1

Each pair of algorithm and feature trains until it has taken some thousand env steps, in a process
and a run folder of its own. Of some, a worker is killed or the run interrupted in between. A pair
has passed if its command ends as it should, its env steps were taken and its learner made updates.
The last line of the output is a JSON object: of each pair, how it went.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
LIMIT = 110.0
"""Seconds for a pair."""
BREAKOUT = ["--env", "ALE/Breakout-v5"]
PENDULUM = ["--env", "Pendulum-v1"]
SLOTS = [
    *("--num-workers", "2", "--num-envs-per-worker", "8", "--rollout", "32"),
    *("--batch-size", "512", "--minibatch-size", "256", "--train-for-env-steps", "8000"),
]
REPLAY = [
    *("--num-workers", "2", "--num-envs-per-worker", "8", "--learning-starts", "1000"),
    *("--replay-capacity", "20000", "--train-for-env-steps", "6000"),
]
RANKS = ["--num-envs-per-worker", "8", "--rollout", "32", "--train-for-env-steps", "8000"]
STORED = [*BREAKOUT, "--batch-size", "64", "--train-for-seconds", "15"]
LONGER = "30000"
"""Env steps of a pair that is disturbed: it must still be running then."""
GRU = ["--model.core", "gru"]
PAIR = ["--num-policies", "2"]


@dataclass(frozen=True)
class Pair:
    """An algorithm with a feature. ``kill``: the worker that is killed once the run has begun to
    learn; ``interrupt``: Ctrl-C then. ``needs_gpu``: refused without one."""

    algo: str
    feature: str
    flags: list[str]
    kill: str | None = None
    interrupt: bool = False
    needs_gpu: bool = False

    @property
    def name(self) -> str:
        return f"{self.algo}: {self.feature}"


WORKER = ["--inference", "worker"]
EAGER = ["--no-cuda-graphs"]
PAIRS = [
    Pair("appo", "default", [*BREAKOUT, *SLOTS]),
    Pair("appo", "no graphs", [*BREAKOUT, *SLOTS, *EAGER]),
    Pair("appo", "compiled", [*BREAKOUT, *SLOTS, "--compile"]),
    Pair("appo", "gru", [*BREAKOUT, *SLOTS, *GRU]),
    Pair("appo", "two policies", [*BREAKOUT, *SLOTS, *PAIR]),
    Pair("appo", "population", [*BREAKOUT, *SLOTS, *PAIR, "--pbt", "--pbt-period", "2000"]),
    Pair("appo", "inline", [*BREAKOUT, *SLOTS, "--inference", "inline"]),
    Pair("appo", "vectors", ["--env", "CartPole-v1", *SLOTS, *WORKER]),
    Pair("appo", "boxes", [*PENDULUM, *SLOTS, *WORKER]),
    Pair("appo", "two learners", [*BREAKOUT, *SLOTS, "--num-learners", "2"]),
    Pair("appo", "serial", [*BREAKOUT, *SLOTS, "--serial"]),
    Pair("appo", "policy worker killed", [*BREAKOUT, *SLOTS, *WORKER], kill="policy 0"),
    Pair("appo", "learner killed", [*BREAKOUT, *SLOTS], kill="learner"),
    Pair("appo", "interrupted", [*BREAKOUT, *SLOTS], interrupt=True),
    Pair("apex", "default", [*BREAKOUT, *REPLAY]),
    Pair("apex", "no graphs", [*BREAKOUT, *REPLAY, *EAGER]),
    Pair("apex", "gru", [*BREAKOUT, *REPLAY, *GRU]),
    Pair("apex", "noisy nets", [*BREAKOUT, *REPLAY, "--noisy-nets"]),
    Pair("apex", "two policies", [*BREAKOUT, *REPLAY, *PAIR]),
    Pair(
        "apex",
        "frames on the GPU",
        [*BREAKOUT, *REPLAY, "--replay-gpu-memory", "1"],
        needs_gpu=True,
    ),
    Pair("apex", "learner killed", [*BREAKOUT, *REPLAY], kill="learner"),
    Pair("pqn", "default", [*BREAKOUT, *SLOTS]),
    Pair("sac", "default", [*PENDULUM, *REPLAY]),
    Pair("sac", "policy worker", [*PENDULUM, *REPLAY, *WORKER]),
    Pair("crossq", "default", [*PENDULUM, *REPLAY]),
    Pair("td3", "default", [*PENDULUM, *REPLAY]),
    Pair("ddppo", "one rank", [*BREAKOUT, *RANKS, "--num-ranks", "1"]),
    Pair("ddppo", "two ranks", [*BREAKOUT, *RANKS, "--num-ranks", "2"]),
    Pair("ddppo", "gru", [*BREAKOUT, *RANKS, "--num-ranks", "2", *GRU]),
    Pair("ddppo", "rank killed", [*BREAKOUT, *RANKS, "--num-ranks", "2"], kill="rank 1"),
    Pair("marwil", "default", STORED),
]


def command_of(pair: Pair, device: str, folder: Path) -> list[str]:
    command = [sys.executable, str(REPO / "train.py"), pair.algo, "--run-dir", str(folder / "run")]
    flags = on_device(pair.flags, device)
    if pair.kill is not None or pair.interrupt:
        flags[flags.index("--train-for-env-steps") + 1] = LONGER
    return [*command, "--device", device, "--report-interval", "0.5", "--seed", "1", *flags]


def on_device(flags: list[str], device: str) -> list[str]:
    """Return the flags with a game in the place of Breakout that a CPU learns in time."""
    return ["MinAtar/Breakout" if device == "cpu" and w in BREAKOUT[1:] else w for w in flags]


def outcome_of(pair: Pair, device: str, data: Path) -> dict[str, Any]:
    """Train the pair, and return how it went."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        command = command_of(pair, device, folder)
        if pair.algo == "marwil":
            command += ["--input", str(data)]
        with (folder / "output").open("w+") as out:
            process = subprocess.Popen(
                command, cwd=folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                disturbed = disturb(pair, process, folder / "run")
                code = process.wait(max(1.0, LIMIT - (time.monotonic() - started)))
                error = judged(pair, code, disturbed, folder / "run")
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGABRT)
                error = f"not done after {LIMIT:.0f} s"
            finally:
                end(process)
            out.seek(0)
            output = out.read()
        kept = summary_of(folder / "run")
    result = {"ok": error is None, "seconds": time.monotonic() - started, **kept}
    return result if error is None else {**result, "error": error, "output": output[-2500:]}


def disturb(pair: Pair, process: subprocess.Popen[Any], run: Path) -> bool:
    """Kill or interrupt what the pair says, once its learner learns; return whether it was done."""
    if pair.kill is None and not pair.interrupt:
        return False
    while process.poll() is None:
        time.sleep(0.2)
        workers = workers_of(run)
        units = ("trained/s", "env steps/s") if pair.algo == "ddppo" else ("trained/s",)
        learning = any(w["unit"] in units and (w["rate"] or 0) > 0 for w in workers)
        pids = [w["pid"] for w in workers if w["name"] == pair.kill]
        if learning and pair.interrupt:
            os.killpg(process.pid, signal.SIGINT)
            return True
        if learning and pids:
            os.kill(pids[0], signal.SIGKILL)
            return True
    return False


def workers_of(run: Path) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads((run / "workers.json").read_text())["workers"]
    except (FileNotFoundError, ValueError):
        return []
    return found


def summary_of(run: Path) -> dict[str, Any]:
    try:
        summary = json.loads((run / "summary.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    names = ("env_steps", "updates", "skipped_updates", "restarts_by_role", "wall_s")
    return {name: summary.get(name) for name in names}


def judged(pair: Pair, code: int, disturbed: bool, run: Path) -> str | None:
    """Return what is wrong with a pair whose command has ended, or None."""
    summary = summary_of(run)
    if pair.interrupt:
        return None if disturbed and summary else f"exit code {code}, disturbed: {disturbed}"
    if code:
        return f"exit code {code}"
    if not summary.get("updates"):
        return "no updates"
    if pair.kill is None:
        restarts = {role: n for role, n in (summary["restarts_by_role"] or {}).items() if n}
        return f"restarts: {restarts}" if restarts else None
    if not disturbed:
        return "ended before a worker was killed"
    return None if sum(summary["restarts_by_role"].values()) else "no worker was restarted"


def end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def record(folder: Path, device: str) -> None:
    """Record a little data of Breakout for algorithms that learn from recorded data alone."""
    flags = on_device([*BREAKOUT, *SLOTS], device)
    command = [sys.executable, str(REPO / "train.py"), "appo", *flags, "--quiet"]
    command += ["--device", "cpu", "--record", str(folder / "data")]
    subprocess.run([*command, "--run-dir", str(folder / "run")], check=True, cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 3))
    parser.add_argument("--seconds", type=float, default=400.0, help="no pair begins after these")
    parser.add_argument("--only", nargs="+", help="words; pairs with one of them in their name")
    args = parser.parse_args()
    chosen = [p for p in PAIRS if not args.only or any(word in p.name for word in args.only)]
    chosen = [p for p in chosen if args.device != "cpu" or not p.needs_gpu]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if any(pair.algo == "marwil" for pair in chosen):
            record(Path(folder), args.device)

        def run(pair: Pair) -> tuple[str, dict[str, Any]]:
            if time.monotonic() - begun > args.seconds:
                return pair.name, {"ok": False, "seconds": 0.0, "error": "no time was left"}
            try:
                found = outcome_of(pair, args.device, Path(folder) / "data")
            except Exception as error:
                found = {"ok": False, "seconds": 0.0, "error": f"{type(error).__name__}: {error}"}
            word = "ok" if found["ok"] else f"FAILED ({found['error']})"
            print(f"{pair.name}: {word}, {found['seconds']:.0f} s", file=sys.stderr, flush=True)
            return pair.name, found

        with ThreadPoolExecutor(args.jobs) as pool:
            results = dict(pool.map(run, chosen))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
