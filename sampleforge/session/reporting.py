"""What a session reports and when: the files of its folder, and a warning of stale experience."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from sampleforge.folder.run_folder import RunFolder
from sampleforge.reporting.reporter import Reporter
from sampleforge.session.callback import Callback, Message
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.policy_lag import stale_warning

if TYPE_CHECKING:
    from sampleforge.session.session import Session


WAITING_S = 5.0
"""Seconds between two messages that the environments are waited for."""


class Reports:
    """Says when a report is due: at every interval, and when an evaluation waits to be reported.

    The interval is of seconds, or ``by_env_steps`` of 1000 env steps for each, to be deterministic.
    """

    def __init__(self, session: Session, *, by_env_steps: bool) -> None:
        self._progress = session.graph.progress
        self._statistics = session.statistics
        self._by_env_steps = by_env_steps
        self._interval = session.config.report_interval * (1000.0 if by_env_steps else 1.0)
        self._next = self._clock() + self._interval

    @property
    def is_due(self) -> bool:
        """Whether to report now. Counts the interval anew where it has passed."""
        due = self._clock() >= self._next
        if due:
            self._next = self._clock() + self._interval
        return due or self._statistics.evaluation_waits

    def _clock(self) -> float:
        return float(self._progress.env_steps) if self._by_env_steps else monotonic()


class RunFiles(Callback):
    """Writes metrics.jsonl, TensorBoard events and log.txt. Every session has one."""

    def __init__(self, folder: RunFolder, resources: ExitStack) -> None:
        self._reporter = Reporter(folder)
        resources.callback(self._reporter.close)

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        graph = session.graph
        session.folder.check_there()
        self._reporter.report(
            report,
            env_steps=graph.progress.env_steps,
            wall_s=report["wall_s"],
            histograms=session.histograms(),
            policies=[prefix for prefix in map(graph.prefix, graph.groups) if prefix],
        )

    def on_message(self, session: Session, message: Message) -> None:
        level = "warning" if message.level == "alert" else message.level
        self._reporter.log(message.text, level, message.source)


class Starting(Callback):
    """Says which part of the env rows has started, while that takes long: until the first env
    step, every `WAITING_S` seconds."""

    def __init__(self) -> None:
        self._next = inf

    def on_start(self, session: Session) -> None:
        self._next = monotonic() + WAITING_S

    def on_poll(self, session: Session) -> None:
        if monotonic() < self._next:
            return
        self._next = monotonic() + WAITING_S
        counters, plan = session.graph.counters, session.plan
        started, rows = int(counters.total("started_rows")), plan.num_workers * plan.envs
        if counters.total("env_steps"):
            self._next = inf
        elif started < rows:
            session.message(f"Waiting for the environments: {started} of {rows} have started")


class StaleExperience(Callback):
    """Warns at the first report in which more than half of a policy group's rows were stale."""

    def __init__(self, graph: Graph) -> None:
        self._silent = {graph.prefix(group): group for group in graph.groups}
        """The groups that have not been warned of, by what their metrics begin with."""

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        for prefix, group in list(self._silent.items()):
            limit = group.max_policy_lag
            if limit is None or f"{prefix}policy_lag_mean" not in report:
                continue
            text = stale_warning(
                report[f"{prefix}stale_fraction"],
                limit,
                report[f"{prefix}policy_lag_mean"],
                report[f"{prefix}policy_lag_batches_mean"],
                synchronous=group.synchronous,
            )
            if text is not None:
                del self._silent[prefix]
                of = f"{group.id}: " if prefix else ""
                session.message(f"{of}{text}", "warning")
