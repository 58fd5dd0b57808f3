"""Scalars and histograms for TensorBoard.

tensorboardX's own SummaryWriter hands events to a thread through a queue of bounded size: when the
disk is full the thread dies and the next scalar waits for ever. So its event file is written here
directly, and a full disk is an error where it happens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sampleforge.replay.histograms import Histogram
from sampleforge.reporting.tags import tag


class EventFile:
    """One TensorBoard event file in ``folder``. Imports tensorboardX, and with it torch (2 s)."""

    def __init__(self, folder: Path, first_step: int) -> None:
        """``first_step``: points of earlier files from there on are dropped by TensorBoard, because
        this run does those steps again."""
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
        for name, found in histograms.items():
            lows = np.concatenate(([found.low], found.limits[:-1]))
            middles = (lows + found.limits) / 2
            values = histogram_raw(
                tag(name, policies),
                min=found.low,
                max=float(found.limits[-1]),
                num=float(found.counts.sum()),
                sum=float(found.counts @ middles),
                sum_squares=float(found.counts @ middles**2),
                bucket_limits=found.limits.tolist(),
                bucket_counts=found.counts.tolist(),
            )
            event.summary.value.extend(values.value)
        self._write(event)

    def _write(self, event: Any) -> None:
        try:
            self._writer.write_event(event)
            self._writer.flush()
        except OSError as error:
            raise OSError(
                error.errno, f"{error.strerror}: cannot write TensorBoard events", str(self._folder)
            ) from error

    def close(self) -> None:
        self._writer.close()
