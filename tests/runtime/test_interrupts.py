"""Ctrl-C in the library: kept until nothing is half done, and raised at once if it comes again."""

from __future__ import annotations

import signal
import threading

import pytest

from sampleforge.runtime import interrupts
from sampleforge.runtime.interrupts import DeferredInterrupt


def test_the_first_ctrl_c_waits_for_a_check_or_the_end() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt() as interrupt:
        interrupt.check()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # a copy: the terminal and a launcher send one each
        done.append("this")
        interrupt.check()
        done.append("and not this")
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt():
        signal.raise_signal(signal.SIGINT)
        done.append("to the end")
    assert done == ["this", "to the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(interrupts.ONE_SIGNAL_S, signal.SIGINT, 0.0)
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it went on")


def test_it_changes_nothing_in_other_threads_and_within_another_one() -> None:
    found: list[object] = []

    def enter() -> None:
        with DeferredInterrupt():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
    with DeferredInterrupt():
        outer = signal.getsignal(signal.SIGINT)
        enter()
        assert found[1] == outer
        assert signal.getsignal(signal.SIGINT) == outer


def test_an_error_inside_is_raised_in_its_place() -> None:
    with pytest.raises(ArithmeticError), DeferredInterrupt():
        signal.raise_signal(signal.SIGINT)
        raise ArithmeticError
