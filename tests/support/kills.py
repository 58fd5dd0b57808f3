"""Kills between any two stores into shared memory, and reads at any instant, without a process."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import sampleforge

PACKAGE = str(Path(sampleforge.__file__).parent)
STORES = ("STORE_SUBSCR", "STORE_SLICE", "CALL", "CALL_KW", "CALL_FUNCTION_EX")
"""Instructions that may write into shared memory; a call may be one of numpy or torch that does.
In-place operations (``row["env_steps"] += 1``) may write as well."""
LOADS = ("BINARY_SUBSCR", "BINARY_SLICE", "COMPARE_OP", "BINARY_OP", "UNPACK_SEQUENCE")
"""Instructions beside `STORES` that may read from shared memory."""
OPERATIONS = [name for name, _ in dis._nb_ops]  # type: ignore[attr-defined]
"""The operations of BINARY_OP by its argument; from Python 3.14 on a subscript is one of them."""
TOOL = 4
"""Of `sys.monitoring`: one of the numbers without a purpose."""


class Killed(BaseException):
    """What a process that is killed does not live to see."""


def may_store(code: bytes, at: int) -> bool:
    name = dis.opname[code[at]]
    if name == "BINARY_OP":
        return OPERATIONS[code[at + 1]].startswith("NB_INPLACE")
    return name in STORES


def may_read(code: bytes, at: int) -> bool:
    return may_store(code, at) or dis.opname[code[at]] in LOADS


def visited(
    work: Callable[[], object],
    visit: Callable[[int], None],
    which: Callable[[bytes, int], bool] = may_store,
) -> None:
    """Do some ``work``, and call ``visit(n)`` just before the n-th instruction of SampleForge that
    may write into shared memory (n from 1)."""
    passed = 0

    def before(code: bytes, at: int) -> None:
        nonlocal passed
        if which(code, at):
            passed += 1
            visit(passed)

    traced(work, before)


if sys.version_info < (3, 12):

    def traced(work: Callable[[], object], before: Callable[[bytes, int], None]) -> None:
        """Do some ``work``, and call ``before(code, at)`` just before each of SampleForge's
        instructions of this thread, but for those that ``before`` leads to."""

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if event == "call":
                if not frame.f_code.co_filename.startswith(PACKAGE):
                    return None
                frame.f_trace_opcodes, frame.f_trace_lines = True, False
            elif event == "opcode":
                before(frame.f_code.co_code, frame.f_lasti)
            return trace

        outer = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(outer)

else:  # `sys.settrace` would tell of instructions of a function from its second call on
    _before: dict[int, Callable[[bytes, int], None]] = {}
    """The function to call, by the thread."""

    def _tell(code: CodeType, at: int) -> Any:
        if not code.co_filename.startswith(PACKAGE):
            return sys.monitoring.DISABLE
        if (before := _before.get(threading.get_ident())) is not None:
            before(code.co_code, at)
        return None

    def traced(work: Callable[[], object], before: Callable[[bytes, int], None]) -> None:
        """As above."""
        monitoring, thread = sys.monitoring, threading.get_ident()
        event, first, outer = monitoring.events.INSTRUCTION, not _before, _before.get(thread)
        if first:
            monitoring.use_tool_id(TOOL, "kills")
            monitoring.register_callback(TOOL, event, _tell)
            monitoring.set_events(TOOL, event)
        _before[thread] = before
        try:
            work()
        finally:
            del _before[thread]
            if outer is not None:
                _before[thread] = outer
            if first:
                monitoring.set_events(TOOL, 0)
                monitoring.free_tool_id(TOOL)


def live(work: Callable[[], object], at: int) -> bool:
    """Do some ``work``, and die just before the ``at``-th instruction of SampleForge that may write
    into shared memory (from 1). Return whether it was killed; False: there are fewer."""

    def kill(number: int) -> None:
        if number == at:
            raise Killed

    try:
        visited(work, kill)
    except Killed:
        return True
    return False


def kills(new_life: Callable[[], Callable[[], object]], step: int = 1) -> Iterator[int]:
    """Kill the work of a ``new_life`` at every instant, or every ``step``-th one; yield after each
    kill."""
    for at in count(1, step):
        if not live(new_life(), at):
            return
        yield at


def watched(work: Callable[[], object], look: Callable[[], object]) -> int:
    """Do some ``work``, and ``look`` as another process may, before each store and after the last
    one. Return how often it looked."""
    looks = 1

    def visit(number: int) -> None:
        nonlocal looks
        looks += 1
        look()

    visited(work, visit)
    look()
    return looks


def met(read: Callable[[], object], at: int, event: Callable[[], object]) -> bool:
    """``read``, and just before the ``at``-th instruction of it that may read shared memory (from
    1), let ``event`` happen in another process: here a thread, which may be killed by `live`.
    Return whether it happened; False: there are fewer instructions."""
    happened = False

    def visit(number: int) -> None:
        nonlocal happened
        if number == at:
            happened = True
            other = threading.Thread(target=event)  # a thread is traced on its own
            other.start()
            other.join()

    visited(read, visit, may_read)
    return happened


class Publication:
    """A value in shared memory that a writer replaces as a whole, for checks at every instant.

    ``write(n)`` writes the n-th value (from 1); ``read()`` returns the number of the value that a
    reader finds, 0 if there is none, and raises AssertionError if it is a mixture of two.
    ``expected``: least number of instants of ``write``."""

    def __init__(
        self, write: Callable[[int], object], read: Callable[[], int], expected: int = 3
    ) -> None:
        self.write = write
        self.read = read
        self.expected = expected


def check_killed_writers(new: Callable[[], Publication]) -> None:
    """Kill the writer of the third value at every instant, and its successor, which writes the
    fourth, at the same one; another successor writes the fourth and the fifth. A reader always
    finds the old or the new value, and never an older one."""
    made: list[Publication] = []

    def third() -> Callable[[], object]:
        made.append(new())
        made[-1].write(1)
        made[-1].write(2)
        return lambda: made[-1].write(3)

    instants = 0
    for _ in kills(third):
        instants += 1
        shared = made.pop()
        found = shared.read()
        assert found in (2, 3), found
        live(lambda shared=shared: shared.write(4), instants)  # type: ignore[misc]
        assert shared.read() in (found, 4)
        _check_watched(shared, 4, shared.read())
        _check_watched(shared, 5, 4)
    assert instants >= made[-1].expected, "instants"


def _check_watched(shared: Publication, number: int, before: int) -> None:
    """A reader at every instant of a live writer finds the old value, and then the new one."""
    seen: list[int] = []
    watched(lambda: shared.write(number), lambda: seen.append(shared.read()))
    assert set(seen) <= {before, number} and seen == sorted(seen), seen
    assert seen[-1] == number


def check_overtaken_readers(new: Callable[[], Publication]) -> None:
    """At every instant of a reader, let a writer write up to two whole values, and then begin
    another one, in which it stops anywhere. The reader finds a whole value that was the newest
    while it read."""
    probe = new()
    instants = watched(lambda: probe.write(1), lambda: None)
    for whole in (0, 1, 2):
        for stop in range(1, instants + 1):
            for at in count(1):
                shared = new()
                shared.write(1)
                shared.write(2)
                found: list[int] = []

                def event(shared: Publication = shared, stop: int = stop) -> None:
                    for number in range(3, 3 + whole):  # noqa: B023
                        shared.write(number)
                    live(lambda: shared.write(3 + whole), stop)  # noqa: B023

                if not met(lambda: found.append(shared.read()), at, event):  # noqa: B023
                    break
                assert 2 <= found[0] <= shared.read(), (whole, stop, at, found)
