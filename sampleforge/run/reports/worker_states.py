"""The states of a run's workers, as the terminal shows them and as workers.json stores them."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sampleforge.run.reports.verdict import Verdict
    from sampleforge.topologies.graph import Role

State = Literal["starting", "running", "waiting", "stalled", "ended"]
"""starting: it has not worked yet; waiting: for other workers, most of its time; stalled: it has
counted nothing for seconds although it should have; ended: a rank that has left its loop."""


@dataclass(frozen=True)
class WorkerState:
    """What one worker does. ``seconds``: since it last counted anything; ``busy``: the fraction
    (0 to 1) of its time in which it did not wait, None if that is not known; ``rate``: per second,
    in ``unit``, None if its role has none or it is not known; ``pid``: None without a process of
    its own; ``detail``: what a starting worker has done so far."""

    name: str
    role: Role
    state: State
    seconds: float
    busy: float | None
    rate: float | None
    unit: str
    restarts: int
    pid: int | None
    detail: str = ""


@dataclass(frozen=True)
class RunState:
    """The states of all ``workers``, in the graph's order, and the last known ``verdict`` on what
    limits the run (None before the first)."""

    workers: tuple[WorkerState, ...]
    verdict: Verdict | None = None

    def to_plain(self, env_steps: int, wall_s: float) -> dict[str, Any]:
        """Return the contents of workers.json. ``time`` is in seconds since the epoch."""
        found = self.verdict
        limit = None
        if found is not None:
            limit = {
                "part": found.part,
                "stage": found.bottleneck,
                "in_words": found.in_words,
                "reason": found.reason,
                "flags": list(found.flags),
            }
        return {
            "time": time.time(),
            "env_steps": env_steps,
            "wall_s": wall_s,
            "limit": limit,
            "workers": [asdict(worker) for worker in self.workers],
        }
