"""The recorder, a worker that writes what the actors sample into a dataset."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sampleforge.data.assembler import EpisodeAssembler, RecordedEpisode
from sampleforge.data.rollout_queue import RolloutQueue
from sampleforge.data.writer import DatasetWriter
from sampleforge.workers.worker import EventDriven, Post

log = logging.getLogger(__name__)

SEGMENT_S = 60.0
"""Seconds after which a segment is closed, however small it is."""
UNFINISHED_BYTES = 256 << 20
"""Memory for unfinished episodes; above it the largest one is written as a part."""


class RecorderWorker(EventDriven):
    """Assembles the rollouts of a `RolloutQueue` to episodes and writes these.

    Recording ends with a warning, and training goes on, when the dataset has ``max_bytes`` or a
    write fails. A killed recorder's successor goes on with the rollouts that are in the queue; the
    open segment and the unfinished episodes are lost, and the dataset says how many there were.
    """

    def __init__(
        self,
        queue: RolloutQueue,
        make_writer: Callable[[], DatasetWriter],
        max_bytes: float,
        post: Post,
    ) -> None:
        super().__init__("recorder", post)
        self._queue = queue
        self._make_writer = make_writer
        self._max_bytes = max_bytes
        self._writer: DatasetWriter | None = None
        self._told = False

    def start(self) -> None:
        super().start()
        self._beat()
        # What earlier lives have written.
        self._before = [float(self._count[name][0]) for name in _COUNTED]
        self._assembler = EpisodeAssembler(self._queue.shape.spec, UNFINISHED_BYTES)
        if not self._queue.ended:
            self._queue.begin()
            self._try(self._open)

    def _open(self) -> None:
        if self._writer is not None:
            self._writer.release()
        self._writer = writer = self._make_writer()
        writer.dropped, writer.goes_on = self._queue.dropped, True
        writer.close_segment()  # it has none; the metadata say that more is to come

    def step(self) -> bool:
        """Take a rollout of each actor."""
        self._beat()
        moved = any([self._take(actor) for actor in self._queue.ready_actors()])
        writer = self._writer
        if writer is not None and writer.age > SEGMENT_S:
            self._try(writer.close_segment)
        self._hold()
        self._publish()
        return moved

    def handle(self, kind: str, payload: Any) -> Any:
        """``finish``: write all that was sent, also unfinished episodes, and close the dataset;
        return when that is done."""
        assert kind == "finish", kind
        self._finish()
        return None

    def close(self) -> None:
        if self._writer is not None:
            self._finish()

    def _take(self, actor: int) -> bool:
        rollout = self._queue.take(actor)
        if rollout is None:
            return False
        if self._writer is not None:
            self._writer.dropped = self._queue.dropped
            for episode in self._assembler.add(rollout):
                self._try(self._write, episode)
        self._queue.done(actor)
        return True

    def _write(self, episode: RecordedEpisode) -> None:
        self._add(episode)
        if self._writer is not None and self._writer.size >= self._max_bytes:
            log.warning(
                "Recording has ended: the dataset has the %.3g GB of --record-max-gb; training "
                "goes on",
                self._max_bytes / 1e9,
            )
            self._end()

    def _add(self, episode: RecordedEpisode) -> None:
        if self._writer is not None:  # recording may have ended with the episode before
            self._writer.add(episode)

    def _finish(self) -> None:
        """Write what was sent so far."""
        while any([self._take(actor) for actor in self._queue.ready_actors()]):
            self._beat()
            self._hold()
        self._end()

    def _end(self) -> None:
        """Write the unfinished episodes, close the dataset, and record nothing more. Were these not
        written, it would not be seen that long episodes are missing."""
        self._queue.end()
        for episode in self._assembler.flush():
            self._try(self._add, episode)
        writer = self._writer
        if writer is not None:
            writer.dropped, writer.goes_on = self._queue.dropped, False
            self._try(writer.close_segment)
            writer.release()
        self._queue.hold(0)
        self._publish()
        self._before = [float(self._count[name][0]) for name in _COUNTED]
        self._writer = None

    def _try(self, act: Callable[..., None], *args: Any) -> None:
        """Do one thing with the dataset, such as write an episode. If it fails, recording ends with
        a warning, and what would be lost if this worker was killed is lost."""
        writer = self._writer
        before = 0 if writer is None else writer.episodes + writer.in_segment
        try:
            act(*args)
        except OSError as error:
            log.warning(
                "Recording has ended, training goes on: the dataset cannot be written: %s", error
            )
            # An episode that was given is in none of these unless it was written.
            after = 0 if writer is None else writer.episodes + writer.in_segment
            unwritten = bool(args) and writer is not None and after == before
            self._queue.lose(self._held() + unwritten)
            self._queue.end()
            self._queue.hold(0)
            self._publish()
            if self._writer is not None:
                self._writer.abandon()
                self._writer.release()
            self._writer = None

    def _hold(self) -> None:
        if self._writer is not None:
            self._queue.hold(self._held())

    def _held(self) -> int:
        """Return the number of episodes that are not in a closed segment."""
        in_segment = 0 if self._writer is None else self._writer.in_segment
        return in_segment + self._assembler.unfinished

    def _publish(self) -> None:
        """Set the counters; say it once if episodes were dropped."""
        writer, count = self._writer, self._count
        if writer is not None:
            written = (writer.steps, writer.episodes, writer.nbytes)
            for name, before, now in zip(_COUNTED, self._before, written, strict=True):
                count[name][0] = before + now
        dropped = self._queue.dropped
        if dropped.steps and not self._told:
            self._told = True
            log.warning(
                "Recording cannot keep up with sampling, so whole episodes are left out, chosen "
                "before they begin: %d so far, %d env steps; record_dropped_episodes and "
                "record_dropped_steps count them. Record to a faster disk, use "
                "--record-compression none or fewer workers",
                dropped.episodes,
                dropped.steps,
            )


_COUNTED = ("recorded_steps", "recorded_episodes", "recorded_bytes")
