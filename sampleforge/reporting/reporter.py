"""What a run reports, written in one place: metrics.jsonl, TensorBoard, log.txt, the screen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from sampleforge.folder.atomic_file import to_json
from sampleforge.folder.run_folder import RunFolder
from sampleforge.reporting.evaluated import evaluated
from sampleforge.reporting.line_file import LineFile

if TYPE_CHECKING:
    from rich.console import Console

    from sampleforge.replay.histograms import Histogram
    from sampleforge.reporting.event_file import EventFile

Level = Literal["debug", "info", "warning", "error", "result"]


class Reporter:
    """Takes the scalars and the messages of a run. Lives in the driver; starts no thread.

    On the screen: a live display on a terminal, one line per report elsewhere; with ``quiet`` only
    errors and results. Files of an earlier part of the run are continued.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        quiet: bool,
        total_env_steps: int | None,
        total_seconds: float | None,
        title: str | None = None,
        console: Console | None = None,
    ) -> None:
        from sampleforge.reporting.display import open_display
        from sampleforge.reporting.progress import Goal

        self._folder = folder
        self._metrics = LineFile(folder.metrics_file)
        self._log: LineFile | None = LineFile(folder.log_file)
        self._events: EventFile | None = None
        self._bottleneck: Callable[[], str | None] | None = None
        goal = Goal(total_env_steps, total_seconds)
        self._display = open_display(title or folder.path.name, goal, quiet, console)

    def watch(self, bottleneck: Callable[[], str | None]) -> None:
        """Ask ``bottleneck`` at each report what limits the run, and show it."""
        self._bottleneck = bottleneck

    def report(
        self,
        scalars: Mapping[str, float],
        *,
        env_steps: int,
        wall_s: float,
        histograms: Mapping[str, Histogram] = MappingProxyType({}),
    ) -> None:
        """Write one report. Values that are not finite become null in metrics.jsonl; histograms are
        for TensorBoard alone, which has evaluations at the env steps of their weights.

        Raises OSError, naming the file, if it cannot be written.
        """
        where = {"env_steps": env_steps, "wall_s": wall_s}
        values = {**where, **scalars, **where}
        self._metrics.write(to_json(values))
        if self._events is None:
            from sampleforge.reporting.event_file import EventFile

            self._events = EventFile(self._folder.tensorboard, env_steps)
        found = evaluated(values)
        self._events.write({n: v for n, v in values.items() if n not in found}, env_steps)
        if found:  # at the steps whose weights it was about: it may have taken long
            self._events.write(found, int(found["eval_env_steps"]))
        if histograms:
            self._events.write_histograms(histograms, env_steps)
        self._display.update(values, None if self._bottleneck is None else self._bottleneck())

    def log(
        self, text: str, level: Level = "info", source: str = "driver", *, on_screen: bool = True
    ) -> None:
        """Write a message of process ``source`` to log.txt and, ``on_screen`` and unless it is for
        debugging, to the screen. Raises OSError, naming the file, the first time that log.txt
        cannot be written; from then on messages go to the screen alone."""
        if on_screen and level != "debug":
            self._display.message(text, level)
        if self._log is None:
            return
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            for line in text.splitlines() or [""]:
                self._log.write(f"{stamp} {source:<16} {level:<7} {line}")
        except OSError:
            self._log.close()
            self._log = None
            raise

    def close(self) -> None:
        """Close all files and leave the screen in order, even where one of them fails."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._metrics.close)
            if self._log is not None:
                stack.callback(self._log.close)
            if self._events is not None:
                stack.callback(self._events.close)
            stack.callback(self._display.close)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
