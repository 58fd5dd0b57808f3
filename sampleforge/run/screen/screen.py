"""The callback that shows a run on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sampleforge.run.callback import Callback, Message
from sampleforge.run.screen.closing import end_line, next_commands
from sampleforge.run.screen.display import QuietDisplay, open_display
from sampleforge.run.screen.progress import Goal
from sampleforge.run.session import Session
from sampleforge.runtime.streams import LastingStream

if TYPE_CHECKING:
    from sampleforge.run.reports.worker_states import RunState


class Screen(Callback):
    """Shows a live panel on a terminal and one line per report elsewhere; with --quiet only alerts
    and results. The command itself prints the traceback of an error that ends a run."""

    def __init__(self) -> None:
        self._display: QuietDisplay | None = None
        self._is_starting = True
        self._starting: RunState | None = None
        """The state that was shown last before the first report."""
        self._told: set[str] = set()
        """The streams that were lost, and said to be."""

    def on_message(self, session: Session, message: Message) -> None:
        if message.level == "alert":
            print(message.text, file=sys.stderr)
        elif message.level not in ("debug", "error"):
            self._opened(session).message(message.text, message.level)

    def on_poll(self, session: Session) -> None:
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            if isinstance(stream, LastingStream) and stream.lost and name not in self._told:
                self._told.add(name)
                session.alert(
                    f"{name} cannot be written to any more ({stream.lost.strerror}): the run goes "
                    f"on, and {session.folder.log_file.name} has what it says"
                )
        state = session.worker_states.state
        if self._is_starting and state.workers and state is not self._starting:
            self._starting = state
            progress = session.graph.progress
            values = {"env_steps": float(progress.env_steps), "wall_s": progress.wall_s}
            self._opened(session).starting(values, state)

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        self._is_starting = False
        self._opened(session).update(report, session.worker_states.state)

    def on_end(self, session: Session, summary: Mapping[str, Any]) -> None:
        if summary["status"] != "failed":
            folder, status = session.folder.path, summary["status"]
            session.message(end_line(status, summary, folder), "result")
            if session.checkpoints.writes:
                for line in next_commands(session.asked, folder, status):
                    session.message(line)
        self.close()

    def close(self) -> None:
        """Restore the terminal."""
        if self._display is not None:
            self._display.close()

    def _opened(self, session: Session) -> QuietDisplay:
        if self._display is None:
            config = session.config
            goal = Goal(config.train_for_env_steps, config.train_for_seconds)
            self._display = open_display(session.folder.path.name, goal, config.quiet)
        return self._display
