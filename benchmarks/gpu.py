"""Everything that has to be measured on a GPU, as one command of twenty minutes.

    python benchmarks/gpu.py --out gpu.md            # and gpu.json beside it
    python benchmarks/gpu.py --only appo-worker sac  # these sections alone
    python benchmarks/gpu.py --dry-run               # small, on the CPU: the command works

It runs the tests marked ``gpu``; every algorithm with every feature; Breakout with APPO (policy
workers and inline inference, compiled passes, no CUDA graphs), Ape-X (frames in the machine's
memory, and on the GPU) and DD-PPO (a rank per GPU, and four on one), ViZDoom, CartPole and
HalfCheetah (SAC, CrossQ), beside the simulators' own rates, some with NVIDIA's Multi-Process
Service; profiles the updates of learners and the answers of a policy worker; and trains Breakout
in bf16 (MinAtar's where ale-py is missing). Each section is a process of its own. If it fails or
takes too long, the report has its error, and the next section goes on. A section for which no time
is left is skipped. The report is written after every section.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import machine
import torch
from gpu_sections import (
    BREAKOUT,
    FURTHER,
    MINATAR,
    SECTIONS,
    NotHere,
    Section,
    SectionError,
    Setting,
)

BUDGET = 1200.0
"""Seconds for all sections together."""
LEAST = 15.0
"""Seconds without which no section begins."""
BF16_SCORES = {BREAKOUT: 10.0, MINATAR: 4.0}
"""Mean returns that show learning: random actions have 1.2 and 0.5."""


def verdicts(results: dict[str, Any], setting: Setting) -> list[list[str]]:
    """Return a row per target: the target, what was measured, and whether it is reached."""
    measured = {n: r["result"] for n, r in results.items() if r["status"] == "ok"}
    rows = [_breakout(measured), _apex(measured), _graph(measured), _bf16(measured)]
    if setting.small:
        return [[target, found, "not judged: no GPU"] for target, found, _ in rows]
    return rows


def _breakout(measured: dict[str, Any]) -> list[str]:
    target = "Breakout APPO while learning >= 90% of the simulator's own rate"
    peak = measured.get("appo-worker", {}).get("peak_frames_per_s")
    runs = {
        name: measured[name]["frames_per_s"]
        for name in (
            "appo-worker",
            "appo-two-workers",
            "appo-inline",
            "appo-eager",
            "appo-compiled",
        )
        if name in measured
    }
    if not runs or not peak:
        return [target, "-", "not measured"]
    best = max(runs, key=lambda name: runs[name])
    share = runs[best] / peak
    found = f"{share:.1%} ({best}: {runs[best]:,.0f} of {peak:,.0f} frames/s)"
    return [target, found, _judged(share >= 0.9)]


def _apex(measured: dict[str, Any]) -> list[str]:
    target = "Breakout Ape-X: >= 12.5k transitions/s in and >= 9.7k trained/s"
    runs = [measured[n] for n in ("apex", "apex-gpu-frames") if n in measured]
    if not runs:
        return [target, "-", "not measured"]
    pairs = [(r["sampled_per_s"], r["trained_per_s"] or 0.0) for r in runs]
    into, trained = max(pairs, key=lambda pair: min(pair[0] / 12_500, pair[1] / 9_700))
    found = f"{into:,.0f} in, {trained:,.0f} trained"
    return [target, found, _judged(into >= 12_500 and trained >= 9_700)]


def _graph(measured: dict[str, Any]) -> list[str]:
    target = "learner's step as a CUDA graph >= 2x eager"
    of = measured.get("learner", {})
    eager = of.get("eager", {}).get("step_ms")
    graph = of.get("graph", {}).get("step_ms")
    if not eager:
        return [target, "-", "not measured"]
    if not graph:
        return [target, f"eager {eager:.3f} ms", "not measured"]
    found = f"{eager / graph:.2f}x (eager {eager:.3f} ms, graph {graph:.3f} ms)"
    return [target, found, _judged(eager / graph >= 2)]


def _bf16(measured: dict[str, Any]) -> list[str]:
    if "bf16" not in measured:
        return ["bf16 learns Breakout", "-", "not measured"]
    of = measured["bf16"]
    env, mean = of["env"], of["return_mean"]
    target = f"bf16 learns: {env} >= {BF16_SCORES[env]:g} in {of['seconds']:.0f} s"
    return [target, f"{mean:.1f}", _judged(mean >= BF16_SCORES[env])]


def _judged(reached: bool) -> str:
    return "reached" if reached else "MISSED"


def conditions(setting: Setting) -> str:
    """Return the lines to record beside the results: command, machine, versions, commit."""
    text = machine.describe("torch", "gymnasium", "ale-py", "numpy", "triton")
    lines = [text, f"cores     {len(os.sched_getaffinity(0))} usable"]
    if not setting.small:
        for index in range(setting.devices):
            of = torch.cuda.get_device_properties(index)
            memory, sms = of.total_memory / 2**30, of.multi_processor_count
            lines.append(f"GPU {index}     {of.name}, {memory:.0f} GiB, {sms} SMs")
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        lines.append(f"CUDA      {torch.version.cuda}, cuDNN {cudnn}, {_driver()}")
    else:
        lines.append("GPU       none: this run only shows that the command works")
    return "\n".join(lines)


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    return path.read_text().splitlines()[0] if path.exists() else "driver unknown"


def report(results: dict[str, Any], setting: Setting, header: str) -> str:
    """Return the whole report as Markdown."""
    what = "on a CPU, small: no figure of a GPU" if setting.small else "on a GPU"
    parts = [f"# SampleForge {what}", f"```\n{header}\n```", "## Targets"]
    parts.append(machine.table(["target", "measured", ""], verdicts(results, setting)))
    for section in (*SECTIONS, *FURTHER):
        if section.name not in results:
            continue
        of = results[section.name]
        parts.append(f"## {section.title}")
        if of["status"] == "ok":
            parts.append(f"{section.show(of['result'])}\n\n({of['seconds']:.0f} s)")
        elif of["status"] == "skipped":
            parts.append(f"Skipped: {of['error']}")
        else:
            parts.append(f"**Failed** after {of['seconds']:.0f} s:\n\n```\n{of['error']}\n```")
    return "\n\n".join(parts) + "\n"


class Display:
    """Shows which section runs and for how long, in one line that a terminal overwrites."""

    def __init__(self, total: int, begun: float) -> None:
        self._total = total
        self._begun = begun
        self._live = sys.stderr.isatty()
        self._ended = threading.Event()

    def begin(self, number: int, section: Section, limit: float) -> None:
        self._text = f"[{number}/{self._total}] {section.title}"
        self._started = time.monotonic()
        self._ended.clear()
        if not self._live:
            print(f"{self._text} (at most {limit:.0f} s)", file=sys.stderr, flush=True)
            return
        self._thread = threading.Thread(target=self._run, args=(limit,), daemon=True)
        self._thread.start()

    def end(self, status: str) -> None:
        self._ended.set()
        if self._live:
            self._thread.join()
        seconds, whole = time.monotonic() - self._started, time.monotonic() - self._begun
        start = "\r\x1b[K" if self._live else "    "
        text = f"{self._text}: " if self._live else ""
        line = f"{start}{text}{status}, {seconds:.0f} s ({whole:.0f} s in all)"
        print(line, file=sys.stderr, flush=True)

    def _run(self, limit: float) -> None:
        while not self._ended.wait(0.5):
            seconds = time.monotonic() - self._started
            line = f"\r\x1b[K{self._text} ... {seconds:.0f} of at most {limit:.0f} s"
            print(line, end="", file=sys.stderr, flush=True)


def run_section(section: Section, setting: Setting, limit: float) -> dict[str, Any]:
    """Return the section's status, result or error, and seconds. Any failure is a result."""
    started = time.monotonic()
    outcome: dict[str, Any]
    try:
        outcome = {"status": "ok", "result": section.run(setting, limit)}
        section.show(outcome["result"])
    except NotHere as reason:
        outcome = {"status": "skipped", "error": str(reason)}
    except Exception as error:
        kind = "" if isinstance(error, SectionError) else f"{type(error).__name__}: "
        outcome = {"status": "failed", "error": f"{kind}{error}"}
    return {**outcome, "seconds": time.monotonic() - started}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="small, on the CPU")
    parser.add_argument("--out", type=Path, default=Path("gpu.md"), help="the report")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for all sections")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="factor for the limits of sections"
    )
    usual, every = ([each.name for each in some] for some in (SECTIONS, [*SECTIONS, *FURTHER]))
    further = ", ".join(each.name for each in FURTHER)
    only = f"sections (also {further}, which do not run otherwise)"
    parser.add_argument("--only", nargs="+", choices=every, default=usual, help=only)
    args = parser.parse_args()
    if not args.dry_run and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; --dry-run tries the command on the CPU")
    device = "cpu" if args.dry_run else "cuda"
    devices = torch.cuda.device_count() if device == "cuda" else 1
    chosen = [section for section in (*SECTIONS, *FURTHER) if section.name in args.only]
    results: dict[str, Any] = {}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(device, devices, Path(folder))
        header = conditions(setting)
        print(header, file=sys.stderr, flush=True)
        display = Display(len(chosen), begun)
        for number, section in enumerate(chosen, 1):
            left = args.budget - (time.monotonic() - begun)
            if left < LEAST:
                error = (
                    f"would run for at most {section.limit:.0f} s, but the budget of "
                    f"{args.budget:g} s was spent; give a larger --budget, or --only {section.name}"
                )
                results[section.name] = {"status": "skipped", "error": error, "seconds": 0.0}
                continue
            limit = min(section.limit * args.patience, left)
            display.begin(number, section, limit)
            results[section.name] = run_section(section, setting, limit)
            display.end(results[section.name]["status"])
            args.out.write_text(report(results, setting, header))
        args.out.write_text(report(results, setting, header))
        stored: dict[str, Any] = {
            "conditions": header.splitlines(),
            "device": device,
            "sections": results,
        }
        stored["targets"] = verdicts(results, setting)
    args.out.with_suffix(".json").write_text(json.dumps(stored, indent=1) + "\n")
    print(machine.table(["target", "measured", ""], stored["targets"]))
    print(f"report: {args.out}, {args.out.with_suffix('.json')}")
    sys.exit(any(of["status"] == "failed" for of in results.values()))


if __name__ == "__main__":
    main()
