"""TensorBoard event files with scalars and histograms.

The SummaryWriter of tensorboardX hands events to a thread through a queue of bounded size: when the
disk is full, the thread dies and the next scalar waits for ever. So this module writes the event
file directly, and a full disk raises an error in the call that needs the space, after which a run
goes on without the file (`sampleforge.run.reports.reporter`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from sampleforge.replay.histograms import Histogram
from sampleforge.run.folder.atomic_file import writing
from sampleforge.run.reports.tags import tag


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
