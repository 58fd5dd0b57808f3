"""The table of a run's workers on the terminal: one row per worker, or per role where there is no
room for all."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from sampleforge.run.reports.worker_states import State, WorkerState
from sampleforge.run.screen.progress import duration, short

STYLES: dict[State, str] = {
    "starting": "cyan",
    "running": "green",
    "waiting": "dim",
    "stalled": "bold red",
    "ended": "dim",
}
COLUMN = 62
"""Columns of the terminal that one row needs; rows stand beside each other where more fit."""
NARROW = 72
"""Width of the terminal below which names of units are left out."""
NAMED = 3
"""Stalled workers of a role that are named."""


def workers_table(workers: Sequence[WorkerState], width: int, lines: int) -> Table | None:
    """Return the table of ``workers``, at most ``width`` columns wide and ``lines`` high with its
    heading: a row for each worker if they fit, else for each role; None if neither fits."""
    roles = list(dict.fromkeys(worker.role for worker in workers))
    beside = max(1, min(width // COLUMN, len(workers)))
    if workers and -(-len(workers) // beside) + 1 <= lines:
        return _of_each(workers, beside, width)
    if roles and len(roles) + 1 <= lines:
        return _of_roles([[w for w in workers if w.role == role] for role in roles], width)
    return None


def _of_each(workers: Sequence[WorkerState], beside: int, width: int) -> Table:
    """Return a table with a row for each worker, ``beside`` workers in a line."""
    table = _table(("worker", "state", "busy", "rate", "restarts"), beside)
    height = -(-len(workers) // beside)
    for line in range(height):
        cells: list[Text | str] = []
        for worker in workers[line::height]:
            cells += [
                worker.name,
                _state(worker),
                _percent(worker.busy),
                _rate(worker.rate, worker.unit, width),
                _restarts(worker.restarts),
            ]
        table.add_row(*cells)
    return table


def _of_roles(groups: Sequence[Sequence[WorkerState]], width: int) -> Table:
    """Return a table with a row for each role: how many of its workers are in which state, their
    mean time without waiting, the sum of their rates and of their restarts."""
    table = _table(("workers", "states", "busy", "rate", "restarts"), 1)
    for workers in groups:
        busy = [worker.busy for worker in workers if worker.busy is not None]
        rates = [worker.rate for worker in workers if worker.rate is not None]
        table.add_row(
            f"{len(workers)} x {workers[0].role}",
            _states(workers),
            _percent(sum(busy) / len(busy) if busy else None),
            _rate(sum(rates) if rates else None, workers[0].unit, width),
            _restarts(sum(worker.restarts for worker in workers)),
        )
    return table


def _table(headings: tuple[str, ...], beside: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for heading in headings * beside:
        right = heading in ("busy", "rate", "restarts")
        table.add_column(justify="right" if right else "left", no_wrap=True)
    table.add_row(*headings * beside, style="dim")
    return table


def _state(worker: WorkerState) -> Text:
    """Return a worker's state; of a stalled or starting one also since when."""
    text = Text(worker.state, STYLES[worker.state])
    if worker.state == "stalled":
        text.append(f" {duration(worker.seconds)}")
    elif worker.detail:
        text.append(f" ({worker.detail})", "dim")
    return text


def _states(workers: Sequence[WorkerState]) -> Text:
    """Return how many workers of a role are in each state, and the names of stalled ones."""
    parts = []
    for state, style in STYLES.items():
        having = [worker for worker in workers if worker.state == state]
        if not having:
            continue
        text = Text(f"{len(having)} {state}", style)
        if state == "stalled":
            named = ", ".join(worker.name for worker in having[:NAMED])
            more = ", ..." if len(having) > NAMED else ""
            text.append(f" ({named}{more})", "red")
        parts.append(text)
    return Text(", ").join(parts)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _rate(rate: float | None, unit: str, width: int) -> str:
    if rate is None:
        return "-"
    return f"{short(rate)} {unit}" if width >= NARROW else f"{short(rate)}/s"


def _restarts(count: int) -> Text:
    return Text(f"{count} times" if count > 1 else "once", "yellow") if count else Text("-", "dim")
