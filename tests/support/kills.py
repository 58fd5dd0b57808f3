"""Kills between any two stores into shared memory, without a process."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import sampleforge

PACKAGE = str(Path(sampleforge.__file__).parent)
STORES = ("STORE_SUBSCR", "STORE_SLICE", "CALL", "CALL_KW", "CALL_FUNCTION_EX")
"""Instructions that may write into shared memory; a call may be one of numpy or torch that does."""


class Killed(BaseException):
    """What a process that is killed does not live to see."""


def live(work: Callable[[], object], at: int) -> bool:
    """Do some ``work``, and die just before the ``at``-th instruction of SampleForge that may write
    into shared memory (from 1). Return whether it was killed; False: there are fewer."""
    left = at

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        code = frame.f_code
        if event == "call":
            if not code.co_filename.startswith(PACKAGE):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and dis.opname[code.co_code[frame.f_lasti]] in STORES:
            left -= 1
            if left == 0:
                raise Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Killed:
        return True
    finally:
        sys.settrace(before)
    return False


def kills(new_life: Callable[[], Callable[[], object]], step: int = 1) -> Iterator[int]:
    """Kill the work of a ``new_life`` at every instant, or every ``step``-th one; yield after each
    kill."""
    for at in count(1, step):
        if not live(new_life(), at):
            return
        yield at
