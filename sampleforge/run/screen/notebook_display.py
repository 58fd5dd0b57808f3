"""The display in a notebook: the panel as HTML in the output of the cell that trains."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from sampleforge.run.screen.display import STYLES, LiveDisplay
from sampleforge.run.screen.live_panel import LivePanel
from sampleforge.run.screen.progress import Goal

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

    def message(self, text: str, level: str) -> None:
        self._console.print(Text(text, STYLES.get(level, "")), soft_wrap=True)

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
