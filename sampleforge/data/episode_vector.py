"""An env vector that plays the episodes of a dataset, and the shuffle buffer that gives them in a
random order, without end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.config import ConfigError
from sampleforge.data.dataset import OfflineDataset, StoredEpisode, stacked
from sampleforge.env.vector import EnvVector, StepOut
from sampleforge.env.vector import Episode as PlayedEpisode
from sampleforge.spec import ActionSpec, EnvSpec


class ShuffleBuffer:
    """Holds episodes of ``dataset``, of ``steps`` env steps together or one episode more. `next`
    removes one at random and reads others until the buffer is full again. Each pass over the
    dataset reads its episodes in another random order. Raises ConfigError if it has no steps."""

    def __init__(self, dataset: OfflineDataset, steps: int, seed: list[int]) -> None:
        if not dataset.num_steps:
            raise ConfigError(f"{dataset.source}: the dataset has no env steps to learn from")
        self._dataset = dataset
        self._steps = steps
        self._random = np.random.default_rng(seed)
        self._held: list[StoredEpisode] = []
        self._held_steps = 0
        self._coming: Iterator[StoredEpisode] = iter(())
        self.passes = 0
        """Number of passes over the dataset that have begun."""

    def next(self) -> StoredEpisode:
        """Return the next episode."""
        while self._held_steps < self._steps and self._read():
            pass
        at = int(self._random.integers(len(self._held)))
        self._held[at], self._held[-1] = self._held[-1], self._held[at]
        episode = self._held.pop()
        self._held_steps -= len(episode)
        return episode

    def _read(self) -> bool:
        """Read an episode into the buffer. Return False if the buffer has all episodes of a pass:
        then none is read twice."""
        episode = next(self._coming, None)
        if episode is None:
            if self._held:  # the next pass begins when this one has been given
                return False
            order = self._random.permutation(self._dataset.num_episodes)
            self._coming = self._dataset.episodes(order.tolist())
            self.passes += 1
            episode = next(self._coming)
        if len(episode):
            self._held.append(episode)
        self._held_steps += len(episode)
        return True


Array = npt.NDArray[Any]


class EpisodeVector(EnvVector):
    """``num_rows`` rows that each play one episode of ``buffer`` after the other. A step is the one
    that was recorded, whatever actions are sent: `actions` are those that the environment took.

    An episode that goes on in another part, or whose end was not recorded, ends with a truncation,
    so that its last observation is bootstrapped from. Before a part that begins within an episode,
    the frames that its first stacks need are played as steps that are not valid.

    Its episodes are not reported: their returns are not those of the policy that learns.
    """

    always_finite = False

    def __init__(self, spec: EnvSpec, num_rows: int, buffer: ShuffleBuffer) -> None:
        super().__init__(spec, num_rows)
        self._buffer = buffer
        self._plays: list[_Play] = []
        self._none = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in spec.actions.items()}

    def reset(self, obs: Mapping[str, Array]) -> None:
        self._plays = [self._next() for _ in range(self.num_rows)]
        for row, play in enumerate(self._plays):
            play.write(obs, row)
        self._check_first_obs(obs)

    @property
    def actions(self) -> dict[str, Array]:
        """The actions of the next step, leaf -> [rows, ...] as in the slots; zeros where none is
        taken."""
        each = [play.action() or self._none for play in self._plays]
        return {name: np.stack([one[name] for one in each]) for name in self._none}

    def send(self, actions: Mapping[str, Array]) -> None:
        """Do nothing: the recorded actions are taken."""

    def recv(self, out: StepOut) -> list[PlayedEpisode]:
        super().recv(out)
        for row, play in enumerate(self._plays):
            if play.leads and out.valid[row] and not out.first[row]:
                out.valid[row] = False
                self.valid_rows -= 1
        return []

    def close(self) -> None:
        self._plays = []

    def _begin(self, actions: dict[str, Array]) -> None:
        raise AssertionError("no actions are sent to a dataset")

    def _complete(self, out: StepOut) -> None:
        same_step = self.spec.autoreset == "same_step"
        for row, play in enumerate(self._plays):
            if play.ended:  # under next-step autoreset, one step ago
                self._plays[row] = self._next()
                out.reward[row], out.terminated[row], out.truncated[row] = 0.0, False, False
                self._plays[row].write(out.obs, row)
                continue
            out.reward[row], out.terminated[row], out.truncated[row] = play.step()
            if play.ended and same_step:
                assert out.final_obs is not None
                play.write(out.final_obs, row)
                self._plays[row] = self._next()
            self._plays[row].write(out.obs, row)

    def _next(self) -> _Play:
        return _Play(self._buffer.next(), self.spec)


def _taken(spec: ActionSpec, actions: Array) -> Array:
    """Return the actions [T, ...] of a leaf as the environment took them: a policy may have drawn
    Box actions beyond their bounds, and what followed is that of the bound."""
    if spec.kind != "box":
        return actions
    low, high = (np.reshape(bound, spec.shape) for bound in (spec.low, spec.high))
    clipped: Array = np.clip(actions, low, high).astype(actions.dtype, copy=False)
    return clipped


class _Play:
    """An episode, and the step ``t`` that it is at; below 0 in the frames before it."""

    def __init__(self, episode: StoredEpisode, spec: EnvSpec) -> None:
        self._episode = episode
        self._actions = {n: _taken(spec.actions[n], leaf) for n, leaf in episode.actions.items()}
        self._before: dict[str, Array] = {}
        depths = {n: leaf.shape[0] for n, leaf in spec.observations.items() if leaf.stack}
        self.t = 0 if episode.begins or not depths else 1 - max(depths.values())
        if self.t:
            for name, depth in depths.items():
                first = episode.observations[name][0]
                lead = np.concatenate((np.repeat(first[:1], -self.t + 1 - depth, 0), first))
                self._before[name] = stacked(lead, spec.observations[name], None)[:-1]
        self.leads = False

    @property
    def ended(self) -> bool:
        return self.t == len(self._episode)

    def action(self) -> dict[str, Array] | None:
        if self.t < 0 or self.ended:
            return None
        return {name: leaf[self.t] for name, leaf in self._actions.items()}

    def step(self) -> tuple[float, bool, bool]:
        """Take a step; return its reward, and whether it terminated and truncated the episode."""
        episode, t = self._episode, self.t
        self.t += 1
        self.leads = t < 0
        if t < 0:
            return 0.0, False, False
        terminated, truncated = bool(episode.terminations[t]), bool(episode.truncations[t])
        return float(episode.rewards[t]), terminated, truncated or (self.ended and not terminated)

    def write(self, obs: Mapping[str, Array], row: int) -> None:
        """Write the observation at ``t`` into ``obs``, leaf -> [rows, ...]."""
        for name, leaf in self._episode.observations.items():
            if self.t < 0 and name in self._before:
                obs[name][row] = self._before[name][self.t]
            else:
                obs[name][row] = leaf[max(self.t, 0)]
