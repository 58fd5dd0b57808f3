"""Kill members and launchers of small populations of runs at random moments; check what is left.

    python benchmarks/population_kills.py OUT --kills 1000 [--algo appo] [--seed 0] [--mean 4]

Each population is `sampleforge pbt` with three members on CartPole, which run serially, so that a
member is one process. One of its processes after the other is killed with SIGKILL: the job of a
member, submitit's process of a job, the launcher, or any. A launcher that is killed is started
again with the same command when its jobs have ended. Meanwhile a reader fetches
the published checkpoints all the time. When a population has finished, its folder is checked, and
the next one begins.

Each kill is a line of OUT/kills.jsonl, each population one of OUT/populations.jsonl. The same
command goes on where an earlier one has stopped. The last line is one JSON object with the totals.
Any violation ends the program with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from sampleforge.populations import lineage
from sampleforge.run.folder.checkpoint import CheckpointStore
from sampleforge.tools.population.published import PublishedStates

MEMBERS, ROUND, ROUNDS = 3, 4_000, 6
"""Members of a population, env steps of a round, rounds until the stop condition."""
KINDS = {"member": 0.5, "controller": 0.15, "launcher": 0.2, "any": 0.15}
PATIENCE_S = 240.0
"""Seconds without a new round after which no process is killed until there is one: on busy cores
members need longer for their start than there is between two kills."""
LONGEST_S = 900.0
"""Seconds without a new round after which a population counts as hung."""
ENDED_S = 90.0
"""Seconds within which the jobs of a killed launcher must have ended. One whose launcher is killed
before it has handed over the function waits for it for 60 s: submitit starts the process first."""

PROBE_KILLED = "ended its process in the probe, with signal SIGKILL"
"""Of the launcher's last line."""


class Violation(AssertionError):
    """The population is not as it must be."""


def command(folder: Path, algo: str, seed: int) -> list[str]:
    more = ["--learning-starts", "500"] if algo == "apex" else []
    return [
        *(sys.executable, "-m", "sampleforge.cli", "pbt", "--population", str(MEMBERS)),
        *("--folder", str(folder), "--jobs", str(MEMBERS), "--pbt-period", str(ROUND)),
        *("--pbt-start", "0", "--pbt-variant", "truncation", "--max-member-restarts", "1000"),
        *("--pbt-initial", "learning-rate=1e-6..1e-2", algo, "--env", "CartPole-v1", "--serial"),
        *("--train-for-env-steps", str(ROUND * ROUNDS), "--num-envs-per-worker", "8"),
        *("--checkpoint-interval", "2", "--seed", str(seed), *more),
        *(["--num-ranks", "1"] if algo == "ddppo" else ["--num-workers", "1"]),
    ]


def session_members(sid: int) -> list[psutil.Process]:
    """Return the living processes of a session, orphans included."""
    members = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == sid and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


class Reader(threading.Thread):
    """Fetches the published checkpoints of all members, again and again. ``fetched``: how many;
    ``problems``: what was damaged or half written."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.fetched = 0
        self.problems: list[str] = []
        self._states = PublishedStates(folder, self.problems.append)
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(0.05):
            for member in self._states.read():
                if self._states.fetch(member) is None:
                    self.problems.append(f"member {member}: its checkpoint was not there")
                self.fetched += 1

    def end(self) -> None:
        self._end.set()
        self.join()


class Launcher:
    """The command, and all processes of its session."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            words, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def targets(self) -> dict[str, list[psutil.Process]]:
        """Return the processes of each kind."""
        found: dict[str, list[psutil.Process]] = {kind: [] for kind in KINDS}
        for member in session_members(self.process.pid):
            with suppress(psutil.NoSuchProcess):
                words = " ".join(member.cmdline())
                if "submitit.core._submit" in words:
                    found["member"].append(member)
                elif "submitit.local._local" in words:
                    found["controller"].append(member)
                elif member.pid == self.process.pid:
                    found["launcher"].append(member)
                found["any"].append(member)
        return found

    def wait_for_jobs(self) -> float:
        """Wait until no process of a launcher that has ended is left; return the seconds."""
        began = time.monotonic()
        while left := session_members(self.process.pid):
            if time.monotonic() - began > ENDED_S:
                names = [" ".join(member.cmdline()) for member in left]
                raise Violation(f"left {ENDED_S:.0f} s after their launcher's end: {names}")
            time.sleep(0.1)
        return time.monotonic() - began

    @property
    def lost_its_probe(self) -> bool:
        """Whether the launcher has ended because the process in which it tries the environment was
        killed: it takes that for a fault of the environment, and says so."""
        return Path(self._log.name).read_text().rstrip().endswith(PROBE_KILLED)

    def close(self) -> None:
        for member in session_members(self.process.pid):
            with suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.wait()
        self._log.close()


def check(folder: Path) -> dict[str, Any]:
    """Return what has happened in a population that has finished. Raises Violation."""
    events = lineage.read(folder / lineage.FILE)
    keys = Counter((e["event"], e["member"], e["round"]) for e in events)
    if doubled := [key for key, count in keys.items() if count > 1]:
        raise Violation(f"events that were logged twice: {doubled}")
    own = {str(m): lineage.read(folder / "lineages" / f"{m}.jsonl") for m in range(MEMBERS)}
    for member, lines in own.items():
        if [e for e in events if e["member"] == member] != lines:
            raise Violation(f"member {member}: lineage.jsonl has other events than its own file")
        steps = [e["env_steps"] for e in lines if e["event"] == "score"]
        if steps != sorted(steps):
            raise Violation(f"member {member}: env steps go back: {steps}")
        rounds = [e["round"] for e in lines if e["event"] == "score"]
        if rounds != list(range(1, len(rounds) + 1)):
            raise Violation(f"member {member}: rounds are missing: {rounds}")
    scored = {(e["member"], e["round"]) for e in events if e["event"] == "score"}
    for event in events:
        if event["event"] in ("exploit", "explore") and (
            (event["member"], event["round"]) not in scored
        ):
            raise Violation(f"changed before it had a checkpoint: {event}")
        if event["event"] == "exploit":
            donated = [
                e
                for e in own[event["donor"]]
                if e["event"] == "score" and e["env_steps"] <= event["donor_env_steps"]
            ]
            if not donated:
                raise Violation(f"a donor without a checkpoint: {event}")
    for member in own:
        problems: list[str] = []
        store = CheckpointStore(folder / "members" / member / "checkpoints", 3)
        found = store.load(log=problems.append)
        if found is None or problems:
            raise Violation(f"member {member}: {problems or 'no checkpoint'}")
        if found[1].env_steps < ROUND * ROUNDS:
            raise Violation(f"member {member} has not finished: {found[1].env_steps} env steps")
    result = json.loads((folder / "results.json").read_text())
    if result["finished"] != MEMBERS or result["failed"]:
        raise Violation(f"not all members have finished: {result}")
    return {name: result[name] for name in ("best", "return_mean", "copies", "mutations")}


class Kills:
    """The populations and kills of one output folder."""

    def __init__(self, out: Path, algo: str, seed: int, mean: float) -> None:
        self._out, self._algo, self._seed, self._mean = out, algo, seed, mean
        out.mkdir(parents=True, exist_ok=True)
        self._kills = out / "kills.jsonl"
        self._populations = out / "populations.jsonl"
        self.killed = len(_lines(self._kills))
        self.finished = len(_lines(self._populations))

    def population(self, until: int, deadline: float) -> None:
        """Kill processes of one population until it has finished."""
        seed = self._seed + self.finished
        folder = self._out / f"population-{seed}"
        rng = np.random.default_rng([seed, self.killed])
        words = command(folder, self._algo, seed)
        (folder / "published").mkdir(parents=True, exist_ok=True)
        reader = Reader(folder / "published")
        reader.start()
        launcher, launches, own_kills, longest = Launcher(words, self._out / "log.txt"), 1, 0, 0.0
        progress, moved = "", time.monotonic()
        try:
            next_kill = time.monotonic() + rng.exponential(self._mean)
            while (code := launcher.process.poll()) is None or code < 0 or launcher.lost_its_probe:
                if code is not None:
                    longest = max(longest, launcher.wait_for_jobs())
                    launcher.close()
                    launcher, launches = Launcher(words, self._out / "log.txt"), launches + 1
                rests = time.monotonic() - moved > PATIENCE_S
                if time.monotonic() >= next_kill and self.killed < until and not rests:
                    next_kill = time.monotonic() + rng.exponential(self._mean)
                    own_kills += self._kill(launcher, rng, seed)
                if reader.problems:
                    raise Violation(f"a published file was not whole: {reader.problems}")
                now = "".join(map(str, sorted((folder / "lineages").glob("*"))))
                now += str([p.stat().st_size for p in sorted((folder / "lineages").glob("*"))])
                if now != progress:
                    progress, moved = now, time.monotonic()
                if time.monotonic() - moved > LONGEST_S:
                    raise Violation(f"no new event within {LONGEST_S:.0f} s")
                if time.monotonic() > deadline:
                    return
                time.sleep(0.05)
            if code != 0:
                raise Violation(f"the command has ended with {code}; see {self._out / 'log.txt'}")
            launcher.wait_for_jobs()
        finally:
            launcher.close()
            reader.end()
        line = {
            **{"seed": seed, "kills": own_kills, "launches": launches, "fetched": reader.fetched},
            **{"longest_end_s": round(longest, 1), **check(folder)},
        }
        _append(self._populations, line)
        print(json.dumps(line), flush=True)
        self.finished += 1
        shutil.rmtree(folder)

    def _kill(self, launcher: Launcher, rng: np.random.Generator, seed: int) -> int:
        """Kill a random process; return 1, or 0 if there is none of the kind."""
        kind = str(rng.choice(list(KINDS), p=list(KINDS.values())))
        targets = launcher.targets()[kind]
        if not targets:
            return 0
        target = targets[int(rng.integers(len(targets)))]
        with suppress(psutil.NoSuchProcess):
            target.send_signal(signal.SIGKILL)
            self.killed += 1
            _append(self._kills, {"population": seed, "kind": kind, "time": time.time()})
            return 1
        return 0


def _lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text() if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines()]


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill members and launchers of populations.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--algo", default="appo", choices=("appo", "apex", "ddppo"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mean", type=float, default=4.0, help="seconds between two kills")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the population as well
    kills = Kills(flags.out.absolute(), flags.algo, flags.seed, flags.mean)
    deadline = time.monotonic() + flags.seconds
    try:
        while kills.killed < flags.kills and time.monotonic() < deadline:
            kills.population(flags.kills, deadline)
    except Violation as violation:
        print(f"violation: {violation}", file=sys.stderr)
        return 1
    by_kind = Counter(line["kind"] for line in _lines(flags.out / "kills.jsonl"))
    populations = _lines(flags.out / "populations.jsonl")
    totals: dict[str, Any] = {"kills": kills.killed, "by_kind": dict(by_kind)}
    totals["populations"] = kills.finished
    for name in ("copies", "mutations", "fetched", "launches"):
        totals[name] = sum(line[name] for line in populations)
    print(json.dumps(totals))
    return 0


if __name__ == "__main__":
    sys.exit(main())
