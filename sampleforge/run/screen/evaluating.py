"""The bar that a command shows while it works, and the display of commands that play episodes. It
writes to stderr, because the last line of stdout is the result."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from sampleforge.run.screen.progress import duration, number
from sampleforge.run.screen.screen import STYLES


def progress_bar(console: Console, *, refreshes: bool = True) -> Progress:
    """Return a bar with the time that has passed and the description of its task, which goes when
    it is stopped; on anything but a terminal it shows nothing. ``refreshes``: whether a thread
    draws it anew, so that its time goes on by itself."""
    return Progress(
        BarColumn(32),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        auto_refresh=refreshes,
        disable=console.quiet or not console.is_terminal or console.is_dumb_terminal,
    )


EVERY_S = 10.0
"""Seconds between lines if stderr is not a terminal; short evaluations print none."""
DRAW_S = 0.2
"""Seconds between two updates of the bar."""


class EvaluationDisplay:
    """Shows a progress bar on a terminal and a line every `EVERY_S` elsewhere; nothing with
    ``quiet``."""

    def __init__(
        self,
        *,
        quiet: bool,
        console: Console | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._clock = clock
        self._started = clock()
        self._bar = progress_bar(self._console, refreshes=False)
        self._task = self._bar.add_task("evaluating", total=None)
        if not quiet:
            self._bar.start()
        self._next = self._started + (EVERY_S if self._bar.disable else DRAW_S)

    def message(self, text: str, level: str) -> None:
        if not self._quiet:
            self._console.print(Text(text, STYLES.get(level, "")), soft_wrap=True)

    def progress(self, done: int, total: int, return_mean: float | None) -> None:
        """Show how many of the episodes have been played, if an update is due."""
        now = self._clock()
        if self._quiet or now < self._next:
            return
        reached = "" if return_mean is None else f", mean return {number(return_mean, ',.2f')}"
        if not self._bar.disable:
            self._next = now + DRAW_S
            text = f"evaluating {done}/{total}{reached}"
            self._bar.update(self._task, completed=done, total=total, description=text)
            self._bar.refresh()
            return
        self._next = now + EVERY_S
        spent = duration(now - self._started)
        self.message(f"evaluating: {done} of {total} episodes{reached}, {spent}", "info")

    def __enter__(self) -> EvaluationDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
