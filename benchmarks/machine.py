"""The conditions to record beside a figure: machine, cores, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent


def describe(*packages: str) -> str:
    """Return the lines to record beside a result: command, processor, cores, versions, commit."""
    used = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return "\n".join(
        [
            f"command   python benchmarks/{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}",
            f"machine   {processor()}, {os.cpu_count()} cores, of which {used} used",
            f"software  Python {platform.python_version()}, {', '.join(map(installed, packages))}",
            f"commit    {commit()}",
        ]
    )


def commit() -> str:
    """Return the commit of this checkout, with "-dirty" if other files than those of results, which
    a benchmark writes itself, were changed since."""
    changes = "diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)benchmarks/results"
    named = git("rev-parse", "--short", "HEAD").stdout.strip()
    if not named:
        return "unknown"
    return f"{named}-dirty" if git(*changes).returncode else named


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=False)


def pin(index: int) -> None:
    """Keep this process on one of the cores that it may use. Otherwise two processes that were
    woken together can share one core for seconds, and a figure has one of two values by chance."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[index % len(cores)]})


def processor() -> str:
    """Return the name of the processor and the widest of its instructions for vectors, which change
    its speed in fp32 by a factor of two and in bf16 by twenty."""
    parts = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    cpu = {name.strip(): value.strip() for name, _, value in parts}
    has = cpu.get("flags", "").split()
    widest = next((name for name in ("avx512_bf16", "avx512f", "avx2") if name in has), "")
    return " with ".join(filter(None, (cpu.get("model name", platform.machine()), widest)))


def installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table, aligned for the terminal: the first column left, the others
    right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        aligned = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(aligned)} |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(header), line(rule), *map(line, rows)])
