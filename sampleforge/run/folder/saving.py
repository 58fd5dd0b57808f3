"""The timer of checkpoints, and their saving: first the replay, then the learner's state, which
names the replay."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from sampleforge.replay.snapshot import ReplayArchive
from sampleforge.run.folder.replays import Log, Replays


class CheckpointNotWritten(OSError):
    """A checkpoint or its replay could not be written; the message says what has been saved."""


FIRST_CHECKPOINT_S = 30.0
"""Seconds after which the first checkpoint is written, if there was an update by then."""


class CheckpointTimer:
    """Tells when a checkpoint is due: every ``interval`` seconds, and the first one earlier, so
    that a run that is killed soon after its start can be resumed."""

    def __init__(
        self,
        interval: float,
        has_learned: Callable[[], bool],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._interval = interval
        self._has_learned = has_learned
        self._clock = clock
        self._early: float | None = clock() + min(FIRST_CHECKPOINT_S, interval)
        self._next = clock() + interval

    @property
    def due(self) -> bool:
        """Whether a checkpoint is to be written now."""
        now = self._clock()
        if now >= self._next:
            return True
        return self._early is not None and now >= self._early and self._has_learned()

    def restart(self) -> None:
        """Restart the interval, because a checkpoint is being written."""
        self._early = None
        self._next = self._clock() + self._interval


Ask = Callable[[str, Any, float], Any]


class Saving:
    """Writes the checkpoints of a run. ``archive``: saves the replay (None: it is not saved);
    ``milestones``: env steps between checkpoints that are never removed (None: no such
    checkpoints); ``env_steps`` returns the env steps so far."""

    def __init__(
        self,
        replays: Replays,
        archive: ReplayArchive | None,
        milestones: int | None,
        env_steps: Callable[[], int],
    ) -> None:
        self._replays = replays
        self._archive = archive
        self._milestones = milestones
        self._env_steps = env_steps
        self._last_saved = env_steps()

    def save(
        self,
        ask: Ask,
        wait: Callable[[], None],
        state: Callable[[], dict[str, Any]],
        timeout: float,
        log: Log,
        *,
        with_replay: bool = True,
    ) -> int:
        """Write a checkpoint; return its env steps.

        ``ask`` sends a request to the learner and returns the answer, ``wait`` lets the workers run
        for a moment, ``state`` returns the session's part of the checkpoint, and ``log`` gets a
        message about a saved replay. Raises CheckpointNotWritten if something cannot be saved. The
        previous checkpoint is then kept; if only the replay could not be saved, the new checkpoint
        names the previous replay. So does it without ``with_replay``, when no shard can save.
        """
        if with_replay or self._archive is None:
            replay, replay_problem = self._replays.save(self._archive, self._env_steps, wait, log)
        else:
            replay, replay_problem = self._replays.latest, None
        env_steps, milestone = self._env_steps(), self.milestone_passed
        about = {**state(), "env_steps": env_steps, "milestone": milestone, "replay": replay}
        problem = ask("save", about, timeout)
        self._last_saved = env_steps
        if problem is not None:
            raise CheckpointNotWritten(self._replays.explain_checkpoint(problem))
        self._replays.prune(replay)
        if replay_problem is not None:
            raise CheckpointNotWritten(replay_problem)
        return env_steps

    @property
    def milestone_passed(self) -> bool:
        """Whether a milestone lies between the last checkpoint and now."""
        every = self._milestones
        return every is not None and self._env_steps() // every > self._last_saved // every
