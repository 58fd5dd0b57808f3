"""The bar that a command shows on a terminal while it works."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


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
