"""What a session reports and when: the files of its folder, and a warning of stale experience."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING

from sampleforge.folder.run_folder import RunFolder
from sampleforge.reporting.reporter import Reporter
from sampleforge.session.callback import Callback, Message
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.policy_lag import stale_warning

if TYPE_CHECKING:
    from sampleforge.session.session import Session


class Reports:
    """Says when a report is due: at every interval, and when an evaluation waits to be reported.

    The interval is of seconds, or ``by_env_steps`` of 1000 env steps for each, to be deterministic.
    """

    def __init__(self, session: Session, *, by_env_steps: bool) -> None:
        self._progress = session.graph.progress
        self._evaluations = session.statistics.evaluations
        self._by_env_steps = by_env_steps
        self._interval = session.config.report_interval * (1000.0 if by_env_steps else 1.0)
        self._next = self._clock() + self._interval

    @property
    def is_due(self) -> bool:
        """Whether to report now. Counts the interval anew where it has passed."""
        due = self._clock() >= self._next
        if due:
            self._next = self._clock() + self._interval
        return due or self._evaluations.waits

    def _clock(self) -> float:
        return float(self._progress.env_steps) if self._by_env_steps else monotonic()


class RunFiles(Callback):
    """Writes metrics.jsonl, TensorBoard events and log.txt. Every session has one."""

    def __init__(self, folder: RunFolder, resources: ExitStack) -> None:
        self._reporter = Reporter(folder)
        resources.callback(self._reporter.close)

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        self._reporter.report(
            report,
            env_steps=session.graph.progress.env_steps,
            wall_s=report["wall_s"],
            histograms=session.histograms(),
        )

    def on_message(self, session: Session, message: Message) -> None:
        level = "warning" if message.level == "alert" else message.level
        self._reporter.log(message.text, level, message.source)


class StaleExperience(Callback):
    """Warns at the first report in which more than half of a group's rows were stale."""

    def __init__(self, graph: Graph) -> None:
        self._group = graph.group
        self._said = False

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        limit = self._group.max_policy_lag
        if self._said or limit is None or "policy_lag_mean" not in report:
            return
        text = stale_warning(
            report["stale_fraction"],
            limit,
            report["policy_lag_mean"],
            report["policy_lag_batches_mean"],
            synchronous=self._group.synchronous,
        )
        if text is not None:
            self._said = True
            session.message(text, "warning")
