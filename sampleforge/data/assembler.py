"""The assembly of episodes out of rollouts, which begin and end anywhere in an episode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.data.rollout_queue import RecordedRollout
from sampleforge.spec import EnvSpec

Array = npt.NDArray[Any]


class EnvRow(NamedTuple):
    """The row of a stream whose episodes follow each other."""

    actor: int
    split: int
    seat: int
    row: int


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode, or a part of one, of T steps, as slots hold it.

    ``observations``: leaf -> [T+1, ...], of stacks the newest frames only. ``steps``: arrays
    [T, ...], ``action/<leaf>``, reward, terminated, truncated, version, parameters, independent,
    and log_prob if the algorithm has it. ``policy`` int64 [T]: index of the policy that acted.
    ``begins``: whether ``observations`` begin with those of a reset; if not, ``frames_before`` has
    the k-1 frames before, leaf -> [k-1, ...], of each stack of k frames. ``number``: count of the
    episodes of ``env_row``, the same for all parts of one. ``shortened``: decorrelation gave the
    episode a shorter limit than the environment has. ``span``: env steps of the whole run when the
    rollouts began in which the episode began, and in which its last step here was taken (None:
    unknown)."""

    env_row: EnvRow
    number: int
    begins: bool
    observations: dict[str, Array]
    steps: dict[str, Array]
    policy: npt.NDArray[np.int64]
    frames_before: dict[str, Array]
    shortened: bool = False
    span: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.policy)

    @property
    def ends(self) -> bool:
        """Whether the last step ended the episode."""
        return bool(self.steps["terminated"][-1] or self.steps["truncated"][-1])

    @property
    def nbytes(self) -> int:
        columns = (*self.observations.values(), *self.steps.values())
        return sum(column.nbytes for column in columns)


@dataclass
class _Open:
    """An episode of which steps are still to come. ``chunks``: column -> arrays of consecutive
    steps; ``last``: the observation after the last step, leaf -> [...]; ``before``: the frames
    before the first observation (empty at the beginning of an episode); ``began`` and ``until``:
    the span, see `RecordedEpisode`, as ``shortened``."""

    number: int
    begins: bool
    before: dict[str, Array]
    last: dict[str, Array]
    chunks: dict[str, list[Array]] = field(default_factory=dict)
    policies: list[tuple[int, int]] = field(default_factory=list)
    steps: int = 0
    nbytes: int = 0
    shortened: bool = False
    began: int = -1
    until: int = -1


class EpisodeAssembler:
    """Collects the steps of each env row until its episode ends.

    Only episodes with their first steps are collected: the rest of an episode that began in a
    rollout that does not admit it, or in which the sampler has dropped a step, is left out. If
    later steps are missing, the episode is cut before them. While the unfinished episodes take more
    than ``limit`` bytes, the largest one is cut, and goes on in another part.
    """

    def __init__(self, spec: EnvSpec, limit: int) -> None:
        self._limit = limit
        self._leaves = tuple(spec.observations)
        self._same_step = spec.autoreset == "same_step"
        self._depths = {n: x.shape[0] - 1 for n, x in spec.observations.items() if x.stack}
        self._padding = {n: spec.observations[n].stack for n in self._depths}
        self._open: dict[EnvRow, _Open] = {}
        self._numbers: dict[EnvRow, int] = {}
        self._rollouts: dict[tuple[int, int, int], int] = {}
        self._nbytes = 0

    def add(self, rollout: RecordedRollout) -> Iterator[RecordedEpisode]:
        """Take the steps of a rollout, whose arrays may change after the last episode was yielded;
        yield the episodes that end with it."""
        about = rollout.about
        stream = rollout.actor, about.split, about.seat
        follows = self._rollouts.get(stream) == about.number - 1
        self._rollouts[stream] = about.number
        for row in range(rollout.columns["first"].shape[1]):
            yield from self._add_row(EnvRow(*stream, row), rollout, follows)
        while self._nbytes > self._limit:
            largest = max(self._open, key=lambda each: self._open[each].nbytes)
            yield self._cut(largest)

    @property
    def unfinished(self) -> int:
        """Number of episodes that are going on, of which there are steps."""
        return sum(episode.steps > 0 for episode in self._open.values())

    def flush(self) -> Iterator[RecordedEpisode]:
        """Yield what there is of the unfinished episodes, as parts that do not end."""
        for env_row in list(self._open):
            if self._open[env_row].steps:
                yield self._cut(env_row)

    def _add_row(
        self, env_row: EnvRow, rollout: RecordedRollout, follows: bool
    ) -> Iterator[RecordedEpisode]:
        """Take the steps of one row. ``follows``: no rollout is missing before this one."""
        columns, row, t = rollout.columns, env_row.row, 0
        first, valid = columns["first"][:, row], columns["valid"][:, row]
        ended = columns["terminated"][:, row] | columns["truncated"][:, row]
        if first[0] or not follows:
            yield from self._close(env_row)
        if first[0]:
            self._begin(env_row, rollout, 0)
        if env_row not in self._open and not (rollout.about.admits and first.any()):
            return
        if rollout.shortened is not None and rollout.shortened[row] and env_row in self._open:
            self._open[env_row].shortened = True
        for stop in np.flatnonzero(ended | ~valid).tolist():
            if valid[stop]:
                last = self._observation(rollout, row, stop + 1)
                if self._same_step:
                    last = {n: columns[f"recorded/{n}"][stop, row].copy() for n in self._leaves}
                self._take(env_row, rollout, t, stop + 1, last)
            elif stop > t:
                self._take(env_row, rollout, t, stop, self._observation(rollout, row, stop))
            yield from self._close(env_row)
            t = stop + 1
            if t < len(valid) and first[t]:
                self._begin(env_row, rollout, t)
        if t < len(valid):
            last = self._observation(rollout, row, len(valid))
            self._take(env_row, rollout, t, len(valid), last)

    def _observation(self, rollout: RecordedRollout, row: int, t: int) -> dict[str, Array]:
        return {n: np.array(rollout.columns[f"obs/{n}"][t, row]) for n in self._leaves}

    def _begin(self, env_row: EnvRow, rollout: RecordedRollout, t: int) -> None:
        """Begin an episode with the observation at ``t``, if it is recorded."""
        if not rollout.about.admits:
            return
        number = self._numbers[env_row] = self._numbers.get(env_row, -1) + 1
        last = self._observation(rollout, env_row.row, t)
        self._open[env_row] = _Open(number, True, {}, last, began=rollout.about.at)

    def _take(
        self,
        env_row: EnvRow,
        rollout: RecordedRollout,
        begin: int,
        end: int,
        last: dict[str, Array],
    ) -> None:
        """Take the steps from ``begin`` to ``end`` - 1; ``last``: the observation after them."""
        episode, row = self._open.get(env_row), env_row.row
        if episode is None:
            return
        for name, column in rollout.columns.items():
            if name == "first" or name == "valid" or name.startswith("recorded/"):
                continue
            chunk = column[begin:end, row].copy()
            episode.chunks.setdefault(name, []).append(chunk)
            episode.nbytes += chunk.nbytes
            self._nbytes += chunk.nbytes
        episode.policies.append((rollout.about.policy, end - begin))
        episode.steps += end - begin
        episode.last = last
        episode.until = rollout.about.at

    def _close(self, env_row: EnvRow) -> Iterator[RecordedEpisode]:
        """Yield the open episode of an env row, if it has one with a step, and take no more of
        it."""
        episode = self._open.get(env_row)
        if episode is not None and episode.steps:
            yield self._cut(env_row)
        self._open.pop(env_row, None)

    def _cut(self, env_row: EnvRow) -> RecordedEpisode:
        """Return the steps so far of an open episode, which goes on with another part."""
        episode = self._open[env_row]
        joined = {name: np.concatenate(chunks) for name, chunks in episode.chunks.items()}
        observations = {}
        for name in self._leaves:
            seen = joined.pop(f"obs/{name}")
            observations[name] = np.concatenate((seen, episode.last[name][None]))
        self._nbytes -= episode.nbytes
        before = self._frames_before(episode, observations)
        self._open[env_row] = _Open(
            episode.number,
            False,
            before,
            episode.last,
            shortened=episode.shortened,
            began=episode.began,
        )
        return RecordedEpisode(
            env_row,
            episode.number,
            episode.begins,
            observations,
            joined,
            np.repeat(*(np.array(each, np.int64) for each in zip(*episode.policies, strict=True))),
            episode.before,
            episode.shortened,
            None if episode.began < 0 else (episode.began, episode.until),
        )

    def _frames_before(self, episode: _Open, observations: dict[str, Array]) -> dict[str, Array]:
        """Return the frames of each stack before the last observation of a part."""
        before = {}
        for name, depth in self._depths.items():
            frames = observations[name][:-1]
            earlier = episode.before.get(name)
            if earlier is None:
                pad = frames[:1] if self._padding[name] == "reset" else np.zeros_like(frames[:1])
                earlier = np.repeat(pad, depth, axis=0)
            whole = np.concatenate((earlier, frames[max(0, len(frames) - depth) :]))
            before[name] = whole[len(whole) - depth :]
        return before
