"""The callback that writes a run's reports and messages into its folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from sampleforge.folder.run_folder import RunFolder
from sampleforge.reporting.reporter import Reporter
from sampleforge.session.callback import Callback, Message

if TYPE_CHECKING:
    from sampleforge.session.session import Session


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
