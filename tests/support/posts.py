"""A worker's post in a test, where the worker is the only one."""

from __future__ import annotations

from sampleforge.shared.counters import Counters, Progress, TrainingClock
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.graph import COUNTERS
from sampleforge.workers.worker import Post


def some_post(wakeup: Wakeup | None = None, counters: Counters | None = None) -> Post:
    """The post of row 0 of the ``counters``, in a run without limits."""
    counters = counters or Counters(COUNTERS, 1)
    return Post(0, wakeup or Wakeup(), Progress(counters, TrainingClock()))
