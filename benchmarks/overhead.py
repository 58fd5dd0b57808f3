"""Processor time per env step of this checkout against that of another commit, in pairs of the same
training: what a feature costs that is not used.

A pair is four trainings in the order A B B A (the next pair's is B A A B), so that a drift of the
machine's speed cancels, and the lower figure of each side counts: other programs only add to it. A
figure is the processor time of all processes of a training, less that of one of a single env step
(its imports, its model), per env step. With --serial among the flags it varies less, because no
processes share the caches. Reports go to metrics.jsonl and TensorBoard, as by default. The
processor time of a process counts as soon as its parent has waited for it: this one adopts the
orphans of a training (Linux), and waits for them.

    taskset -c 0,1 python benchmarks/overhead.py b98df21 --pairs 15
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from machine import describe, table

HERE = Path(__file__).resolve().parents[1]
T_95 = 1.761
"""Student's t of 14 degrees of freedom, for a one-sided bound of 95%: 15 pairs."""
STARTS = 5
"""Trainings of a single env step of each side."""
SET_CHILD_SUBREAPER = 36
"""Of prctl(2)."""


class Checkout:
    """The package in the folder ``root``, which trains in folders below ``work``."""

    def __init__(self, root: Path, work: Path) -> None:
        work.mkdir()
        (work / "sampleforge_envs").symlink_to(root / "envs")
        self._path = f"{root}{os.pathsep}{work}"
        self._work = work
        self._trainings = 0
        self._short: list[tuple[float, int]] = []

    def train(self, env_steps: int, seed: int, flags: list[str]) -> tuple[float, int]:
        """Train; return (seconds of processor time, env steps taken)."""
        self._trainings += 1
        run = self._work / f"run-{self._trainings}"
        command = [sys.executable, "-m", "sampleforge", "train", "appo", "--quiet"]
        command += ["--run-dir", str(run), "--seed", str(seed)]
        command += ["--train-for-env-steps", str(env_steps), *flags]
        before = children_s()
        environment = {**os.environ, "PYTHONPATH": self._path}
        silent = subprocess.DEVNULL
        subprocess.run(command, check=True, cwd=self._work, env=environment, stdout=silent)
        with suppress(ChildProcessError):
            while True:
                os.wait()
        taken = json.loads((run / "summary.json").read_text())["env_steps"]
        return children_s() - before, int(taken)

    def start(self, flags: list[str]) -> None:
        """Train for a single env step. The least processor time of all such trainings is that of
        the start."""
        self._short.append(self.train(1, 0, flags))

    def step_s(self, env_steps: int, seed: int, flags: list[str]) -> float:
        """Return the seconds of processor time per env step."""
        (short_s, few), (long_s, many) = min(self._short), self.train(env_steps, seed, flags)
        return (long_s - short_s) / (many - few)


def children_s() -> float:
    """Return the processor time of all children that this process has waited for, and theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("commit", help="to compare with, of this repository")
    parser.add_argument("--pairs", type=int, default=15, help="with 15 there is a bound")
    parser.add_argument("--env-steps", type=int, default=3_000_000, help="of each training")
    parser.add_argument("--flags", default="--env CartPole-v1", help="of both")
    args = parser.parse_args()
    flags = shlex.split(args.flags)
    ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    print(describe("numpy", "torch", "gymnasium"), end="\n\n", flush=True)
    git = ["git", "-C", str(HERE), "worktree"]
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        other = Path(folder, "commit")
        subprocess.run([*git, "add", "--quiet", "--detach", str(other), args.commit], check=True)
        try:
            sides = (Checkout(other, Path(folder, "a")), Checkout(HERE, Path(folder, "b")))
            for _ in range(STARTS):
                for side in sides:
                    side.start(flags)
            pairs = []
            for pair in range(args.pairs):
                first, second = sides if pair % 2 else sides[::-1]
                found: dict[Checkout, list[float]] = {first: [], second: []}
                for side in (first, second, second, first):
                    found[side].append(side.step_s(args.env_steps, pair, flags))
                pairs.append((min(found[sides[0]]), min(found[sides[1]])))
                before, after = (f"{s * 1e6:.3f}" for s in pairs[-1])
                print(f"pair {pair + 1}: {before} us, {after} us", flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)
    print("\n" + table(HEADER, [row(args.commit, pairs)]))


HEADER = ["compared with", "before, us CPU", "now, us CPU", "now / before", "95% bound"]


def row(commit: str, pairs: list[tuple[float, float]]) -> list[str]:
    """Return the row of the result. ``pairs``: seconds per env step, before and now."""
    ratios = [now / before for before, now in pairs]
    bound = "(15 pairs)"
    if len(ratios) == 15:
        within = T_95 * statistics.stdev(ratios) / math.sqrt(len(ratios))
        bound = f"below {statistics.fmean(ratios) + within:.4f}"
    before, now = (statistics.fmean(side) * 1e6 for side in zip(*pairs, strict=True))
    mean = statistics.fmean(ratios)
    return [commit, f"{before:.3f}", f"{now:.3f}", f"{mean:.4f}", bound]


if __name__ == "__main__":
    main()
