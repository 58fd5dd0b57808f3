"""The reader of metrics.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the reports in a metrics.jsonl, in order. If a resumed run did steps again, the
    earlier reports of these steps are left out. An incomplete last line is left out, too."""
    reports: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        report = json.loads(line)
        while reports and reports[-1]["env_steps"] > report["env_steps"]:
            reports.pop()
        reports.append(report)
    return reports
