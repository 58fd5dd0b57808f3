"""The reader of metrics.jsonl."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sampleforge.run.folder.atomic_file import write_atomically, writing


def read_metrics(path: Path, log: Callable[[str], None] = warnings.warn) -> list[dict[str, Any]]:
    """Return the reports in a metrics.jsonl, in order. If a resumed run did steps again, the
    earlier reports of these steps are left out. An incomplete last line is left out, too, and so
    are damaged lines, which ``log`` is told of."""
    reports: list[dict[str, Any]] = []
    damaged: list[int] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        report = parse_report(line)
        if report is None:
            damaged.append(number)
            continue
        while reports and reports[-1]["env_steps"] > report["env_steps"]:
            reports.pop()
        reports.append(report)
    if damaged:
        more = "" if len(damaged) == 1 else f" and {len(damaged) - 1} more"
        log(f"{path}: line {damaged[0]}{more} of {number} left out: damaged, not a report")
    return reports


def drop_reports_after(path: Path, env_steps: int) -> None:
    """Remove the reports of later env steps from a metrics.jsonl, if there is one. Raises OSError,
    which names the file, if it cannot be written."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    reports = map(parse_report, lines)
    later = [report is not None and report["env_steps"] > env_steps for report in reports]
    if any(later):
        kept = [line for line, is_later in zip(lines, later, strict=True) if not is_later]
        with writing(path):
            write_atomically(path, b"".join(kept))


def parse_report(line: bytes) -> dict[str, Any] | None:
    """Return the report in a line of a metrics.jsonl: a JSON object whose values are numbers or
    null, with numbers as ``env_steps`` and ``wall_s``. Return None for another line, which is
    damaged."""
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or not {"env_steps", "wall_s"} <= report.keys():
        return None
    axes = (report["env_steps"], report["wall_s"])
    whole = None not in axes and all(map(_is_value, report.values()))
    return report if whole else None


def _is_value(value: Any) -> bool:
    """Return whether a value can be converted to a float, or is null."""
    if isinstance(value, int):
        return abs(value) <= sys.float_info.max
    return value is None or isinstance(value, float)
