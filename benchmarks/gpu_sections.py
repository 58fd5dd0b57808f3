"""What `gpu.py` measures: its sections, each with what runs it, and what shows its result."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import machine

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
ENDING = 10.0
"""Seconds in which a process that was asked to end does so."""
GRACE = 5
"""Seconds that the Multi-Process Service gives to programs that are left."""
BREAKOUT, MINATAR = "ALE/Breakout-v5", "MinAtar/Breakout"
VIZDOOM, CARTPOLE, CHEETAH = "VizdoomBasic-v1", "CartPole-v1", "HalfCheetah-v5"
MODULES = {BREAKOUT: "ale_py", VIZDOOM: "vizdoom", CHEETAH: "mujoco"}
"""What environments need beside SampleForge itself."""


class SectionError(Exception):
    """A section that gave no result, with the end of its output."""


class NotHere(Exception):
    """A section that this machine cannot run: what it would do, and what is needed for it."""


def is_here(env: str) -> bool:
    """Return whether the machine has what ``env`` needs."""
    return env not in MODULES or find_spec(MODULES[env]) is not None


@dataclass(frozen=True)
class Setting:
    """Where and how long everything is measured. ``small``: on a CPU."""

    device: str
    devices: int
    folder: Path

    @property
    def small(self) -> bool:
        return self.device == "cpu"

    @property
    def sizes(self) -> list[str]:
        """The flags that make a run small on a CPU."""
        if not self.small:
            return ["--benchmark-seconds", "8"]
        return ["--benchmark-seconds", "3", "--num-workers", "1", "--num-envs-per-worker", "8"]


@dataclass(frozen=True)
class Section:
    """One part of the report. ``run(setting, limit)`` returns its result within ``limit`` seconds;
    ``show`` returns it as Markdown."""

    name: str
    title: str
    limit: float
    run: Callable[[Setting, float], dict[str, Any]]
    show: Callable[[dict[str, Any]], str]


def called(command: list[str], limit: float, cwd: Path) -> str:
    """Return the standard output of a command. Raises SectionError if it fails or takes longer than
    ``limit`` seconds."""
    path = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
    with (cwd / "output").open("w+") as out, (cwd / "errors").open("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": path},
            stdout=out,
            stderr=errors,
        )
        try:
            process.wait(limit)
            reason = f"exit code {process.returncode}" if process.returncode else None
        except subprocess.TimeoutExpired:
            reason = f"not done after {limit:.0f} s"
        finally:
            _end(process)
        out.seek(0)
        errors.seek(0)
        output = out.read()
        if reason is not None:
            raise SectionError(f"{reason}\n{(output + errors.read())[-3000:]}")
    return output


def _end(process: subprocess.Popen[Any]) -> None:
    for signal in (process.terminate, process.kill):
        if process.poll() is None:
            signal()
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                continue


def benchmark(
    algo: str, *flags: str, env: str = BREAKOUT, peak: bool = True, device: str | None = None
) -> Callable[[Setting, float], Any]:
    """Return the section's function that runs ``train ALGO --benchmark``. ``device``: in the place
    of the setting's."""

    def run(setting: Setting, limit: float) -> dict[str, Any]:
        given = SMALL_REPLAY if setting.small and "--replay-capacity" in flags else flags
        on = setting.device if device is None else device
        words = [algo, "--env", env, "--device", on, "--benchmark", *given]
        if not peak:
            words.append("--no-benchmark-peak")
        if algo == "ddppo" and "--num-ranks" not in flags:
            words += ["--num-ranks", str(setting.devices)]
        would = f"would run `train.py {' '.join(words)}`"
        if "--replay-gpu-memory" in flags and setting.small:
            raise NotHere(f"{would}: the GPU's copies of frames need a GPU")
        if not is_here(env):
            raise NotHere(f"{would}, which needs the module {MODULES[env]}; install it")
        sizes = setting.sizes
        if algo == "ddppo" and "--num-workers" in sizes:
            at = sizes.index("--num-workers")
            sizes[at : at + 2] = ["--rollout", "16"]
        with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
            run_dir = Path(folder) / "run"
            command = [sys.executable, str(REPO / "train.py"), *words, *sizes]
            called([*command, "--run-dir", str(run_dir)], limit, Path(folder))
            found = json.loads((run_dir / "benchmark.json").read_text())
        rates = ("sampled_per_s", "trained_per_s", "frames_per_s", "updates_per_s")
        peaks = ("peak_frames_per_s", "peak_sampled_per_s", "fraction_of_peak")
        where = ("stages", "queue_fill", "policy_busy", "rows_per_pass")
        kept = {name: found.get(name) for name in (*rates, *peaks, *where)}
        return {"flags": " ".join(words), "verdict": found["verdict"], **kept}

    return run


def with_service(run: Callable[[Setting, float], Any]) -> Callable[[Setting, float], Any]:
    """Return the section's function that runs another one with NVIDIA's Multi-Process Service."""

    def with_it(setting: Setting, limit: float) -> dict[str, Any]:
        control = shutil.which("nvidia-cuda-mps-control")
        if setting.small or control is None:
            raise NotHere(
                "would start NVIDIA's Multi-Process Service for the run, which needs a GPU and, in "
                "the PATH, nvidia-cuda-mps-control, a part of NVIDIA's driver"
            )
        with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
            names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
            os.environ |= dict.fromkeys(names, folder)  # a service of our own, for our processes
            try:
                subprocess.run([control, "-d"], check=True, timeout=ENDING)
                try:
                    found: dict[str, Any] = run(setting, limit)
                finally:  # a service that does not end must not hide why the run has failed
                    with suppress(subprocess.TimeoutExpired):
                        quits = f"quit -t {GRACE}\n".encode()
                        subprocess.run([control], input=quits, timeout=GRACE + ENDING)
            finally:
                for name in names:
                    del os.environ[name]
        return found

    return with_it


def show_benchmark(result: dict[str, Any]) -> str:
    def rate(name: str) -> str:
        value = result[name]
        return "-" if value is None else f"{value:,.0f}"

    fraction = result["fraction_of_peak"]
    columns = ["env steps/s", "trained/s", "frames/s", "simulator's own frames/s", "share"]
    names = ("sampled_per_s", "trained_per_s", "frames_per_s", "peak_frames_per_s")
    cells = [*map(rate, names), "-" if fraction is None else f"{fraction:.1%}"]
    verdict = result["verdict"]
    hint = f"; flags to try: {', '.join(verdict['flags'])}" if verdict["flags"] else ""
    lines = [
        f"`train.py {result['flags']}`",
        "",
        machine.table(["run", *columns], [["system", *cells]]),
        "",
    ]
    if result["policy_busy"] is not None:
        busy, rows = result["policy_busy"], result["rows_per_pass"] or 0.0
        lines += [f"Policy workers are busy {busy:.1%} of their time: {rows:.1f} rows at once.", ""]
    return "\n".join([*lines, f"Bottleneck: {verdict['bottleneck']}{hint}"])


def features(setting: Setting, limit: float) -> dict[str, Any]:
    """Run `benchmarks/gpu_features.py`: every algorithm with every feature."""
    only = ["--only", "appo: vectors", "sac"] if setting.small else []
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        command = [sys.executable, str(HERE / "gpu_features.py"), "--device", setting.device]
        command += ["--seconds", f"{0.6 * limit:.0f}", *only]
        found = called(command, limit, Path(folder))
    return {"pairs": json.loads(found.splitlines()[-1])}


def show_features(result: dict[str, Any]) -> str:
    rows = [
        [name, "passed" if of["ok"] else f"**{of['error']}**", f"{of['seconds']:.0f}"]
        for name, of in result["pairs"].items()
    ]
    failed = [
        f"{name}:\n\n```\n{of['output']}\n```"
        for name, of in result["pairs"].items()
        if "output" in of
    ]
    return "\n\n".join([machine.table(["algorithm: feature", "", "s"], rows), *failed])


def gpu_tests(setting: Setting, limit: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        # `-m gpu` after the default of pyproject.toml, so that it counts.
        words = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "-rs", str(REPO / "tests")]
        command = [sys.executable, "-m", "pytest", "--rootdir", str(REPO), *words]
        command += ["-c", str(REPO / "pyproject.toml")]
        output = called(command, limit, Path(folder))
    lines = [line for line in output.splitlines() if line.strip()]
    return {"summary": lines[-1] if lines else "", "skips": re.findall(r"SKIPPED.*", output)}


def profile(what: str) -> Callable[[Setting, float], dict[str, Any]]:
    """Return the section's function that runs `benchmarks/gpu_profile.py`."""

    def run(setting: Setting, limit: float) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
            command = [sys.executable, str(HERE / "gpu_profile.py"), what]
            command += ["--device", setting.device]
            command += ["--seconds", "0.5" if setting.small else "1.5"]
            output = called(command, limit, Path(folder))
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found

    return run


MORE_FIGURES = ("updates_per_s", "gather_ms", "scatter_ms", "rows_per_s")
"""Of a profile, beside those of its table."""


def show_profile(result: dict[str, Any]) -> str:
    """Return a table of the variants, and the top operations of each."""
    about = {n: v for n, v in result.items() if not isinstance(v, dict)}
    parts = [", ".join(f"{name.replace('_', ' ')} {value}" for name, value in about.items())]
    variants = {n: v for n, v in result.items() if isinstance(v, dict)}
    header = ["variant", "ms", "ms per gradient step", "launches", "operators", "GPU idle"]
    rows = []
    for name, of in variants.items():
        if "top" in of:
            idle = "-" if of["idle_share"] is None else f"{of['idle_share']:.0%}"
            launches = "-" if of["launches"] is None else f"{of['launches']:.0f}"
            step = f"{of['step_ms']:.3f}" if "step_ms" in of else "-"
            each = of.get("update_ms", of.get("pass_ms"))
            rows.append([name, f"{each:.3f}", step, launches, f"{of['operators']:.0f}", idle])
    parts.append(machine.table(header, rows) if rows else "")
    for name, of in variants.items():
        if "error" in of:
            parts.append(f"{name} failed:\n\n```\n{of['error']}\n```")
            continue
        more = (f"{n.replace('_', ' ')} {of[n]:.4g}" for n in MORE_FIGURES if n in of)
        parts.append(f"{name}: {', '.join(more)}")
        top = [
            [f"`{o['name']}`", f"{o['calls']:.0f}", f"{o['us']:.0f}", f"{o['share']:.0%}"]
            for o in of["top"]
        ]
        table = machine.table(["operation", "calls", "us", "share"], top)
        parts.append(f"Top operations, {name} (own time per call):\n\n{table}")
    return "\n\n".join(part for part in parts if part)


def bf16_learns(setting: Setting, limit: float) -> dict[str, Any]:
    """Train Breakout in bf16 by the defaults, of ALE if the machine has it, else MinAtar's, and
    evaluate it."""
    seconds = 8.0 if setting.small else min(85.0, limit - 45)
    env = BREAKOUT if is_here(BREAKOUT) and not setting.small else MINATAR
    episodes = "10" if env == BREAKOUT else "50"  # of ALE each has thousands of steps
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, str(REPO / "train.py"), "appo", "--env", env]
        command += ["--precision", "bf16", "--device", setting.device, "--seed", "1"]
        command += ["--train-for-seconds", f"{seconds:g}", "--run-dir", str(run_dir), "--quiet"]
        called(command, limit, Path(folder))
        evaluate = [sys.executable, "-m", "sampleforge", "eval", str(run_dir)]
        output = called([*evaluate, "--episodes", episodes, "--stochastic"], limit, Path(folder))
        summary = json.loads((run_dir / "summary.json").read_text())
    found = json.loads(output.splitlines()[-1])
    return {
        "env": env,
        "episodes": int(episodes),
        "seconds": seconds,
        "env_steps": summary["env_steps"],
        "return_mean": found["return_mean"],
        "return_std": found["return_std"],
    }


def show_bf16(result: dict[str, Any]) -> str:
    return (
        f"`appo --env {result['env']} --precision bf16`: {result['env_steps']:,} env steps in "
        f"{result['seconds']:.0f} s; {result['episodes']} episodes with sampled actions: "
        f"{result['return_mean']:.1f} (std {result['return_std']:.1f})."
    )


def show_tests(result: dict[str, Any]) -> str:
    return "\n".join([f"`pytest -m gpu`: {result['summary']}", *result["skips"][:10]])


EAGER = ("--no-cuda-graphs",)
TWO_WORKERS = ("--num-policy-workers", "2")
ONE_STEP = ("--num-epochs", "1", "--minibatch-size", "1024")
SIXTEEN_ROWS = ("--num-envs-per-worker", "16")
AS_BEGUN = ("--learning-rate", "1e-9")
"""Keeps a policy as it began. In ViZDoom one that learns has short games, and a reset takes as long
as four steps, so that the simulator would be slower beside it than alone."""
SOON = ("--learning-starts", "500")
WORKER, INLINE = ("--inference", "worker"), ("--inference", "inline")
SMALL_REPLAY = ("--learning-starts", "1000", "--replay-capacity", "20000")
FAST_START = ("--learning-starts", "5000", "--replay-capacity", "400000")
SECTIONS = [
    Section("tests", "Tests marked `gpu`", 90, gpu_tests, show_tests),
    Section("appo-worker", "Breakout, APPO", 60, benchmark("appo", *WORKER), show_benchmark),
    Section("learner", "Profile: a learner's update", 55, profile("learner"), show_profile),
    Section("apex", "Breakout, Ape-X", 60, benchmark("apex", *FAST_START), show_benchmark),
    Section("bf16", "bf16 learns", 130, bf16_learns, show_bf16),
    Section("features", "Every algorithm with every feature", 200, features, show_features),
    Section(
        "apex-gpu-frames",
        "Breakout, Ape-X, frames on the GPU",
        *(
            45,
            benchmark("apex", *FAST_START, *("--replay-gpu-memory", "8"), peak=False),
            show_benchmark,
        ),
    ),
    Section("sac", "Profile: SAC's update", 40, profile("sac"), show_profile),
    Section(
        "ddppo",
        "Breakout, DD-PPO, a rank per device",
        *(40, benchmark("ddppo", peak=False), show_benchmark),
    ),
    Section(
        "vizdoom",
        "ViZDoom, APPO",
        60,
        benchmark("appo", *WORKER, *AS_BEGUN, env=VIZDOOM),
        show_benchmark,
    ),
    Section(
        "sac-run",
        "HalfCheetah, SAC",
        *(40, benchmark("sac", *SOON, env=CHEETAH, peak=False), show_benchmark),
    ),
    Section(
        "inference", "Profile: a policy worker's answers", 40, profile("inference"), show_profile
    ),
    Section(
        "appo-service",
        "Breakout, APPO, with the Multi-Process Service",
        *(45, with_service(benchmark("appo", *WORKER, peak=False)), show_benchmark),
    ),
    Section(
        "ddppo-four-ranks",
        "Breakout, DD-PPO, four ranks on one GPU",
        *(45, benchmark("ddppo", "--num-ranks", "4", peak=False), show_benchmark),
    ),
    Section(
        "appo-eager",
        "Breakout, APPO, gradient steps without a graph",
        *(40, benchmark("appo", *WORKER, *EAGER, peak=False), show_benchmark),
    ),
    Section(
        "appo-compiled",
        "Breakout, APPO, compiled passes",
        *(60, benchmark("appo", *WORKER, "--compile", peak=False), show_benchmark),
    ),
    Section(
        "appo-inline",
        "Breakout, APPO, inline inference",
        *(40, benchmark("appo", *INLINE, peak=False), show_benchmark),
    ),
    Section(
        "crossq-run",
        "HalfCheetah, CrossQ",
        *(40, benchmark("crossq", *SOON, env=CHEETAH, peak=False), show_benchmark),
    ),
    Section(
        "cartpole",
        "CartPole, APPO, on the GPU",
        *(35, benchmark("appo", *WORKER, env=CARTPOLE, peak=False), show_benchmark),
    ),
    Section(
        "cartpole-cpu",
        "CartPole, APPO, on the CPU",
        *(35, benchmark("appo", env=CARTPOLE, peak=False, device="cpu"), show_benchmark),
    ),
]
"""In the order in which they run: what the targets need comes first, the least important last.
Their limits together are within `gpu.BUDGET`."""

FURTHER = [
    Section(
        "vizdoom-two-workers",
        "ViZDoom, APPO, two policy workers",
        *(
            45,
            benchmark("appo", *WORKER, *AS_BEGUN, *TWO_WORKERS, env=VIZDOOM, peak=False),
            show_benchmark,
        ),
    ),
    Section(
        "vizdoom-more-rows",
        "ViZDoom, APPO, 16 env rows for each actor",
        *(
            45,
            benchmark("appo", *WORKER, *AS_BEGUN, *SIXTEEN_ROWS, env=VIZDOOM, peak=False),
            show_benchmark,
        ),
    ),
    Section(
        "vizdoom-one-step",
        "ViZDoom, APPO, one gradient step for each batch",
        *(
            45,
            benchmark("appo", *WORKER, *AS_BEGUN, *ONE_STEP, env=VIZDOOM, peak=False),
            show_benchmark,
        ),
    ),
    Section(
        "vizdoom-service",
        "ViZDoom, APPO, with the Multi-Process Service",
        *(
            45,
            with_service(benchmark("appo", *WORKER, *AS_BEGUN, env=VIZDOOM, peak=False)),
            show_benchmark,
        ),
    ),
    Section(
        "appo-two-workers",
        "Breakout, APPO, two policy workers",
        *(45, benchmark("appo", *WORKER, *TWO_WORKERS, peak=False), show_benchmark),
    ),
    Section(
        "sac-run-cpu",
        "HalfCheetah, SAC, on the CPU",
        *(45, benchmark("sac", *SOON, env=CHEETAH, peak=False, device="cpu"), show_benchmark),
    ),
]
"""Those for which the time of all others leaves none: they run if they are named."""
