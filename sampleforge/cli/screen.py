"""The callback that shows a run on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sampleforge.reporting.display import QuietDisplay, open_display
from sampleforge.reporting.progress import Goal
from sampleforge.session.callback import Callback, Message
from sampleforge.session.session import Session


class Screen(Callback):
    """Shows a live panel on a terminal, one line per report elsewhere; with --quiet only alerts and
    results. The traceback of what ends a run is shown by the command, last of all."""

    def __init__(self) -> None:
        self._display: QuietDisplay | None = None

    def on_message(self, session: Session, message: Message) -> None:
        if message.level == "alert":
            print(message.text, file=sys.stderr)
        elif message.level not in ("debug", "error"):
            self._opened(session).message(message.text, message.level)

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        self._opened(session).update(report)

    def on_end(self, session: Session, summary: Mapping[str, Any]) -> None:
        if summary["status"] != "failed":
            mean, where = summary["return_mean"], session.folder.path
            reached = "no episode has ended" if mean is None else f"mean return {mean:.2f}"
            text = f"{summary['status']}: {summary['env_steps']:,} env steps, {reached}, in {where}"
            if summary["status"] == "interrupted" and session.checkpoints.writes:
                text += "; the same command with that --run-dir goes on from its checkpoint"
            session.message(text, "result")
        self.close()

    def close(self) -> None:
        """Leave the terminal in order."""
        if self._display is not None:
            self._display.close()

    def _opened(self, session: Session) -> QuietDisplay:
        if self._display is None:
            config = session.config
            goal = Goal(config.train_for_env_steps, config.train_for_seconds)
            self._display = open_display(session.folder.path.name, goal, config.quiet)
        return self._display
