"""The writer of a run's metrics.jsonl, TensorBoard events and log.txt."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from sampleforge.run.callback import Callback, Level, Message
from sampleforge.run.folder.files import LineFile, writing
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.reports.metrics import drop_reports_after, evaluations, tag
from sampleforge.runtime.files import to_json

if TYPE_CHECKING:
    from sampleforge.replay.histograms import Histogram
    from sampleforge.run.reports.episodes import EpisodesFile
    from sampleforge.run.session import Session
    from sampleforge.shared.records import EpisodeRecord


class EventFile:
    """One TensorBoard event file in ``folder``. Making one imports tensorboardX and torch (2 s)."""

    def __init__(self, folder: Path, first_step: int) -> None:
        """Create the file. From env step ``first_step`` on TensorBoard drops the points of earlier
        files, because the resumed run does these steps again."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._events: Any = event_pb2
        self._writer = EventsWriter(str(folder / "events"), f".{os.getpid()}")
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(event_pb2.Event(step=first_step, wall_time=time.time(), session_log=start))

    def write(self, scalars: Mapping[str, float], step: int, policies: Sequence[str] = ()) -> None:
        """Add one value per metric, under its `tag`, at ``step``. ``policies``: see `tag`. Raises
        OSError that names the folder."""
        event = self._events.Event(step=step, wall_time=time.time())
        for name, value in scalars.items():
            event.summary.value.add(tag=tag(name, policies), simple_value=value)
        self._write(event)

    def write_histograms(
        self, histograms: Mapping[str, Histogram], step: int, policies: Sequence[str] = ()
    ) -> None:
        """Add one histogram per name at ``step``. ``policies``: see `tag`. Raises OSError that
        names the folder."""
        from tensorboardX.summary import histogram_raw

        event = self._events.Event(step=step, wall_time=time.time())
        for name, histogram in histograms.items():
            lows = np.concatenate(([histogram.low], histogram.limits[:-1]))
            middles = (lows + histogram.limits) / 2
            values = histogram_raw(
                tag(name, policies),
                min=histogram.low,
                max=float(histogram.limits[-1]),
                num=float(histogram.counts.sum()),
                sum=float(histogram.counts @ middles),
                sum_squares=float(histogram.counts @ middles**2),
                bucket_limits=histogram.limits.tolist(),
                bucket_counts=histogram.counts.tolist(),
            )
            event.summary.value.extend(values.value)
        self._write(event)

    def _write(self, event: Any) -> None:
        with writing(self._folder):
            self._writer.write_event(event)
            self._writer.flush()

    def close(self) -> None:
        """Close the file. Raises OSError if the disk is full; the file is closed all the same."""
        try:
            self._writer.close()
        except OSError:
            with suppress(OSError):
                self._writer._py_recordio_writer.close()
            raise


class Reporter:
    """Writes the scalars and the messages of a run into its folder; starts no thread.

    A resumed run appends to the files of its earlier parts, without the reports of later env steps
    than ``first_step``, at which it begins: it does these steps again. Raises OSError, which names
    the file, if one cannot be opened.
    """

    def __init__(self, folder: RunFolder, first_step: int | None = None) -> None:
        self._folder, self._first_step = folder, first_step
        # TensorBoard hides earlier points from this env step on.
        self._first_event = None if first_step is None else first_step + 1
        self._metrics: LineFile | None = None
        self._log: LineFile | None = LineFile(folder.log_file)
        self._events: EventFile | None = None
        self._writes_events = True

    def report(
        self,
        scalars: Mapping[str, float],
        *,
        env_steps: int,
        wall_s: float,
        histograms: Mapping[str, Histogram] = MappingProxyType({}),
        policies: Sequence[str] = (),
    ) -> str | None:
        """Write one report at ``env_steps`` and ``wall_s`` (seconds of training). ``policies``: the
        beginning of the names of each policy's metrics, in a run with several.

        Values that are not finite become null in metrics.jsonl. Histograms are written for
        TensorBoard only, which shows evaluations at the env steps at which their weights were
        copied. Raises OSError, which names the file, if metrics.jsonl cannot be written. If
        TensorBoard's file cannot, nothing more is written to it, and a warning for the user is
        returned, once: metrics.jsonl has every report.
        """
        position = {"env_steps": env_steps, "wall_s": wall_s}
        values = {**position, **scalars, **position}
        if self._metrics is None:
            if self._first_step is not None:
                drop_reports_after(self._folder.metrics_file, self._first_step)
            self._metrics = LineFile(self._folder.metrics_file)
        self._metrics.write(to_json(values))
        if not self._writes_events:
            return None
        try:
            self._write_events(values, env_steps, histograms, policies)
        except OSError as error:
            self._writes_events = False
            self._close_events()
            why = os.strerror(error.errno) if error.errno else str(error)
            return (
                f"TensorBoard gets nothing more from this run, because {self._folder.tensorboard} "
                f"cannot be written: {why}. The run goes on; "
                f"{self._folder.metrics_file.name} has every report, and `sampleforge plot` and "
                "`sampleforge serve` show it"
            )
        return None

    def _write_events(
        self,
        values: Mapping[str, float],
        env_steps: int,
        histograms: Mapping[str, Histogram],
        policies: Sequence[str],
    ) -> None:
        """Write a report for TensorBoard. Raises OSError."""
        if self._events is None:
            self._events = EventFile(self._folder.tensorboard, self._first_event or env_steps)
        results = evaluations(values)
        evaluated = {name for result in results.values() for name in result}
        now = {name: value for name, value in values.items() if name not in evaluated}
        self._events.write(now, env_steps, policies)
        for prefix, result in results.items():
            self._events.write(result, int(result[f"{prefix}eval_env_steps"]), policies)
        if histograms:
            self._events.write_histograms(histograms, env_steps, policies)

    def _close_events(self) -> None:
        """Close TensorBoard's file. What it still holds cannot be written if the disk is full."""
        if self._events is not None:
            with contextlib.suppress(OSError):
                self._events.close()
            self._events = None

    def log(self, text: str, level: Level = "info", source: str = "session") -> None:
        """Write a message of process ``source`` to log.txt. Raises OSError, which names the file,
        the first time that log.txt cannot be written; later messages are dropped."""
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
        """Close all files, even if closing one of them fails."""
        with contextlib.ExitStack() as stack:
            if self._metrics is not None:
                stack.callback(self._metrics.close)
            if self._log is not None:
                stack.callback(self._log.close)
            stack.callback(self._close_events)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RunFiles(Callback):
    """Writes metrics.jsonl, episodes.csv, TensorBoard events and log.txt. Every session has one.
    What is said before `begin` is written then."""

    def __init__(self) -> None:
        self._reporter: Reporter | None = None
        self._episodes: EpisodesFile | None = None
        self._waiting: list[Message] = []

    def begin(self, session: Session, resources: ExitStack) -> None:
        """Open the files of a wired session; ``resources`` closes them. Raises OSError if they
        cannot be opened."""
        env_steps = session.resume_point.env_steps
        self._reporter = Reporter(session.folder, env_steps)
        resources.callback(self._reporter.close)
        if not session.config.benchmark:
            from sampleforge.run.reports.episodes import EpisodesFile

            self._episodes = EpisodesFile(session.folder.episodes_file, session, env_steps)
            resources.callback(self._episodes.close)
        for message in self._waiting:
            self._log(self._reporter, message)
        self._waiting.clear()

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        assert self._reporter is not None, "begin() comes first"
        graph = session.graph
        session.folder.check_there()
        warning = self._reporter.report(
            report,
            env_steps=int(report["env_steps"]),
            wall_s=report["wall_s"],
            histograms=session.graph.histograms(),
            policies=[prefix for prefix in map(graph.prefix, graph.groups) if prefix],
        )
        if warning is not None:
            session.message(warning, "warning")

    def on_message(self, session: Session, message: Message) -> None:
        if self._reporter is None:
            self._waiting.append(message)
        else:
            self._log(self._reporter, message)

    def take_stats(self, number: int, stats: Mapping[str, float]) -> None:
        """Take what is reported of the episode whose record has ``number``, by name."""
        if self._episodes is not None:
            self._episodes.take_stats(number, stats)

    def take_episodes(self, session: Session, records: Sequence[EpisodeRecord]) -> None:
        """Take finished episodes, before the session's statistics count them."""
        if (episodes := self._episodes) is not None:
            before = session.statistics.episodes
            self._try_episodes(session, lambda: episodes.take(records, before))

    def on_end(self, session: Session, summary: Mapping[str, Any]) -> None:
        if (episodes := self._episodes) is not None:
            self._try_episodes(session, episodes.flush)
            episodes.close()

    def _try_episodes(self, session: Session, write: Callable[[], None]) -> None:
        """Have episodes.csv written. If it cannot be, nothing more is written to it, and the user
        is warned."""
        try:
            write()
        except OSError as error:
            assert self._episodes is not None
            self._episodes.close()
            self._episodes = None
            session.message(
                f"{session.folder.episodes_file.name} gets nothing more from this run, because it "
                f"cannot be written: {os.strerror(error.errno or 0)}. The run goes on; "
                f"{session.folder.metrics_file.name} has every report",
                "warning",
            )

    @staticmethod
    def _log(reporter: Reporter, message: Message) -> None:
        level = "warning" if message.level == "alert" else message.level
        reporter.log(message.text, level, message.source)
