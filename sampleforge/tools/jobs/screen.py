"""What the commands that run jobs show meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

DRAW_S = 0.5
"""Seconds between two updates of the table."""
FILE_WIDTH = 160
"""Characters in a line of a table that is not printed to a terminal."""


class JobsScreen:
    """Shows a table on a terminal, and elsewhere one line per event. ``table`` makes the table;
    ``lines`` returns what has happened since its last call."""

    def __init__(self, table: Callable[[], RenderableType], lines: Callable[[], list[str]]) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console: Console = Console(highlight=False)
        if not self.console.is_terminal:  # a table in a file may be wide
            self.console.width = FILE_WIDTH
        self._table, self._lines = table, lines
        self._live = None
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        self._next = 0.0

    def update(self) -> None:
        """Show what is new."""
        for line in self._lines():
            self.say(line)
        if self._live is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + DRAW_S
            self._live.update(self._table(), refresh=True)

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the table that changes."""
        if self._live is not None:
            self._live.stop()
            self._live = None
