"""What this machine's processor can do."""

from __future__ import annotations

import re
from pathlib import Path

_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Names in /proc/cpuinfo (the last one on ARM)."""


def bf16_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The instruction sets with which the processor computes in bfloat16 itself; without any, bf16
    is slower than fp32. Empty too where nobody says."""
    if not cpuinfo.is_file():
        return []
    return sorted(_BF16 & set(re.findall(r"\w+", cpuinfo.read_text())))
