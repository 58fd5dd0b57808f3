"""Episodes as the hooks of callbacks see them: a handle per env row, and the env vector that calls
the hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sampleforge.env.vector import Array, EnvVector, Episode, StepOut
from sampleforge.env.wrapper import VectorWrapper
from sampleforge.shared.events import send
from sampleforge.workers.callback import EPISODE_HOOKS, Hook, WorkerCallbacks, call, numbers
from sampleforge.workers.policy_mapping import StreamId
from sampleforge.workers.split import Split
from sampleforge.workers.stream import Stream


class EpisodeHandle:
    """An episode of one env row while it is played; in a multi-agent environment, of one agent of
    it. All hooks of an episode get the same handle.

    ``actor`` (DD-PPO: the rank), ``split``, ``row`` of the split, ``seat``: its place. ``agent``:
    the agent's name, empty in a single-agent environment. ``length``: env steps so far; ``ret``:
    the sum of their raw rewards. ``reward``, ``terminated``, ``truncated``: of the last step.
    ``counted``: in `on_episode_end`, whether reports count the episode; they leave out the first
    one of each row if it was shortened (``--decorrelate``), and those with dropped steps.
    ``user_data``: a dict for your own objects. ``custom_metrics``: numbers by name; those that it
    has at the end of a counted episode are reported, see docs/callbacks.md.
    """

    __slots__ = (
        "_obs",
        "_vector",
        "actor",
        "agent",
        "counted",
        "custom_metrics",
        "length",
        "ret",
        "reward",
        "row",
        "seat",
        "split",
        "terminated",
        "truncated",
        "user_data",
    )

    def __init__(self, vector: WatchedVector, row: int, obs: Mapping[str, Array]) -> None:
        self.actor, self.split, self.seat, self.agent, _ = vector.stream
        self.row = row
        self.length = 0
        self.ret = 0.0
        self.reward = 0.0
        self.terminated = self.truncated = self.counted = False
        self.user_data: dict[Any, Any] = {}
        self.custom_metrics: dict[str, float] = {}
        self._vector = vector
        self._obs = obs

    @property
    def env(self) -> Any:
        """The row's environment if every row has a Python object of its own, as it was made (with
        its wrappers, without time limit and order check); else the vector env of all rows, of which
        this is row ``row``. After the end of an episode it is still in the last state, unless a
        vector env resets its rows within the step."""
        return self._vector.row_env(self.row)

    @property
    def obs(self) -> dict[str, Array]:
        """The newest observation, by leaf, as the policy gets it: read-only views, which are valid
        during the hook."""
        leaves = {name: leaf[self.row].view() for name, leaf in self._obs.items()}
        for leaf in leaves.values():
            leaf.flags.writeable = False
        return leaves

    @property
    def policy(self) -> str | None:
        """The id of the policy that plays now; None before the first rollout begins."""
        return self._vector.policy

    @property
    def place(self) -> str:
        """The place of the episode, in words."""
        agent = f", agent {self.agent}" if self.agent else ""
        return f"actor {self.actor}, split {self.split}, row {self.row}{agent}"


class EpisodeHooks(NamedTuple):
    """The hooks of episodes, of all callbacks that override them."""

    start: tuple[Hook, ...]
    step: tuple[Hook, ...]
    end: tuple[Hook, ...]


def watch_episodes(split: Split, callbacks: WorkerCallbacks) -> None:
    """Have the hooks of ``callbacks`` called for the episodes of a split, if there are any."""
    hooks = EpisodeHooks(*(callbacks.hooks(hook) for hook in EPISODE_HOOKS))
    if not any(hooks):
        return
    for seat in split.seats:
        stream = seat.id._replace(actor=callbacks.worker)
        playing = partial(_policy_of, split, seat.id.seat)
        seat.env = WatchedVector(seat.env, hooks, stream, playing, callbacks.policies)


def _policy_of(split: Split, seat: int) -> int | None:
    """Return the index of the policy that plays a seat; None before the first rollout."""
    stream = split.streams[seat]
    if isinstance(stream, Stream) and stream.port is None:
        return None
    return stream.policy


class WatchedVector(VectorWrapper):
    """The env vector ``inner`` of one seat, with hooks that are called after its steps.

    ``stream``: the place of the seat; ``playing`` returns the index of the policy that plays it,
    whose id is in ``policies``. If only starts and ends are watched, a step without any of them
    costs a few operations on arrays of rows, not a call per row.
    """

    def __init__(
        self,
        inner: EnvVector,
        hooks: EpisodeHooks,
        stream: StreamId,
        playing: Callable[[], int | None],
        policies: tuple[str, ...],
    ) -> None:
        super().__init__(inner)
        self._hooks = hooks
        self.stream = stream
        self._index_playing = playing
        self._policies = policies
        self._same_step = inner.spec.autoreset == "same_step"
        self._episodes: list[EpisodeHandle | None] = [None] * inner.num_rows
        self._sums = np.zeros(inner.num_rows)
        self._steps = np.zeros(inner.num_rows, np.int64)

    @property
    def policy(self) -> str | None:
        """The id of the policy that plays the seat; None before the first rollout."""
        index = self._index_playing()
        return None if index is None else self._policies[index]

    def reset(self, obs: Mapping[str, Array]) -> None:
        self.inner.reset(obs)
        self._begin_episodes(np.ones(self.num_rows, np.bool_), obs)

    def recv(self, out: StepOut) -> list[Episode]:
        episodes = self.inner.recv(out)
        valid = out.valid
        self._sums += np.where(valid, out.reward, 0.0)
        self._steps += valid
        ended = (out.terminated | out.truncated) & valid
        stepped = valid if self._hooks.step else ended
        for row in np.flatnonzero(stepped).tolist():
            self._step(row, out)
        if np.count_nonzero(ended):
            counted = {episode.row: episode for episode in episodes}
            for row in np.flatnonzero(ended).tolist():
                self._end(row, counted.get(row))
        if np.count_nonzero(out.first):
            self._begin_episodes(out.first, out.obs)
        return episodes

    def _begin_episodes(self, first: Array, obs: Mapping[str, Array]) -> None:
        """Begin an episode in each of the rows ``first``, bool [rows], whose agent takes part."""
        if self.present is not None:
            first = first & self.present
        for row in np.flatnonzero(first).tolist():
            self._sums[row], self._steps[row] = 0.0, 0
            episode = self._episodes[row] = EpisodeHandle(self, row, obs)
            call(self._hooks.start, episode)

    def _step(self, row: int, out: StepOut) -> None:
        """Write the last step into the handle of a row, and call the hooks of the step."""
        episode = self._episodes[row]
        assert episode is not None, "a step of a row that has begun no episode"
        episode.length, episode.ret = int(self._steps[row]), float(self._sums[row])
        episode.reward = float(out.reward[row])
        episode.terminated, episode.truncated = bool(out.terminated[row]), bool(out.truncated[row])
        ended = episode.terminated or episode.truncated
        is_final = ended and self._same_step and bool(out.final_obs)
        episode._obs = (out.final_obs or {}) if is_final else out.obs
        call(self._hooks.step, episode)

    def _end(self, row: int, counted: Episode | None) -> None:
        """Call the hooks of the end of a row's episode, and send its metrics. ``counted``: the
        episode as reports count it, if they do."""
        episode = self._episodes[row]
        assert episode is not None
        if counted is not None:
            episode.counted, episode.ret = True, counted.ret
        call(self._hooks.end, episode)
        policy = self._index_playing()
        if counted is not None and episode.custom_metrics and policy is not None:
            send("custom_metrics", (policy, numbers(episode.custom_metrics, episode.place)))
