"""What a run costs beside its work when it has many actors: start, bookkeeping, memory, end.

Each environment is a CartPole that sleeps in every step, as for a simulator on another device. For
each number of actors one training, with processes, reports and a learner that learns:

  start        from the command until every actor has delivered a first env step, in seconds
  env steps/s  and the fraction of as many times the rate per actor of the first number of actors
  driver       processor time of the driver's process, in % of a core
  learner      the same of the learner's process, with APPO without what it spends inside of
               `Learner.update`: the copying of batches and the publishing of weights are included
  replay       the same of the replay worker (Ape-X)
  actors       the same of all actors or ranks together, their own work included
  end          from the end of the training until the command has ended, in seconds
  MiB, files   private memory (USS) and open files of an actor, the largest of eight

    python benchmarks/many_actors.py --actors 8 16 32 64 128 --out benchmarks/results

``--tree FOLDER`` measures another checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import psutil
from machine import HERE, describe, table
from scaling_report import log_axes, new_figure, save

from sampleforge import Callback

RESULT = "result: "
"""What the line of a measured process begins with that has its figures."""
ROLLOUT = 10
SETTLE_S = 3.0
"""Seconds between the first env step of the last actor and the measurement."""
SAMPLED = 8
"""Actors whose memory and open files are looked at."""


class UpdateClock(Callback):
    """Counts the processor time that the learner spends inside of `Learner.update`, from its first
    update on, in a file: a float64."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)
        np.zeros(1).tofile(self.file)
        self._spent: Any = None

    def read(self) -> float:
        return float(np.fromfile(self.file)[0])

    def on_learner_update(self, update: Any) -> None:
        if self._spent is not None:
            return
        from sampleforge.algorithms.learning import Update
        from sampleforge.algorithms.ppo.learner import PpoLearner

        self._spent = spent = np.memmap(self.file, np.float64, "r+")
        plain = PpoLearner.update

        def timed(learner: PpoLearner, *args: Any) -> Update:
            begun = process_time()
            updated = plain(learner, *args)
            spent[0] += process_time() - begun
            return updated

        PpoLearner.update = timed  # type: ignore[assignment, method-assign]


class Mark(NamedTuple):
    """Counts at one moment: seconds, env steps, and processor seconds by process."""

    at: float
    env_steps: float
    driver: float
    learner: float
    replay: float
    actors: float
    update: float


class Watch(Callback):
    """Measures a run for ``seconds``, from `SETTLE_S` after the first steps of all actors on, and
    then ends it. ``stepped`` and ``ended``: when (`time.time`) all actors had stepped, and the
    training ended."""

    def __init__(self, seconds: float, clock: UpdateClock) -> None:
        self._seconds = seconds
        self._clock = clock
        self.stepped = self.ended = 0.0
        self.marks: list[Mark] = []
        self.memory_mib, self.files = 0.0, 0

    def on_poll(self, session: Any) -> None:
        now = time.time()
        if not self.stepped:
            rows = [node.counter_row for node in session.graph.having("actor", "rank")]
            if session.graph.counters.column("split_steps")[rows].all():
                self.stepped = now
        elif not self.marks:
            if now - self.stepped >= SETTLE_S:
                self.marks.append(self._mark(session))
        elif now - self.marks[0].at >= self._seconds and not self.ended:
            self.marks.append(self._mark(session))
            self._look_at_actors(session)
            self.ended = time.time()
            session.stop()

    def _mark(self, session: Any) -> Mark:
        pids = session.runner.pids()

        def spent(*roles: str) -> float:
            nodes = session.graph.having(*roles)
            return sum(sum(psutil.Process(pids[node.name]).cpu_times()[:2]) for node in nodes)

        return Mark(
            time.time(),
            session.graph.counters.total("env_steps"),
            process_time(),
            spent("learner"),
            spent("replay"),
            spent("actor", "rank"),
            self._clock.read(),
        )

    def _look_at_actors(self, session: Any) -> None:
        nodes, pids = session.graph.having("actor", "rank"), session.runner.pids()
        actors = [psutil.Process(pids[node.name]) for node in nodes[:SAMPLED]]
        self.memory_mib = max(actor.memory_full_info().uss for actor in actors) / 2**20
        self.files = max(actor.num_fds() for actor in actors)


def settings(algo: str, actors: int, step_ms: float, folder: str) -> Any:
    """Return the config of a run whose actors each have one row."""
    from sampleforge.topologies.config import ApexConfig, AppoConfig, DdppoConfig

    common: dict[str, Any] = {
        **{"env": "benchmarks.paced:cartpole", "env_kwargs": {"step_ms": step_ms}},
        **{"num_envs_per_worker": 1, "num_splits": 1, "rollout": ROLLOUT, "run_dir": folder},
        **{"device": "cpu", "precision": "fp32", "seed": 1, "quiet": True},
    }
    if algo == "appo":
        return AppoConfig(**common, num_workers=actors, inference="inline", async_rl=True)
    if algo == "ddppo":
        return DdppoConfig(**common, num_ranks=actors, num_epochs=1)
    return ApexConfig(
        **common,
        num_workers=actors,
        inference="inline",
        replay_capacity=50_000,
        learning_starts=500,
        samples_per_insert=1.0,
        batch_size=64,
    )


def measure_here(args: argparse.Namespace) -> None:
    """Train in this process, and print the figures."""
    from sampleforge.run.session import Session

    actors, begun = int(args.here[0]), float(args.here[1])
    with tempfile.TemporaryDirectory() as folder:
        clock = UpdateClock(Path(folder) / "update_s")
        watch = Watch(args.seconds, clock)
        config = settings(args.algo, actors, args.step_ms, f"{folder}/run")
        timed = [clock] if args.algo == "appo" else []
        with Session(config, callbacks=[*timed, watch]) as session:
            for _ in session.reports():
                pass
        first, last = watch.marks
    core = 100.0 / (last.at - first.at)
    learner = last.learner - first.learner - (last.update - first.update)
    figures = {
        "start": watch.stepped - begun,
        "rate": (last.env_steps - first.env_steps) / (last.at - first.at),
        "driver": core * (last.driver - first.driver),
        "learner": core * learner,
        "actors": core * (last.actors - first.actors),
        "replay": core * (last.replay - first.replay),
        "memory_mib": watch.memory_mib,
        "files": watch.files,
        "ended": watch.ended,
    }
    print(RESULT + json.dumps(figures), flush=True)


def measure(args: argparse.Namespace, actors: int) -> dict[str, float]:
    """Return the figures of one run, in a process of its own."""
    tree = args.tree.resolve()
    path = os.pathsep.join([str(tree), str(HERE), os.environ.get("PYTHONPATH", "")])
    begun = time.time()
    command = [sys.executable, __file__, "--algo", args.algo, "--step-ms", f"{args.step_ms}"]
    command += ["--seconds", f"{args.seconds}", "--here", f"{actors}", f"{begun}"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        cwd=tree,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    ended = time.time()
    line = next(line for line in done.stdout.splitlines() if line.startswith(RESULT))
    figures: dict[str, float] = json.loads(line.removeprefix(RESULT))
    figures["end"] = ended - figures["ended"]
    return figures


def rows_of(found: Mapping[int, Mapping[str, float]]) -> list[list[str]]:
    """Return the cells of the table: a row for each number of actors."""
    first = min(found)
    rows = []
    for actors, of in found.items():
        linear = of["rate"] / actors / (found[first]["rate"] / first)
        rows.append(
            [
                *(f"{actors}", f"{of['start']:.1f}", f"{of['rate']:.0f}", f"{linear:.1%}"),
                *(f"{of[name]:.2f}" for name in ("driver", "learner", "replay")),
                f"{of['actors']:.0f}",
                *(f"{of['end']:.2f}", f"{of['memory_mib']:.1f}", f"{of['files']:.0f}"),
            ]
        )
    return rows


HEADER = [
    *("number", "start, s", "env steps/s", "linear", "driver, %", "learner, %", "replay, %"),
    *("actors, %", "end, s", "MiB", "files"),
]


def draw(found: Mapping[int, Mapping[str, float]], step_ms: float, file: Path) -> None:
    """Draw the rates and the bookkeeping over the numbers of actors."""
    actors, first = sorted(found), min(found)
    figure, rates = new_figure("actors")
    rates.plot(actors, [found[n]["rate"] for n in actors], "o-", label="env steps/s")
    linear = [found[first]["rate"] / first * n for n in actors]
    rates.plot(actors, linear, "k--", linewidth=1, label="linear")
    log_axes(rates, actors)
    rates.set_ylabel("env steps/s")
    beside = rates.twinx()
    for name, style in (("driver", "C1s-"), ("learner", "C2^-")):
        beside.plot(actors, [found[n][name] for n in actors], style, label=f"{name}, % of a core")
    beside.set_ylim(bottom=0)
    beside.set_ylabel("bookkeeping, % of a core")
    beside.legend(fontsize=9, loc="lower right")
    rates.set_title(f"Actors whose simulators sleep {step_ms:.0f} ms per step", fontsize=10)
    save(figure, [rates, beside], file)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--algo", choices=["appo", "apex", "ddppo"], default="appo")
    parser.add_argument("--actors", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--step-ms", type=float, default=50.0, help="that a step sleeps")
    parser.add_argument("--tree", type=Path, default=HERE.parent, help="another checkout")
    parser.add_argument("--out", type=Path, metavar="DIR", help="draw a PNG here (matplotlib)")
    parser.add_argument("--here", nargs=2, metavar=("N", "BEGUN"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> None:
    args = parsed()
    if args.here is not None:
        measure_here(args)
        return
    print(describe("torch", "gymnasium"), end="\n\n", flush=True)
    found: dict[int, dict[str, float]] = {}
    for number, actors in enumerate(args.actors, 1):
        progress = f"[{number}/{len(args.actors)}] {args.algo}, {actors} actors"
        print(f"{progress} ...", end="", file=sys.stderr, flush=True)
        found[actors] = of = measure(args, actors)
        print(f" start {of['start']:.1f} s, end {of['end']:.1f} s", file=sys.stderr, flush=True)
    print(table(HEADER, rows_of(found)))
    if args.out is not None:
        draw(found, args.step_ms, args.out / "many_actors.png")


if __name__ == "__main__":
    main()
