"""Kill random workers of runs, one every 10 s on average, and see whether the runs go on.

    python benchmarks/soak.py run [--topologies NAME ...] [--seconds 3600] [--seeds 1]
    python benchmarks/soak.py report            # benchmarks/results/soak.md

`run` starts a training by the command line, in a process of its own, and sends signals to its
workers until it ends: the gaps are exponential; four of five are SIGKILL, one of five is SIGSTOP,
with SIGCONT after 20 s if the process still lives. The role is drawn first, then the worker, both
with a seed. A step of CartPole takes `--step-ms` at least, so that the run leaves processor time
over, in which workers can start, and several topologies can be measured side by side. Undisturbed
runs of the same flags and as many env steps follow, in which a step takes no longer than it needs.
Each run is appended to soak.jsonl when it has ended, and one that is there already is not repeated,
so that the rows may be filled over several days.

How it is measured. The run's counters are read every 20 ms in the driver's shared memory, through
/proc/<driver>/fd, which costs the run nothing. The run counts as going on again once, after the
driver has counted the victim's restart (or the stopped process was continued, if it was not
replaced), three things have advanced: the env steps of the run, its updates, and what the victim
itself counts: env steps of an actor or rank, forward passes of a policy worker, updates of a
learner, the heartbeat of a replay worker or evaluator. The time is from the signal to then. A run
that does not go on for `HANG_S` seconds counts as hung: stacks are dumped and it is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import numpy as np
import numpy.typing as npt
import psutil

from sampleforge.shared.arrays import layout_bytes
from sampleforge.shared.counters import Counters
from sampleforge.topologies.graph import COUNTERS

HERE = Path(__file__).resolve().parent
POLL_S = 0.02
HANG_S = 120.0
"""Seconds without progress after which a run counts as hung; also the seconds that it may take to
begin, and to end after its time."""
GONE_S = 5.0
"""Seconds after the run's end in which all processes must be gone."""
STOPPED = 0.2
"""Fraction of the faults that are SIGSTOP."""
SAMPLES = 120
"""Number of samples of memory, descriptors and threads in a run, but not more than one per 5 s."""
COMMON: tuple[str, ...] = ("--num-envs-per-worker", "16")
COMMON += ("--report-interval", "1", "--checkpoint-interval", "15")
TIMEOUT_S = 10.0
TIMEOUT = f"{TIMEOUT_S:g}"
RESTARTS = ("--max-worker-restarts", "1000000")
WORK = {
    "actor": "env_steps",
    "rank": "env_steps",
    "policy": "forwards",
    "learner": "updates",
    "replay": "heartbeat",
    "evaluator": "heartbeat",
}
"""Role -> the counter by which its worker shows that it works."""


@dataclass(frozen=True)
class Topology:
    """A run to disturb: its flags, and its workers in the order of their counter rows."""

    algo: str
    flags: tuple[str, ...]
    workers: tuple[str, ...]
    score: str = "return_mean"
    """The metric that is the run's score. Episodes of the training that end with their actor are
    not counted, and these are rather the long ones, so that their mean return is too low where
    actors are killed and not every episode has the same length: there the evaluator's is used."""

    def command(
        self, folder: Path, seed: int, step_ms: float, seconds: float, env_steps: int | None
    ) -> list[str]:
        """Return the command of a run of so many ``seconds``, or of ``env_steps``; ``step_ms``: how
        long a step of CartPole takes at least."""
        env = ["--env", "paced:cartpole", "--env-kwargs", f"step_ms={step_ms:g}"]
        until = ["--train-for-seconds", str(seconds)]
        if env_steps is not None:
            until = ["--train-for-env-steps", str(env_steps)]
        run = ["--run-dir", str(folder), *until, "--seed", str(seed)]
        flags = [*env, *COMMON, "--env-timeout", TIMEOUT, *self.flags]
        return [str(HERE.parent / "train.py"), self.algo, *flags, *run]

    @property
    def roles(self) -> list[str]:
        return list(dict.fromkeys(map(role_of, self.workers)))


def role_of(worker: str) -> str:
    """Return the role of a worker, from its name: "actor 0" is an actor."""
    return worker.partition(" ")[0]


APPO = (*RESTARTS, "--async-rl", "--num-workers", "2")
APEX = (
    *(*RESTARTS, "--num-workers", "2", "--replay-capacity", "100000"),
    *("--evaluate-interval", "50000"),
)
TOPOLOGIES = {
    "appo-inline": Topology(
        "appo",
        (*APPO, "--inference", "inline", "--evaluate-interval", "20000"),
        ("actor 0", "actor 1", "learner", "evaluator"),
    ),
    "appo-policy-workers": Topology(
        "appo",
        (*APPO, "--inference", "worker", "--num-policy-workers", "2"),
        ("actor 0", "actor 1", "policy 0", "policy 1", "learner"),
    ),
    "apex-2-shards": Topology(
        "apex",
        (*APEX, "--num-replay-shards", "2"),
        ("actor 0", "actor 1", "replay 0", "replay 1", "learner", "evaluator"),
        score="eval_return_mean",
    ),
    "r2d2": Topology(
        "apex",
        (*APEX, "--model.core", "gru"),
        ("actor 0", "actor 1", "replay 0", "learner", "evaluator"),
        score="eval_return_mean",
    ),
    "ddppo-3-ranks": Topology(
        "ddppo",
        ("--num-ranks", "3", "--rank-timeout", TIMEOUT, "--max-rank-restarts", "1000000"),
        ("rank 0", "rank 1", "rank 2"),
    ),
}


class Run:
    """A training in processes of its own, seen from outside."""

    def __init__(self, topology: Topology, folder: Path, *command: Any) -> None:
        """Start the run; ``command``: the arguments of `Topology.command` after its folder."""
        self.topology = topology
        self.folder = folder
        self.run_dir = folder / "run"
        self.output = folder / "output.txt"
        arguments = [sys.executable, *topology.command(self.run_dir, *command)]
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        self.began = time.monotonic()
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                arguments,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._names_before = shared_names()
        self._pids: set[int] = set()
        self._counters: npt.NDArray[np.float64] | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the run was started."""
        return time.monotonic() - self.began

    def counters(self) -> npt.NDArray[np.float64] | None:
        """Return a copy of the counters, float64 [workers, names]; None before there are any."""
        if self._counters is None:
            self._counters = shared_counters(self.process.pid, len(self.topology.workers))
        return None if self._counters is None else self._counters.copy()

    def members(self) -> list[psutil.Process]:
        """Return the living processes of the run: those of the session that its driver leads."""
        found = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                ours = os.getsid(process.pid) == self.process.pid
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        self._pids |= {process.pid for process in found}
        return found

    def workers(self) -> dict[str, psutil.Process]:
        """Return the workers that live, by name."""
        found = {}
        for process in self.members():
            with suppress(psutil.Error):
                title = " ".join(process.cmdline()).strip()
                name = title.removeprefix("sampleforge: ")
                if name != title and name in self.topology.workers:
                    found[name] = process
        return found

    def resources(self) -> dict[str, float]:
        """Return memory (bytes), descriptors and threads of all processes of the run and of the
        driver alone, which is never killed, and the names that the run has in /dev/shm.

        ``rss`` counts a shared page in each process that maps it, ``pss`` once."""
        total = dict.fromkeys(["rss", "pss", "fds", "threads", "processes"], 0.0)
        driver: dict[str, float] = {}
        for process in self.members():
            with suppress(OSError, psutil.Error):
                memory = process.memory_full_info()
                own = {
                    "rss": memory.rss,
                    "pss": memory.pss,
                    "fds": process.num_fds(),
                    "threads": process.num_threads(),
                    "processes": 1,
                }
                total = {name: total[name] + own[name] for name in total}
                if process.pid == self.process.pid:
                    driver = {f"driver_{name}": own[name] for name in ("rss", "fds", "threads")}
        return {**total, **driver, "shm": len(self.own_names())}

    def own_names(self) -> list[str]:
        """Return the names in /dev/shm that are newer than the run and that one of its processes
        has mapped, or that carry the pid of one."""
        new = shared_names() - self._names_before
        mapped = "".join(maps_of(pid) for pid in self._pids)
        pids = {str(pid) for pid in self._pids}
        return [n for n in new if f"/dev/shm/{n}" in mapped or pids & set(n.split("_"))]

    def last_output(self) -> str:
        """Return the end of what the run has printed, without the paths of this machine."""
        text = self.output.read_text()
        for path, name in ((self.folder, "RUN"), (HERE.parent, "."), (Path(sys.prefix), "PYTHON")):
            text = text.replace(str(path), name)
        return text[-4000:]

    def end(self) -> None:
        """Kill what is left of the run."""
        for process in self.members():
            with suppress(psutil.Error):
                process.kill()
        self.process.wait()


def shared_names() -> set[str]:
    return set(os.listdir("/dev/shm"))


def maps_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def shared_counters(driver: int, workers: int) -> npt.NDArray[np.float64] | None:
    """Return the counters of a run, float64 [workers, names], in the memory that it shares with its
    workers; None if there are none yet."""
    layout = Counters.layout(COUNTERS, workers)
    size = layout_bytes(layout)
    for entry in list(Path(f"/proc/{driver}/fd").iterdir()):
        with suppress(OSError):
            if "memfd:sampleforge" not in os.readlink(entry) or entry.stat().st_size != size:
                continue
            shape, _ = layout["values"]
            values: npt.NDArray[np.float64] = np.memmap(entry, np.float64, "r", shape=shape)
            beats = values[:, COUNTERS.index("heartbeat")]
            if (np.abs(beats - time.monotonic()) < HANG_S).any():
                return values
    return None


@dataclass
class Fault:
    """A signal to a worker, and what followed. Times are seconds since the run's start."""

    at: float
    worker: str
    signal: str
    process: psutil.Process
    restarts: float
    """The worker's restarts before."""
    others: int
    """Faults from which the run was not going on yet."""
    continued_at: float | None = None
    replaced_at: float | None = None
    again_at: float | None = None
    overtaken: bool = False
    """Whether the worker was struck again before the run was going on."""
    _base: npt.NDArray[np.float64] | None = field(default=None, repr=False)

    def look(self, now: float, values: npt.NDArray[np.float64], row: int, beside: int) -> None:
        """Compare the counters [workers, names] with those at the restart. ``row``: the worker's;
        the first ``beside`` rows are of workers that take part in the training."""
        own = values[row]
        if self.replaced_at is None and own[COUNTERS.index("restarts")] > self.restarts:
            self.replaced_at, self._base = now, values.copy()
        elif self._base is None and self.continued_at is not None:
            self._base = values.copy()
        if self._base is None:
            return
        steps, updates = COUNTERS.index("env_steps"), COUNTERS.index("updates")
        # A new learner may go on from a few updates earlier.
        np.minimum(self._base[:, updates], values[:, updates], out=self._base[:, updates])
        work = COUNTERS.index(WORK[role_of(self.worker)])
        if (
            values[:beside, steps].sum() > self._base[:beside, steps].sum()
            and values[:, updates].sum() > self._base[:, updates].sum()
            and own[work] != self._base[row, work]
        ):
            self.again_at = now

    def record(self) -> dict[str, Any]:
        """Return the values for soak.jsonl. ``again_s`` is None if the run ended before, or the
        worker was struck again."""

        def since(at: float | None) -> float | None:
            return None if at is None else round(at - self.at, 3)

        return {
            "at": round(self.at, 2),
            "role": role_of(self.worker),
            "worker": self.worker,
            "signal": self.signal,
            "others": self.others,
            "overtaken": self.overtaken,
            "replaced_s": since(self.replaced_at),
            "continued_s": since(self.continued_at),
            "again_s": since(self.again_at),
        }


class Faults:
    """Sends signals to the workers of a run, and watches it go on."""

    def __init__(self, run: Run, seed: int, mean_gap: float, stop_s: float) -> None:
        self._run = run
        self._random = np.random.default_rng(seed)
        self._mean_gap = mean_gap
        self._stop_s = stop_s
        self._next = run.seconds + self._gap()
        self.all: list[Fault] = []
        self._open: list[Fault] = []
        self._stopped: list[Fault] = []

    def _gap(self) -> float:
        return float(self._random.exponential(self._mean_gap))

    @property
    def oldest_s(self) -> float:
        """Seconds since the oldest fault from which the run does not go on, 0 without one; a
        process that is stopped counts from when it is continued."""
        times = [fault.continued_at or fault.at for fault in self._open]
        return self._run.seconds - min(times) if times else 0.0

    def look(self, values: npt.NDArray[np.float64]) -> None:
        now, workers = self._run.seconds, self._run.topology.workers
        beside = len([name for name in workers if name != "evaluator"])
        for fault in self._stopped[:]:
            if now >= fault.at + self._stop_s:
                self._stopped.remove(fault)
                with suppress(psutil.NoSuchProcess):  # it has been replaced
                    fault.process.resume()
                    fault.continued_at = now
        for fault in self._open[:]:
            fault.look(now, values, workers.index(fault.worker), beside)
            if fault.again_at is not None:
                self._open.remove(fault)
        if now >= self._next:
            self._next = now + self._gap()
            self._strike(values)

    def _strike(self, values: npt.NDArray[np.float64]) -> None:
        """Send a signal to a random worker of a random role, among those that live."""
        stopped = [fault.process for fault in self._stopped]
        alive = {n: p for n, p in self._run.workers().items() if p not in stopped}
        roles = sorted({role_of(name) for name in alive})
        stops = self._random.random() < STOPPED
        if not roles:
            return
        role = roles[self._random.integers(len(roles))]
        names = sorted(name for name in alive if role_of(name) == role)
        name = names[self._random.integers(len(names))]
        process, number = alive[name], signal.SIGSTOP if stops else signal.SIGKILL
        row = self._run.topology.workers.index(name)
        restarts = values[row, COUNTERS.index("restarts")]
        at, others = self._run.seconds, len(self._open)
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
            for earlier in [fault for fault in self._open if fault.worker == name]:
                earlier.overtaken = True
                self._open.remove(earlier)
            fault = Fault(at, name, number.name, process, float(restarts), others)
            self.all.append(fault)
            self._open.append(fault)
            if stops:
                self._stopped.append(fault)


def watched(run: Run, seconds: float, faults: Faults | None) -> dict[str, Any]:
    """Watch a run until it ends; ``faults`` disturbs it from its first update on. Return what it
    did, for soak.jsonl."""
    samples: list[dict[str, float]] = []
    every = max(5.0, seconds / SAMPLES)
    updates = COUNTERS.index("updates")
    moved_at, moved, hung, learning = run.seconds, 0.0, None, False
    begun_at: float | None = None
    while run.process.poll() is None:
        time.sleep(POLL_S if faults is not None else 0.2)
        values, now = run.counters(), run.seconds
        if values is not None:
            total = float(values[:, updates].sum())
            if total != moved:
                moved_at, moved, learning = now, total, True
                begun_at = begun_at or now
        if learning and faults is not None and values is not None:
            faults.look(values)
        if learning and (not samples or now >= samples[-1]["at"] + every):
            samples.append({"at": round(now, 1), **run.resources()})
        still = max(now - moved_at, faults.oldest_s if faults is not None else 0.0)
        if still > HANG_S or (begun_at is not None and now > begun_at + 1.5 * seconds + HANG_S):
            hung = f"no progress for {still:.0f} s after {now:.0f} s"
            dump_stacks(run)
            break
    ended_s = run.seconds
    left: list[str] = []
    if hung is None:
        while run.members() and run.seconds < ended_s + GONE_S:
            time.sleep(0.1)
        left = [" ".join(process.cmdline()) for process in run.members()]
    names = run.own_names()
    run.end()
    summary_file = run.run_dir / "summary.json"
    curve = curve_of(run.run_dir, run.topology.score)
    summary = json.loads(summary_file.read_text()) if summary_file.exists() else {}
    kept = ("status", "env_steps", "updates", "episodes", "restarts", "restarts_by_role", "error")
    return {
        "hung": hung,
        "exit_code": run.process.returncode,
        "ended_s": round(ended_s, 1),
        "processes_left": left,
        "shm_left": names,
        **{name: summary.get(name) for name in kept},
        "score": score(curve),
        "curve": curve[:: max(1, len(curve) // 60)],
        "samples": samples,
        "faults": [fault.record() for fault in faults.all] if faults is not None else [],
        "output": run.last_output() if hung or run.process.returncode else "",
    }


def dump_stacks(run: Run) -> None:
    """Have every worker print its stacks into the output of the run."""
    for process in run.workers().values():
        with suppress(psutil.Error):
            process.send_signal(signal.SIGUSR1)
            process.resume()
    time.sleep(2)


def curve_of(run_dir: Path, metric: str) -> list[tuple[float, float, float]]:
    """Return the lines of metrics.jsonl with a value of ``metric``: (seconds, env steps, value)."""
    metrics = run_dir / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    reports = [json.loads(line) for line in lines if line.endswith("\n")]
    kept = [r for r in reports if r.get(metric) is not None]
    return [(round(r["wall_s"], 1), r["env_steps"], round(r[metric], 2)) for r in kept]


def score(curve: Sequence[tuple[float, float, float]]) -> float | None:
    """Return the mean of a `curve_of` over the last third of a run's seconds."""
    if not curve:
        return None
    last = [value for at, _, value in curve if at >= curve[-1][0] * 2 / 3]
    return round(statistics.fmean(last), 2)


def recorded(results: Path) -> list[dict[str, Any]]:
    file = results / "soak.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run(args: argparse.Namespace) -> None:
    about = machine.describe("torch", "gymnasium", "numpy")
    print(about, flush=True)
    for name in args.topologies:
        for seed in args.seeds:
            if recorded_run(args, name, seed, disturbed=True) is None:
                trained(args, name, seed, about, args.seconds, args.mean_gap)
        disturbed = recorded_run(args, name, None, disturbed=True)
        if disturbed is None:
            continue
        for seed in range(1, args.undisturbed + 1):
            if recorded_run(args, name, seed, disturbed=False) is None:
                trained(args, name, seed, about, args.seconds, None, disturbed["env_steps"])


def recorded_run(
    args: argparse.Namespace, name: str, seed: int | None, *, disturbed: bool
) -> dict[str, Any] | None:
    """Return a run that was recorded under these conditions, if there is one; ``seed``: None for
    any."""
    wanted = {"topology": name, "disturbed": disturbed, "seconds": args.seconds}
    if seed is not None:
        wanted["seed"] = seed
    runs = recorded(args.results)
    return next((r for r in runs if {n: r[n] for n in wanted} == wanted), None)


def trained(
    args: argparse.Namespace,
    name: str,
    seed: int,
    about: str,
    seconds: float,
    mean_gap: float | None,
    env_steps: int | None = None,
) -> None:
    """Make one run, disturbed if there is a ``mean_gap`` between faults (seconds), and as fast as
    it can be if there are ``env_steps``; record it."""
    topology, step_ms = TOPOLOGIES[name], args.step_ms if env_steps is None else 0.0
    with ExitStack() as stack:
        if args.keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=args.keep))
        run = Run(topology, folder, seed, step_ms, seconds, env_steps)
        stack.callback(run.end)
        faults = Faults(run, seed, mean_gap, args.stop_s) if mean_gap is not None else None
        found = watched(run, seconds, faults)
    command = topology.command(Path("RUN"), seed, step_ms, seconds, env_steps)
    conditions = {
        "topology": name,
        "disturbed": mean_gap is not None,
        "seconds": seconds,
        "step_ms": step_ms,
        "seed": seed,
        "mean_gap": mean_gap,
        "stop_s": args.stop_s,
        "about": about,
        "load": [round(load, 1) for load in os.getloadavg()],
        "flags": " ".join(command[1:]),
    }
    args.results.mkdir(exist_ok=True)
    line = json.dumps(conditions | found) + "\n"
    with (args.results / "soak.jsonl").open("ab", buffering=0) as file:
        file.write(line.encode())  # in a single call: other runs may end at the same time
    said = ("hung", "exit_code", "status", "restarts_by_role", "score", "processes_left")
    print(name, seed, {n: found[n] for n in said}, len(found["faults"]), "faults", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--topologies", nargs="+", choices=list(TOPOLOGIES))
    parser.add_argument("--seconds", type=float, default=3600.0, help="length of each run")
    parser.add_argument("--seeds", nargs="*", type=int, default=[1], help="of the disturbed runs")
    parser.add_argument("--mean-gap", type=float, default=10.0, help="seconds between faults")
    parser.add_argument("--stop-s", type=float, default=20.0, help="seconds of a SIGSTOP")
    parser.add_argument("--undisturbed", type=int, default=3, help="number of undisturbed runs")
    parser.add_argument(
        "--step-ms", type=float, default=0.5, help="length of a step of CartPole (0: no wait)"
    )
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--keep", type=Path, help="folder to keep the run folders in")
    args = parser.parse_args()
    args.topologies = args.topologies or list(TOPOLOGIES)
    if args.what == "report":
        from soak_report import report

        report(recorded(args.results), args.results)
    else:
        run(args)


if __name__ == "__main__":
    main()
