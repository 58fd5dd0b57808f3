"""When a checkpoint is due, and writing it: the replay first, if it is kept, then the learner with
what names it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from sampleforge.folder.replays import Log, Replays
from sampleforge.replay.snapshot import ReplayArchive


class CheckpointNotWritten(OSError):
    """A checkpoint, or the replay of one, could not be written; the text says what is left."""


FIRST_CHECKPOINT_S = 30.0
"""Seconds after which the first checkpoint is written, if something has been learned."""


class CheckpointTimer:
    """Says when a checkpoint is due: every ``interval`` seconds, and the first one earlier, so that
    a run which is killed soon after its start has something to go on from."""

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
        now = self._clock()
        if now >= self._next:
            return True
        return self._early is not None and now >= self._early and self._has_learned()

    def restart(self) -> None:
        """Count the interval from now on: a checkpoint is being written."""
        self._early = None
        self._next = self._clock() + self._interval


Ask = Callable[[str, Any, float], Any]


class Saving:
    """The checkpoints that a run writes. ``archive``: where its replay is saved, None: nowhere;
    ``milestones``: env steps between checkpoints kept for good; ``env_steps``: so far."""

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
    ) -> int:
        """Have everything saved; returns the env steps of the checkpoint.

        ``ask`` gets the learner's answer, ``wait`` lets the workers go on for a moment, ``state``
        returns the session's own part, and ``log`` is told of what takes long. Raises
        CheckpointNotWritten if something cannot be saved: the checkpoint before stays, and if it
        was the replay, there is a new checkpoint with the replay before.
        """
        replay, replay_problem = self._replays.save(self._archive, self._env_steps, wait, log)
        env_steps = self._env_steps()
        milestone = self._is_milestone(env_steps)
        about = {**state(), "env_steps": env_steps, "milestone": milestone, "replay": replay}
        problem = ask("save", about, timeout)
        if problem is not None:
            raise CheckpointNotWritten(self._replays.explain_checkpoint(problem))
        self._replays.prune(replay)
        if replay_problem is not None:
            raise CheckpointNotWritten(replay_problem)
        return env_steps

    def _is_milestone(self, env_steps: int) -> bool:
        """Whether a milestone lies between the last checkpoint and this one."""
        every, last, self._last_saved = self._milestones, self._last_saved, env_steps
        return every is not None and env_steps // every > last // every
