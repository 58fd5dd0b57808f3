"""The clock of a run: it begins with the work, leaves pauses out, and all workers read the same."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from sampleforge.shared import counters
from sampleforge.shared.counters import ClockTicker, Counters, Progress, TrainingClock


class Time:
    """Stands for ``monotonic`` of the driver."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    fake = Time()
    monkeypatch.setattr(counters, "monotonic", fake)
    monkeypatch.setattr(counters, "seconds_since", lambda at: fake.now - at)
    yield fake


def passes(fake: Time, ticker: ClockTicker, seconds: float) -> None:
    """Let time pass in a process that runs."""
    for _ in range(round(seconds * 10)):
        fake.now += 0.1
        ticker.age(fake.now)


def test_the_clock_begins_with_the_work_and_leaves_pauses_out(fake: Time) -> None:
    clock = TrainingClock()
    begun: list[bool] = []
    ticker = ClockTicker(clock, lambda: bool(begun))
    progress = Progress(Counters(("env_steps",), 1), clock, base_wall_s=10.0, limit_s=14.0)
    passes(fake, ticker, 5.0)
    assert progress.wall_s == 10.0
    begun.append(True)
    passes(fake, ticker, 3.1)
    assert progress.wall_s == pytest.approx(13.0, abs=0.11)
    fake.now += 3600.0
    passes(fake, ticker, 0.5)
    assert not progress.done
    passes(fake, ticker, 1.0)
    assert progress.done


def test_an_age_does_not_count_the_pauses_since_then(fake: Time) -> None:
    ticker = ClockTicker(TrainingClock(), lambda: True)
    before = fake.now
    fake.now += 60.0
    assert ticker.age(before) == pytest.approx(counters.TICK), "already the first look knows"
    after = fake.now
    passes(fake, ticker, 2.0)
    assert ticker.age(after) == pytest.approx(2.0)
    assert ticker.age(before) == pytest.approx(2.0 + counters.TICK)
    assert ticker.age(float("inf")) == -float("inf")


def test_a_busy_process_is_not_taken_for_a_paused_one() -> None:
    """The thread of the ticker looks while the driver does something else."""
    clock = TrainingClock()
    ticker = ClockTicker(clock, lambda: True)
    ticker.start()
    began = time.monotonic()
    time.sleep(counters.PAUSE_S + 1.0)
    age = ticker.age(began)
    ticker.close()
    assert age > counters.PAUSE_S
    assert clock.seconds > counters.PAUSE_S
