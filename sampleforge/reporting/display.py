"""The displays that show a run on the screen while it trains."""

from __future__ import annotations

from math import isfinite

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sampleforge.reporting.evaluated import evaluations
from sampleforge.reporting.live_panel import Panel
from sampleforge.reporting.policy_values import with_overall
from sampleforge.reporting.progress import (
    Goal,
    Values,
    duration,
    env_restarts,
    evaluation,
    has_replay,
    number,
    short,
)

STYLES = {"warning": "yellow", "error": "bold red", "result": "bold"}


class LastKnown:
    """The last known value of each metric, for reports that lack it: a report between two updates
    has no losses."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def last(self, values: Values) -> Values:
        """Return the values that were known before this report, and store the values of this
        one."""
        before = dict(self._values)
        self._values |= {name: value for name, value in values.items() if isfinite(value)}
        return before


class QuietDisplay:
    """Shows errors and results only."""

    def __init__(self, console: Console, errors: Console) -> None:
        self._console = console
        self._errors = errors

    def update(self, values: Values, bottleneck: str | None = None) -> None:
        """Show a report, and the ``bottleneck`` of the run, if it is known."""

    def message(self, text: str, level: str) -> None:
        """Show a message."""
        if level in ("error", "result"):
            self._print(text, level)

    def _print(self, text: str, level: str) -> None:
        console = self._errors if level == "error" else self._console
        console.print(Text(text, STYLES.get(level, "")), soft_wrap=True)

    def close(self) -> None:
        """Restore the terminal."""


class LineDisplay(QuietDisplay):
    """Shows one aligned line per report and one line per evaluation, with a header every
    `HEADER_EVERY` lines: for files and pipes. Runs with a replay show how full it is, all others
    the policy lag."""

    COLUMNS = (
        *(("time", 7), ("env steps", 13), ("frames/s", 9), ("trained/s", 10), ("return", 10)),
        *(("length", 8), ("lag", 6), ("updates", 10), ("loss", 10), ("left", 8)),
    )
    HEADER_EVERY = 20

    def __init__(self, console: Console, errors: Console, goal: Goal) -> None:
        super().__init__(console, errors)
        self._goal = goal
        self._lines = 0
        self._known = LastKnown()
        self._env_restarts = 0.0

    def update(self, values: Values, bottleneck: str | None = None) -> None:
        self._goal.observe(values)
        values = with_overall({**self._known.last(values), **values})
        if self._lines % self.HEADER_EVERY == 0:
            names = [name for name, _ in self.COLUMNS]
            if has_replay(values):
                names[names.index("lag")] = "fill"
            self._line(names)
        self._lines += 1
        self._line(
            [
                duration(values["wall_s"]),
                number(values["env_steps"]),
                short(values.get("frames_per_s_10s", values.get("frames_per_s"))),
                short(values.get("trained_per_s")),
                number(values.get("return_mean"), ",.2f"),
                number(values.get("length_mean"), ",.1f"),
                number(values["replay_fill"], ".0%")
                if has_replay(values)
                else number(values.get("policy_lag_mean"), ".1f"),
                number(values.get("updates")),
                number(values.get("loss"), ".4g"),
                duration(self._goal.seconds_left()),
            ]
        )
        if values.get("env_restarts", 0.0) > self._env_restarts:
            self._env_restarts = values["env_restarts"]
            self._print(env_restarts(values), "warning")
        for prefix, result in evaluations(values).items():
            own = {name.removeprefix(prefix): value for name, value in result.items()}
            policy = f" {prefix.removesuffix('/')}" if prefix else ""
            self._print(f"evaluated{policy}: {evaluation(own)}", "info")

    def _line(self, cells: list[str]) -> None:
        widths = [width for _, width in self.COLUMNS]
        text = " ".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))
        self._print(text, "info")

    def message(self, text: str, level: str) -> None:
        self._print(text, level)


class LiveDisplay(QuietDisplay):
    """Shows a panel that stays at the bottom of a terminal; messages scroll by above it.

    The panel is redrawn by `update`, at each report; there is no refreshing thread. The cursor
    stays visible, so that a killed run leaves the terminal usable.
    """

    def __init__(self, console: Console, errors: Console, goal: Goal, title: str) -> None:
        super().__init__(console, errors)
        self._goal = goal
        self._title = title
        self._live = Live(console=console, auto_refresh=False)
        self._known = LastKnown()
        self._bottleneck: str | None = None
        self._began: tuple[float, float] | None = None

    def update(self, values: Values, bottleneck: str | None = None) -> None:
        self._goal.observe(values)
        self._bottleneck = bottleneck or self._bottleneck
        self._began = self._began or (values["wall_s"], values["env_steps"])
        shown = {**self._known.last(values), **self._average(values), **values}
        if not self._live.is_started:
            self._live.start()
            self._console.show_cursor(True)
        self._live.update(Panel(self._title, shown, self._goal, self._bottleneck), refresh=True)

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
    """Return the display that suits ``console`` (None: stdout): a live panel on a terminal, lines
    in a file or pipe, and errors and results only if ``quiet``."""
    errors = console or Console(stderr=True)
    console = console or Console()
    if quiet:
        return QuietDisplay(console, errors)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(console, errors, goal, title)
    return LineDisplay(console, errors, goal)
