"""Episodes, rollouts and updates as the hooks of callbacks see them, and what calls the hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from sampleforge.algorithms.learning import Learner
from sampleforge.env.vector import Array, EnvVector, Episode, StepOut
from sampleforge.env.wrapper import VectorWrapper
from sampleforge.rollouts.slots import length
from sampleforge.workers.callback import EPISODE_HOOKS, WorkerCallbacks, call, numbers
from sampleforge.workers.metrics import CUSTOM
from sampleforge.workers.policy_mapping import StreamId
from sampleforge.workers.split import Split
from sampleforge.workers.stream import Stream


class EpisodeHandle:
    """An episode of one env row while it is played; in a multi-agent environment, of one agent of
    it. All hooks of an episode get the same handle. Only ``user_data`` and ``custom_metrics`` can
    be set.

    ``actor`` (DD-PPO: the rank), ``split``, ``row`` of the split, ``seat``: its place. ``agent``:
    the agent's name, empty in a single-agent environment. ``length``: env steps so far; ``ret``:
    the sum of their raw rewards. ``reward``, ``terminated``, ``truncated``: of the last step.
    ``counted``: in `on_episode_end`, whether reports count the episode; they leave out the first
    one of each row if it was shortened (``--decorrelate``), and those with dropped steps.
    ``user_data``: a dict for your own objects. ``custom_metrics``: numbers by name; those that it
    has at the end of a counted episode are reported, see docs/callbacks.md.
    """

    __slots__ = (
        "_counted",
        "_length",
        "_obs",
        "_ret",
        "_reward",
        "_row",
        "_terminated",
        "_truncated",
        "_vector",
        "custom_metrics",
        "user_data",
    )
    row = property(attrgetter("_row"))
    counted = property(attrgetter("_counted"))
    length = property(attrgetter("_length"))
    ret = property(attrgetter("_ret"))
    reward = property(attrgetter("_reward"))
    terminated = property(attrgetter("_terminated"))
    truncated = property(attrgetter("_truncated"))
    actor = property(attrgetter("_vector.stream.actor"))
    split = property(attrgetter("_vector.stream.split"))
    seat = property(attrgetter("_vector.stream.seat"))
    agent = property(attrgetter("_vector.stream.agent"))

    def __init__(self, vector: WatchedVector, row: int, obs: Mapping[str, Array]) -> None:
        self._row = row
        self._length = 0
        self._ret = self._reward = 0.0
        self._terminated = self._truncated = self._counted = False
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
        return _of_row(self._obs, self._row)

    @property
    def action(self) -> dict[str, Array]:
        """The action of the last step, by leaf, as the policy gave it: read-only views, which are
        valid during the hook. Empty in `on_episode_start`."""
        return {} if self._length == 0 else _of_row(self._vector.actions, self._row)

    @property
    def info(self) -> Mapping[str, Any]:
        """The info of the last step; empty in `on_episode_start`, and where the environment gives
        none."""
        return {} if self._length == 0 else self._vector.row_info(self._row)

    @property
    def policy(self) -> str | None:
        """The id of the policy that plays now; None before the first rollout begins."""
        return self._vector.policy

    @property
    def place(self) -> str:
        """The place of the episode, in words."""
        agent = f", agent {self.agent}" if self.agent else ""
        return f"actor {self.actor}, split {self.split}, row {self.row}{agent}"


def _of_row(leaves: Mapping[str, Array], row: int) -> dict[str, Array]:
    """Return read-only views of one row of all leaves."""
    views = {name: leaf[row : row + 1].reshape(leaf.shape[1:]) for name, leaf in leaves.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def watch_episodes(split: Split, callbacks: WorkerCallbacks) -> None:
    """Have the hooks of ``callbacks`` called for the episodes of a split, if there are any."""
    if not any(callbacks.hooks(hook) for hook in EPISODE_HOOKS):
        return
    for seat in split.seats:
        stream = seat.id._replace(actor=callbacks.worker)
        playing = partial(_policy_of, split, seat.id.seat)
        seat.env = WatchedVector(seat.env, callbacks, stream, playing)


def _policy_of(split: Split, seat: int) -> int | None:
    """Return the index of the policy that plays a seat; None before the first rollout."""
    stream = split.streams[seat]
    if isinstance(stream, Stream) and stream.port is None:
        return None
    return stream.policy


class WatchedVector(VectorWrapper):
    """The env vector ``inner`` of one seat, with the hooks of ``callbacks``, which are called after
    its steps.

    ``stream``: the place of the seat; ``playing`` returns the index of the policy that plays it.
    If only starts and ends are watched, a step without any of them costs a few operations on arrays
    of rows, not a call per row.
    """

    def __init__(
        self,
        inner: EnvVector,
        callbacks: WorkerCallbacks,
        stream: StreamId,
        playing: Callable[[], int | None],
    ) -> None:
        super().__init__(inner)
        self._on_start, self._on_step, self._on_end = map(callbacks.hooks, EPISODE_HOOKS)
        self.stream = stream
        self._index_playing = playing
        self._policies = callbacks.policies
        self._same_step = inner.spec.autoreset == "same_step"
        self._episodes: list[EpisodeHandle | None] = [None] * inner.num_rows
        self.actions: Mapping[str, Array] = {}
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

    def send(self, actions: Mapping[str, Array]) -> None:
        self.actions = actions
        self.inner.send(actions)

    def recv(self, out: StepOut) -> list[Episode]:
        episodes = self.inner.recv(out)
        valid = out.valid
        self._sums += np.where(valid, out.reward, 0.0)
        self._steps += valid
        ended = (out.terminated | out.truncated) & valid
        stepped = valid if self._on_step else ended
        for row in np.flatnonzero(stepped).tolist():
            self._step(row, out)
        if np.count_nonzero(ended):
            places = {episode.row: place for place, episode in enumerate(episodes)}
            for row in np.flatnonzero(ended).tolist():
                if (place := places.get(row)) is None:
                    self._end(row, None)
                else:
                    custom = self._end(row, episodes[place].ret)
                    episodes[place] = episodes[place]._replace(custom=custom)
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
            call(self._on_start, episode)

    def _step(self, row: int, out: StepOut) -> None:
        """Write the last step into the handle of a row, and call the hooks of the step."""
        episode = self._episodes[row]
        assert episode is not None, "a step of a row that has begun no episode"
        episode._length, episode._ret = int(self._steps[row]), float(self._sums[row])
        episode._reward = float(out.reward[row])
        episode._terminated = bool(out.terminated[row])
        episode._truncated = bool(out.truncated[row])
        ended = episode._terminated or episode._truncated
        is_final = ended and self._same_step and bool(out.final_obs)
        episode._obs = (out.final_obs or {}) if is_final else out.obs
        call(self._on_step, episode)

    def _end(self, row: int, ret: float | None) -> dict[str, float]:
        """Call the hooks of the end of a row's episode; return its custom metrics, by their names
        in reports. ``ret``: the return that reports count; None if they do not count it."""
        episode = self._episodes[row]
        assert episode is not None
        if ret is not None:
            episode._counted, episode._ret = True, ret
        call(self._on_end, episode)
        if ret is None:
            return {}
        custom = numbers(episode.custom_metrics, episode.place)
        return {f"{CUSTOM}{name}": value for name, value in custom.items()}


class RolloutView:
    """A complete rollout of T steps of the rows of a split; in a multi-agent environment, of one
    agent of them. Its arrays are read-only views of shared memory, which belongs to the learner
    after the hook: copy what you keep.

    ``actor`` (DD-PPO: the rank), ``split``, ``seat``, ``agent``: its place. ``policy``: the id of
    the policy that has acted. ``length``: T, its number of steps. ``overlap``: the number of its
    first steps that are the last ones of the rollout before (Ape-X with a recurrent core, else 0).
    """

    def __init__(self, stream: Stream, callbacks: WorkerCallbacks) -> None:
        assert stream.slot is not None
        self.actor = callbacks.worker
        _, self.split, self.seat, self.agent, _ = stream.id
        self.policy = callbacks.policies[stream.policy]
        self._slots, self._slot = stream.slots, stream.slot
        self.length = length(self._slots, self._slot)
        self.overlap = stream.begun_at

    @property
    def obs(self) -> Mapping[str, Array]:
        """The observations before each step and after the last one, leaf -> [T+1, rows, ...]. Of a
        step that ended an episode the next one is the final observation, except in the layout
        same_step."""
        views = {name: self._view(leaf, 1) for name, leaf in self._slots.obs.items()}
        steps = np.arange(self.length + 1)
        for name, stacks in self._slots.stacks.items():
            copies = stacks.read_rows(np.full(len(steps), self._slot), steps).numpy()
            copies = copies.reshape(len(steps), -1, *copies.shape[1:])
            copies.flags.writeable = False
            views[name] = copies
        return views

    @property
    def actions(self) -> Mapping[str, Array]:
        """The actions in the policy's form, leaf -> [T, rows, ...]."""
        return {name: self._view(leaf) for name, leaf in self._slots.actions.items()}

    @property
    def reward(self) -> Array:
        """Raw rewards, float32 [T, rows]."""
        return self._view(self._slots.reward)

    @property
    def terminated(self) -> Array:
        """Bool [T, rows]."""
        return self._view(self._slots.terminated)

    @property
    def truncated(self) -> Array:
        """Bool [T, rows]."""
        return self._view(self._slots.truncated)

    @property
    def valid(self) -> Array:
        """Whether a step is experience, bool [T, rows]: one that only resets the row is not."""
        return self._view(self._slots.valid)

    @property
    def first(self) -> Array:
        """Whether an observation begins an episode, bool [T+1, rows]."""
        return self._view(self._slots.first, 1)

    @property
    def version(self) -> Array:
        """The version of the policy that has chosen the action, int64 [T, rows]."""
        return self._view(self._slots.version)

    @property
    def extras(self) -> Mapping[str, Array]:
        """The algorithm's own columns, name -> [T, rows]: with APPO and DD-PPO ``log_prob`` and
        ``value``."""
        return {name: self._view(column) for name, column in self._slots.extras.items()}

    @property
    def place(self) -> str:
        """The place of the rollout, in words."""
        agent = f", agent {self.agent}" if self.agent else ""
        return f"actor {self.actor}, split {self.split}{agent}"

    def _view(self, column: Array, more: int = 0) -> Array:
        view = column[self._slot, : self.length + more]
        view.flags.writeable = False
        return view


def rollout_hooks(callbacks: WorkerCallbacks | None) -> Callable[[Stream], None] | None:
    """Return the function that calls the hooks of a stream's complete rollout; None if no callback
    overrides them. A rollout without steps has no hooks."""
    hooks = () if callbacks is None else callbacks.hooks("on_rollout_end")
    if callbacks is None or not hooks:
        return None

    def tell(stream: Stream) -> None:
        rollout = RolloutView(stream, callbacks)
        if rollout.length:
            call(hooks, rollout)

    return tell


@dataclass(frozen=True)
class LearnerUpdate:
    """An update of one learner with one batch.

    ``policy``: the id of its policy; ``learner``: its number (DD-PPO: the rank). ``version``: the
    policy version after the update. ``metrics``: the update's own, read-only. ``model``: the
    learner's, on its device: read it, but leave it as it is. ``custom_metrics``: add numbers to it;
    those of learner 0 are reported, see docs/callbacks.md.
    """

    policy: str
    learner: int
    version: int
    metrics: Mapping[str, float]
    model: torch.nn.Module
    custom_metrics: dict[str, float] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The learner, in words."""
        return f"learner {self.learner} of {self.policy}"


def update_hooks(
    callbacks: WorkerCallbacks | None,
) -> Callable[[Learner, dict[str, float]], None] | None:
    """Return the function that calls the hooks of a learner's update; None if no callback overrides
    them. It adds the numbers that they give to the metrics of the update, from which
    `ReportMetrics` makes their mean, minimum and maximum."""
    hooks = () if callbacks is None else callbacks.hooks("on_learner_update")
    if callbacks is None or not hooks:
        return None
    (policy,), index = callbacks.policies, callbacks.worker

    def tell(learner: Learner, metrics: dict[str, float]) -> None:
        shown = MappingProxyType(dict(metrics))
        update = LearnerUpdate(policy, index, learner.version, shown, learner.model)
        call(hooks, update)
        for name, value in numbers(update.custom_metrics, update.place).items():
            metrics |= {f"{CUSTOM}{name}_{kind}": value for kind in ("mean", "min", "max")}

    return tell
