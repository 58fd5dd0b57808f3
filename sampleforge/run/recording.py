"""Recordings: the one of a session (its figures in the reports, its end), and those of episodes
that a trained policy plays."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from sampleforge.algorithms.acting import FrozenPolicy
from sampleforge.config import ConfigError
from sampleforge.data.assembler import EpisodeAssembler, RecordedEpisode
from sampleforge.data.dataset import open_dataset
from sampleforge.data.minari_format import Dropped
from sampleforge.data.rollout_queue import RecordedRollout, Rollout
from sampleforge.data.writer import DatasetFormat, DatasetWriter, check_folder, stored_dropped
from sampleforge.env.vector import Array, EnvVector, StepOut
from sampleforge.rollouts.stacks import check_first_stacks
from sampleforge.run.callback import Callback
from sampleforge.runners.base import WorkerDied
from sampleforge.spec import EnvSpec
from sampleforge.topologies.graph import Recording
from sampleforge.workers.actor import END_RECORDING
from sampleforge.workers.episode_player import EpisodePlayer, EpisodePolicy
from sampleforge.workers.recorder import SEGMENT_S

if TYPE_CHECKING:
    from sampleforge.run.session import Session

SEND_S, SEND_INTERRUPTED_S = 10.0, 0.5
"""Seconds that all actors together may take to send their incomplete rollouts, and after an
interrupt."""
FINISH_S, FINISH_INTERRUPTED_S = 120.0, 2.0
"""Seconds that the recorder may take to write what was sampled, and after an interrupt."""


class RecordingReports(Callback):
    """Reports what was recorded, and has the recorder close the dataset before the workers end."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def _figures(self, session: Session) -> dict[str, float]:
        counters, row = session.graph.counters, self._recording.node.counter_row
        recorded = {
            f"recorded_{name}": float(counters.column(f"recorded_{name}")[row])
            for name in ("steps", "episodes", "bytes")
        }
        dropped = self._recording.queue.dropped
        return recorded | {
            "record_dropped_steps": float(dropped.steps),
            "record_dropped_episodes": float(dropped.episodes),
            "record_cut_episodes": float(dropped.cut_episodes),
            "record_lost_episodes": float(dropped.lost_episodes),
        }

    def extend_report(self, session: Session, report: dict[str, float]) -> None:
        report.update(self._figures(session))

    def on_stop(self, session: Session) -> None:
        """Have the actors send what their incomplete rollouts have so far, and wait until the
        recorder has written all that was sampled. If that takes too long after an interrupt, the
        open segment is lost."""
        graph, interrupted = session.graph, session.is_interrupted()
        limit = monotonic() + (SEND_INTERRUPTED_S if interrupted else SEND_S)
        for node in graph.having("actor", "rank"):
            with suppress(TimeoutError, WorkerDied):
                left = max(0.0, limit - monotonic())
                session.runner.ask(node, END_RECORDING, None, left, alone=True)
        with suppress(TimeoutError, WorkerDied):
            left = FINISH_INTERRUPTED_S if interrupted else FINISH_S
            session.runner.ask(self._recording.node, "finish", None, left, alone=True)

    def extend_summary(self, session: Session, summary: dict[str, Any]) -> None:
        """The workers have ended, so that what the recorder has not written is lost."""
        queue = self._recording.queue
        queue.settle()
        if any(queue.dropped):
            session.alert(f"The recording lacks {queue.dropped}")
        summary.update({name: int(value) for name, value in self._figures(session).items()})


UNFINISHED_BYTES = 1 << 30
"""Memory for unfinished episodes; above it the largest one is written as a part."""


class PlayRecorder:
    """Writes the episodes that an `EpisodePlayer` counts into the dataset in ``folder``, an
    absolute path. ``algorithm`` and ``squashed``: see `DatasetFormat`. ``written``: numbers of
    episodes and env steps, when it has finished."""

    def __init__(self, folder: Path, algorithm: str, *, squashed: bool) -> None:
        self._folder = folder
        self._algorithm = algorithm
        self._squashed = squashed
        self.written = {"episodes": 0, "steps": 0}

    @property
    def stored(self) -> int:
        """Number of episodes that the dataset has already; 0 if it cannot be read."""
        with suppress(ConfigError):
            if self._folder.exists():
                return open_dataset(self._folder).num_episodes
        return 0

    def follow(
        self,
        player: EpisodePlayer,
        policy: EpisodePolicy,
        envs: EnvVector,
        state: Mapping[str, Any],
    ) -> None:
        """Record what ``player`` plays on ``envs`` from now on. ``state``: the plain values
        of the checkpoint that the ``policy`` is from. Raises ConfigError if that cannot be
        recorded, or not there."""
        spec = envs.spec
        if spec.num_seats > 1:
            raise ConfigError(
                f"{spec.env_id} has {spec.num_seats} agents, and `sampleforge record` takes "
                "environments with one; record the training instead (--record)"
            )
        check_folder(self._folder, spec, self._squashed)
        dropped = stored_dropped(self._folder)
        form = DatasetFormat(spec, self._algorithm, squashed=self._squashed, dropped=dropped)
        self._writer = DatasetWriter(self._folder, form)
        self._writer.goes_on = True  # until the end: if this is killed, the dataset says so
        self._writer.close_segment()  # it has none
        self._assembler = EpisodeAssembler(spec, UNFINISHED_BYTES)
        self._player = player
        self._ended = [0] * player.num_rows  # episodes written to their ends
        self._policy = policy if isinstance(policy, FrozenPolicy) else None
        self._version = int(state.get("learner", {}).get("version", 0))
        self._spec = spec
        self._step = 0
        player.listener = self

    def acting(self, out: StepOut, actions: Mapping[str, Array]) -> None:
        for name, leaf in self._spec.observations.items():
            if leaf.stack is not None:
                check_first_stacks(name, leaf, out.obs[name], out.first)
        self._before = {
            "first": out.first.copy(),
            **{f"obs/{name}": column.copy() for name, column in _frames(self._spec, out.obs)},
        }
        self._columns = {f"action/{name}": column[None] for name, column in actions.items()}
        self._columns["version"] = np.full((1, len(out.first)), self._version, np.int64)
        if self._policy is not None:
            self._columns |= {name: column[None] for name, column in self._policy.columns.items()}

    def stepped(self, out: StepOut) -> None:
        after = {
            "first": out.first,
            **{f"obs/{n}": leaf for n, leaf in _frames(self._spec, out.obs)},
        }
        columns = {name: np.stack((self._before[name], after[name])) for name in after}
        for name in ("reward", "terminated", "truncated", "valid"):
            columns[name] = getattr(out, name)[None]
        if out.final_obs is not None:
            frames = _frames(self._spec, out.final_obs)
            columns |= {f"recorded/{name}": leaf[None] for name, leaf in frames}
        about = Rollout(0, 0, 0, self._step, 0, 1)
        self._step += 1
        for episode in self._assembler.add(RecordedRollout(0, about, {**columns, **self._columns})):
            if episode.ends or out.valid[episode.env_row.row]:  # else it broke down: not counted
                self._write(episode)

    def break_off(self) -> None:
        """Close the dataset with the episodes that have ended so far; the others are lost, and so
        are those of the open segment if it cannot be written."""
        writer = self._writer
        left = self._player.episodes - self._player.num_played  # a row may play one that is not
        lost = Dropped(lost_episodes=min(left, self._assembler.unfinished), breaks=1)
        writer.dropped, writer.goes_on = lost, False
        with suppress(OSError):
            writer.close_segment()
        if writer.in_segment:
            writer.dropped = lost.plus(Dropped(lost_episodes=writer.in_segment))
            writer.abandon()
        with suppress(OSError):
            writer.close_segment()  # without episodes: it writes what the metadata lack
        writer.release()

    def finish(self) -> None:
        """Close the dataset. An episode that the player has cut is written without an end."""
        for episode in self._assembler.flush():
            if self._player.limit is not None and len(episode) >= self._player.limit:
                self._write(episode)
        self._writer.goes_on = False
        self._writer.close_segment()
        self._writer.release()
        self.written = {"episodes": self._writer.episodes, "steps": self._writer.steps}

    def _write(self, episode: RecordedEpisode) -> None:
        row = episode.env_row.row
        if self._ended[row] < self._player.quota[row]:
            self._writer.add(episode)
            self._ended[row] += episode.ends
        if self._writer.age > SEGMENT_S:
            self._writer.close_segment()


def _frames(spec: EnvSpec, obs: Mapping[str, Array]) -> list[tuple[str, Array]]:
    """Return the observation leaves [rows, ...], of stacks the newest frames."""
    leaves = spec.observations.items()
    return [(name, obs[name][:, -1] if leaf.stack else obs[name]) for name, leaf in leaves]
