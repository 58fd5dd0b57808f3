"""The callback that shows a run on the screen, and its displays: a live panel on a terminal and in
a notebook, lines elsewhere."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sampleforge.run.callback import Callback, Message
from sampleforge.run.reports.metrics import evaluations, with_overall
from sampleforge.run.screen.live_panel import LivePanel
from sampleforge.run.screen.messages import end_line, next_commands
from sampleforge.run.screen.progress import (
    Goal,
    Values,
    duration,
    env_restarts,
    evaluation,
    has_replay,
    mean_return,
    number,
    reads_data,
    short,
)
from sampleforge.run.session import Session
from sampleforge.runtime.streams import LastingStream

if TYPE_CHECKING:
    from sampleforge.run.reports.workers import RunState

STYLES = {"warning": "yellow", "error": "bold red", "result": "bold"}


class QuietDisplay:
    """Shows errors and results only; the base of the other displays."""

    def __init__(self, console: Console, errors: Console) -> None:
        self._console = console
        self._errors = errors
        self._known: dict[str, float] = {}

    def update(self, values: Values, state: RunState | None = None) -> None:
        """Show a report, and the ``state`` of the workers, if it is known."""

    def starting(self, values: Values, state: RunState) -> None:
        """Show the ``state`` of the workers before the first report, on a live panel; ``values``:
        env_steps and wall_s so far."""

    def message(self, text: str, level: str) -> None:
        """Show a message."""
        if level in ("error", "result"):
            self._print(text, level)

    def _completed(self, values: Values) -> Values:
        """Return a report with the last known value of each metric that it lacks: one between two
        updates has no losses."""
        completed = {**self._known, **values}
        self._known |= {name: value for name, value in values.items() if isfinite(value)}
        return completed

    def _print(self, text: str, level: str) -> None:
        console = self._errors if level == "error" else self._console
        console.print(Text(text, STYLES.get(level, "")), soft_wrap=True)

    def close(self) -> None:
        """Restore the terminal."""


class LineDisplay(QuietDisplay):
    """Shows one aligned line per report and one line per evaluation, with a header every
    `HEADER_EVERY` lines: for files and pipes. Runs with a replay show how full it is, runs
    on recorded data the passes over them, all others the policy lag. A report of an evaluation
    after which no env step was taken, such as that of the last weights, has no line of its own."""

    COLUMNS = (
        ("time", 7),
        ("env steps", 13),
        ("frames/s", 9),
        ("trained/s", 10),
        ("return", 10),
        ("length", 8),
        ("lag", 6),
        ("updates", 10),
        ("loss", 10),
        ("left", 8),
    )
    HEADER_EVERY = 20

    def __init__(self, console: Console, errors: Console, goal: Goal) -> None:
        super().__init__(console, errors)
        self._goal = goal
        self._lines = 0
        self._env_restarts = 0.0
        self._env_steps = -1.0

    def update(self, values: Values, state: RunState | None = None) -> None:
        self._goal.observe(values)
        evaluated = evaluations(values)  # of this report, not the last one that is known
        values = with_overall(self._completed(values))
        if not evaluated or values["env_steps"] > self._env_steps:
            self._training(values)
        self._env_steps = values["env_steps"]
        if values.get("env_restarts", 0.0) > self._env_restarts:
            self._env_restarts = values["env_restarts"]
            self._print(env_restarts(values), "warning")
        for prefix, result in evaluated.items():
            own = {name.removeprefix(prefix): value for name, value in result.items()}
            policy = f" {prefix.removesuffix('/')}" if prefix else ""
            self._print(f"evaluated{policy}: {evaluation(own)}", "info")

    def _training(self, values: Values) -> None:
        """Print the line of a report, under a header where it is due."""
        if self._lines % self.HEADER_EVERY == 0:
            names = [name for name, _ in self.COLUMNS]
            if has_replay(values):
                names[names.index("lag")] = "fill"
            elif reads_data(values):
                names[names.index("lag")] = "passes"
            self._line(names)
        self._lines += 1
        self._line(
            [
                duration(values["wall_s"]),
                number(values["env_steps"]),
                short(values.get("frames_per_s_10s", values.get("frames_per_s"))),
                short(values.get("trained_per_s")),
                mean_return(values),
                number(values.get("length_mean"), ",.1f"),
                _use(values),
                number(values.get("updates")),
                number(values.get("loss"), ".4g"),
                duration(self._goal.seconds_left()),
            ]
        )

    def _line(self, cells: list[str]) -> None:
        widths = [width for _, width in self.COLUMNS]
        text = " ".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))
        self._print(text, "info")

    def message(self, text: str, level: str) -> None:
        self._print(text, level)


def _use(values: Values) -> str:
    """Return how the experience is used: the fill of the replay, passes over the data, or the
    policy lag."""
    if has_replay(values):
        return number(values["replay_fill"], ".0%")
    name = "data_passes" if reads_data(values) else "policy_lag_mean"
    return number(values.get(name), ".1f")


class LiveDisplay(QuietDisplay):
    """Shows a panel that stays at the bottom of a terminal; messages scroll by above it.

    The panel is redrawn by `update` and `starting`; there is no refreshing thread. The cursor
    stays visible, so that a killed run leaves the terminal usable.
    """

    def __init__(self, console: Console, errors: Console, goal: Goal, title: str) -> None:
        super().__init__(console, errors)
        self._goal = goal
        self._title = title
        self._live = Live(console=console, auto_refresh=False)
        self._began: tuple[float, float] | None = None

    def update(self, values: Values, state: RunState | None = None) -> None:
        self._goal.observe(values)
        self._began = self._began or (values["wall_s"], values["env_steps"])
        self._show({**self._completed(values), **self._average(values)}, state)

    def starting(self, values: Values, state: RunState) -> None:
        self._goal.observe(values)
        self._show(values, state)

    def _show(self, values: Values, state: RunState | None) -> None:
        self._draw(LivePanel(self._title, values, self._goal, state))

    def _draw(self, panel: LivePanel) -> None:
        if not self._live.is_started:
            self._live.start()
            self._console.show_cursor(True)
        self._live.update(panel, refresh=True)

    def _average(self, values: Values) -> Values:
        """Return the mean number of env steps per second since the first report."""
        assert self._began is not None
        seconds, steps = values["wall_s"] - self._began[0], values["env_steps"] - self._began[1]
        return {"env_steps_average": steps / seconds} if seconds > 0 else {}

    def message(self, text: str, level: str) -> None:
        if level == "result":  # the last line stands below the panel
            self.close()
        self._console.print(Text(text, STYLES.get(level, "")), soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


def open_display(
    title: str, goal: Goal, quiet: bool, console: Console | None = None
) -> QuietDisplay:
    """Return the display that suits ``console`` (None: stdout): a live panel on a terminal and in a
    notebook, lines in a file or pipe, and errors and results only if ``quiet``."""
    errors = console or Console(stderr=True)
    console = console or Console()
    if console.is_jupyter:
        if not quiet:
            return NotebookDisplay(goal, title)
        console, errors = text_console(), text_console(stderr=True)
    if quiet:
        return QuietDisplay(console, errors)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(console, errors, goal, title)
    return LineDisplay(console, errors, goal)


WIDTH = 88
"""Columns of the panel; the output of a cell has no width of its own."""
HEIGHT = 60
"""Lines of the panel: the output of a cell has room for a row per worker."""
HTML = (
    "<pre style=\"font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace;"
    'line-height:1.25;white-space:pre;overflow-x:auto">{code}</pre>'
)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    return "IPython" in sys.modules and Console().is_jupyter


def text_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text into the output of a cell: long lines are wrapped there,
    which those of rich's own console are not."""
    return Console(stderr=stderr, force_jupyter=False, force_terminal=True, color_system="standard")


class NotebookDisplay(LiveDisplay):
    """Shows the panel in the output of the cell that runs, and the messages below it.

    Each cell has a panel of its own, which stays in the notebook as the last report left it; it is
    plain HTML, so that it is also there when the notebook is opened again, or converted.
    """

    def __init__(self, goal: Goal, title: str) -> None:
        super().__init__(text_console(), text_console(stderr=True), goal, title)
        self._ipython: Any = importlib.import_module("IPython")
        self._shown: Any = None
        self._cell: int | None = None

    def _draw(self, panel: LivePanel) -> None:
        data = as_html_and_text(panel)
        cell = self._ipython.get_ipython().execution_count
        if self._shown is None or cell != self._cell:
            self._cell = cell
            self._shown = self._ipython.display.display(data, raw=True, display_id=True)
        else:
            self._shown.update(data, raw=True)

    def close(self) -> None:
        """Leave the panels as they are."""


def as_html_and_text(panel: LivePanel) -> dict[str, str]:
    """Return a panel as HTML and as plain text, by MIME type."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        height=HEIGHT,
        force_terminal=True,
        force_jupyter=False,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(panel)
    return {
        "text/html": console.export_html(inline_styles=True, code_format=HTML, clear=False),
        "text/plain": console.export_text(),
    }


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
                has = session.folder.has_checkpoint
                for line in next_commands(session.asked, folder, summary, has_checkpoint=has):
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
