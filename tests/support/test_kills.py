"""The tool for kills between two stores sees every store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.kills import (
    PACKAGE,
    Publication,
    check_killed_writers,
    check_overtaken_readers,
    live,
    met,
    watched,
)

STORES = {
    "an item": "array[1] = 7",
    "a slice": "array[1:] = 7",
    "in place": "view = array[1:]; view += 7",
    "in place, in a dict": "rows = {'a': array[1:]}; rows['a'] += 7",
    "a call": "array[1:].fill(7)",
    "a call with names": "np.copyto(array[1:], 7, casting='unsafe')",
    "a call with a star": "array[1:].fill(*[7])",
}


def of_the_package(text: str, array: Any, save: Any = None) -> Callable[[], None]:
    """Code that counts as SampleForge's."""
    code = compile(text, f"{PACKAGE}/none.py", "exec")
    return lambda: exec(code, {"array": array, "np": np, "save": save})


@pytest.mark.parametrize("text", STORES.values(), ids=STORES)
def test_work_is_killed_between_any_two_stores(text: str) -> None:
    found: list[tuple[int, int]] = []
    at, killed = 0, True
    while killed:
        at += 1
        array = np.zeros(3, np.int64)
        killed = live(of_the_package(f"array[0] = 1; {text}; array[0] = 2", array), at)
        found.append((int(array[0]), int(array[1])))
    assert list(dict.fromkeys(found)) == [(0, 0), (1, 0), (1, 7), (2, 7)]


def test_code_of_others_is_not_killed() -> None:
    array = np.zeros(1)
    assert not live(lambda: array.fill(1), 1)


def test_a_reader_sees_what_another_process_does_between_two_of_its_reads() -> None:
    at, seen = 0, set()
    while True:
        at += 1
        array = np.array([1, 1])
        found: list[tuple[int, int]] = []
        read = of_the_package("a = array[0]; b = array[1]; save((a, b))", array, found.append)
        if not met(read, at, lambda array=array: array.fill(2)):  # type: ignore[misc]
            break
        seen.update(found)
    assert seen == {(2, 2), (1, 2), (1, 1)}


def test_a_look_is_taken_before_each_store_and_after_the_last() -> None:
    array, seen = np.zeros(2), []
    watched(of_the_package("array[0] = 1; array[1] = 1", array), lambda: seen.append(array.sum()))
    assert seen == [0, 1, 2]


def in_place_of(write: str) -> Publication:
    """Two equal numbers, which are written without a protocol."""
    array = np.zeros(2, np.int64)

    def read() -> int:
        found: list[tuple[int, int]] = []
        of_the_package("save((array[0], array[1]))", array, found.append)()
        ((first, second),) = found
        assert first == second
        return int(first)

    def writes(number: int) -> None:
        exec(compile(write, f"{PACKAGE}/none.py", "exec"), {"array": array, "n": number})

    return Publication(writes, read)


def test_a_torn_value_is_found() -> None:
    with pytest.raises(AssertionError):
        check_killed_writers(lambda: in_place_of("array[0] = n; array[1] = n"))
    with pytest.raises(AssertionError):
        check_overtaken_readers(lambda: in_place_of("array[:] = n"))
