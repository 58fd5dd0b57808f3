"""The command `sampleforge doctor`: check the machine and the installation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sampleforge.cli.flags import parse
from sampleforge.tools.doctor import findings


@dataclass(frozen=True)
class DoctorFlags:
    """The command has no flags."""


def run(args: Sequence[str]) -> int:
    """Print the findings. Return 1 if one of them prevents every run, else 0."""
    parse(DoctorFlags, args, "sampleforge doctor", "Check this machine and installation.")
    failed = False
    for finding in findings():
        failed |= finding.state == "bad"
        print(f"{finding.state:<6} {finding.name:<14} {finding.text}", flush=True)
    return int(failed)
