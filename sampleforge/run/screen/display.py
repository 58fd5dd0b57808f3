"""The displays that show a run on the screen while it trains."""

from __future__ import annotations

from math import isfinite

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sampleforge.run.reports.evaluated import evaluations
from sampleforge.run.reports.policy_values import with_overall
from sampleforge.run.reports.worker_states import RunState
from sampleforge.run.screen.live_panel import LivePanel
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

    def update(self, values: Values, state: RunState | None = None) -> None:
        """Show a report, and the ``state`` of the workers, if it is known."""

    def starting(self, values: Values, state: RunState) -> None:
        """Show the ``state`` of the workers before the first report, on a live panel; ``values``:
        env_steps and wall_s so far."""

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
        self._known = LastKnown()
        self._env_restarts = 0.0
        self._env_steps = -1.0

    def update(self, values: Values, state: RunState | None = None) -> None:
        self._goal.observe(values)
        evaluated = evaluations(values)  # of this report, not the last one that is known
        values = with_overall({**self._known.last(values), **values})
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
        self._known = LastKnown()
        self._began: tuple[float, float] | None = None

    def update(self, values: Values, state: RunState | None = None) -> None:
        self._goal.observe(values)
        self._began = self._began or (values["wall_s"], values["env_steps"])
        self._show({**self._known.last(values), **self._average(values), **values}, state)

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
        from sampleforge.run.screen.notebook_display import NotebookDisplay, text_console

        if not quiet:
            return NotebookDisplay(goal, title)
        console, errors = text_console(), text_console(stderr=True)
    if quiet:
        return QuietDisplay(console, errors)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(console, errors, goal, title)
    return LineDisplay(console, errors, goal)
