"""Samples of a replay, gathered from the slots that the actors wrote: transitions, or, for a
recurrent core, sequences with the recurrent state before them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.ops.q_learning import Flags, Floats, Windows
from sampleforge.ops.running_stats import Gather, alone
from sampleforge.ops.tensors import mapped, moved
from sampleforge.replay.compressed import CompressedFrames
from sampleforge.replay.device_frames import DeviceFrames, stack_readers
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Transitions:
    """``B`` transitions: observation, actions, and the n-step window from there on."""

    obs: dict[str, torch.Tensor]  # [B, ...]
    actions: dict[str, torch.Tensor]  # [B, ...]
    returns: torch.Tensor  # float32 [B]
    discount: torch.Tensor  # float32 [B], 0 where the episode terminated
    next_obs: dict[str, torch.Tensor]  # [B, ...], at the end of the window
    scaled_probability: torch.Tensor  # float64 [B], see `sampleforge.replay.shard.Sample`
    reward: torch.Tensor | None = None  # float32 [B], of the step alone, as the environment gave it

    def count(self) -> torch.Tensor:
        """Return the number of transitions to learn from, []: a `blank` batch has none."""
        return torch.isfinite(self.scaled_probability).sum()

    def blank(self) -> Transitions:
        """Return a batch like this one of a single transition, which does not count."""
        return mapped(
            self,
            lambda column: column.new_zeros(1, *column.shape[1:]),
            scaled_probability=lambda column: column.new_full((1,), torch.inf),
        )

    def to(self, device: torch.device) -> Transitions:
        """Return the batch on another device."""
        return moved(self, device)

    def pick(self, which: torch.Tensor) -> Transitions:
        """Return the transitions where ``which`` (bool [B]) is True."""
        return mapped(self, lambda column: column[which])


def zeros(spec: EnvSpec, rows: int) -> Transitions:
    """Return so many transitions of an environment, all of whose numbers are 0, in the layout of
    those that are drawn: stacked leaves last."""

    def leaves(of: Mapping[str, ArraySpec | ActionSpec]) -> dict[str, torch.Tensor]:
        last = sorted(of, key=lambda name: getattr(of[name], "stack", None) is not None)
        return {
            name: torch.zeros((rows, *of[name].shape), dtype=getattr(torch, of[name].dtype))
            for name in last
        }

    number = partial(torch.zeros, rows, dtype=torch.float32)
    return Transitions(
        leaves(spec.observations),
        leaves(spec.actions),
        number(),
        number(),
        leaves(spec.observations),
        torch.ones(rows, dtype=torch.float64),
    )


@dataclass(frozen=True)
class Sequences:
    """``B`` sequences of ``L`` env steps each.

    An episode may end within a sequence and the next one begin: ``is_first`` resets the state
    there, and no n-step window reaches across (`sampleforge.ops.q_learning.n_step_windows` of these
    L steps).
    """

    obs: dict[str, torch.Tensor]  # [L+1, B, ...]
    is_first: torch.Tensor  # bool [L+1, B], observations that begin an episode
    state: torch.Tensor  # float32 [B, S], the actor's recurrent state before obs[0]
    actions: dict[str, torch.Tensor]  # [L, B, ...]
    returns: torch.Tensor  # float32 [L, B], of the window
    discount: torch.Tensor  # float32 [L, B], 0 where the episode terminated within the window
    steps: torch.Tensor  # int64 [L, B], length of the window; 0: there is no window
    scaled_probability: torch.Tensor  # float64 [B], see `sampleforge.replay.shard.Sample`
    reward: torch.Tensor | None = None  # float32 [L, B], as the environment gave it

    def blank(self) -> Sequences:
        """Return a batch like this one of a single sequence, no step of which counts."""
        return mapped(
            self,
            lambda column: column.new_zeros(len(column), 1, *column.shape[2:]),
            state=lambda column: column.new_zeros(1, *column.shape[1:]),
            scaled_probability=lambda column: column.new_full((1,), torch.inf),
        )

    def to(self, device: torch.device) -> Sequences:
        """Return the batch on another device."""
        return moved(self, device)

    def pick(self, which: torch.Tensor) -> Sequences:
        """Return the sequences where ``which`` (bool [B]) is True."""

        def of_rows(column: torch.Tensor) -> torch.Tensor:
            return column[which]

        return mapped(
            self, lambda column: column[:, which], state=of_rows, scaled_probability=of_rows
        )


class Gathered(NamedTuple):
    """What could be read of a sample."""

    batch: Transitions | Sequences
    still_valid: npt.NDArray[np.bool_]
    """bool [B] of the sample: True for the items that were not evicted, which are in ``batch``."""
    trained: int
    """Number of env steps that are learned from."""


class ItemReader(ABC):
    """Copies items out of slots that may be evicted and overwritten at any time.

    The reader compares the generation after the copy; the shard raises it before an actor may
    write. Items that changed meanwhile are left out, so a batch may have fewer than were drawn.
    """

    def __init__(
        self,
        slots: TrajectorySlots,
        frames: CompressedFrames | None = None,
        copies: DeviceFrames | None = None,
    ) -> None:
        """Make a reader of ``slots``; ``frames``: the compressed frames of stored slots, None if
        frames are in the slots; ``copies``: those of frames on the learner's device, onto which
        stacks are then read."""
        self._slots = slots
        self._copies = copies
        self._stacks = stack_readers(slots, frames, copies)

    def read(
        self, items: Indices, generations: Indices, scaled_probability: npt.NDArray[np.float64]
    ) -> Gathered:
        """Return what these items are (see `sampleforge.replay.shard`); all arguments are [B]."""
        slot = items // self._slots.shape.items
        if self._copies is not None:
            self._copies.follow(slot, generations)
        batch = self._copy(items, slot, torch.from_numpy(scaled_probability.copy()))
        still_valid: npt.NDArray[np.bool_] = self._slots.generation.take(slot) == generations
        for stacks in self._stacks.values():
            stacks.assert_whole(slot[still_valid])
        if np.count_nonzero(still_valid) < len(items):
            batch = batch.pick(torch.from_numpy(still_valid))
        return Gathered(batch, still_valid, self._trained(batch))

    @abstractmethod
    def _copy(
        self, items: Indices, slot: Indices, scaled_probability: torch.Tensor
    ) -> Transitions | Sequences:
        """Return a copy of the items, [B], which lie in these slots, [B]."""

    @abstractmethod
    def _trained(self, batch: Any) -> int:
        """Return the number of env steps of the batch that are learned from."""


Relabel = Callable[[Transitions, Indices], None]
"""Changes some of the transitions of the items [B], in place."""


MakeWindows = Callable[[Floats, Flags, Flags, Flags], Windows]
"""Makes the n-step windows of a batch of sequences, given reward, terminated, truncated and valid,
all [T, rows]."""


class TransitionReader(ItemReader):
    """Reads transitions. ``relabel``: what gives some of them other goals, as in
    `sampleforge.replay.hindsight`."""

    def __init__(
        self,
        slots: TrajectorySlots,
        frames: CompressedFrames | None = None,
        copies: DeviceFrames | None = None,
        relabel: Relabel | None = None,
    ) -> None:
        super().__init__(slots, frames, copies)
        self._relabel = relabel
        columns = slots.columns()
        self._obs = {n: columns[f"obs/{n}"].flatten(0, 2).numpy() for n in slots.obs}
        self._actions = {n: columns[f"action/{n}"].flatten(0, 2).numpy() for n in slots.actions}
        self._step = {n: columns[n].flatten().numpy() for n in ("returns", "discount", "reward")}
        self._windows = slots.extras["steps"].reshape(-1)
        self._truncated = slots.truncated.reshape(-1)
        self._final = {n: columns[f"final/{n}"].flatten(0, 2) for n in slots.final_obs}

    def _copy(self, items: Indices, slot: Indices, scaled_probability: torch.Tensor) -> Transitions:
        shape = self._slots.shape
        in_time = items // shape.rows  # steps of all slots before, and t
        t = in_time - slot * shape.rollout
        # A window read while an actor writes may be garbage; it must not point outside the slot.
        window = np.minimum(self._windows.take(items), shape.rollout - t)
        obs, next_obs = self._read_obs(items + slot * shape.rows, window)
        row = items - in_time * shape.rows
        for name, stacks in self._stacks.items():
            obs[name], next_obs[name] = stacks.read_pair(slot, t, t + window, row)
        if self._final:
            self._put_final(next_obs, items + (np.maximum(window, 1) - 1) * shape.rows)
        transitions = Transitions(
            obs=obs,
            actions={n: _take(leaf, items) for n, leaf in self._actions.items()},
            next_obs=next_obs,
            scaled_probability=scaled_probability,
            **{n: _take(column, items) for n, column in self._step.items()},
        )
        if self._relabel is not None:
            self._relabel(transitions, items)
        return transitions

    def _trained(self, batch: Transitions) -> int:
        return len(batch.returns)

    def _read_obs(
        self, at: Indices, window: Indices
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the leaves [B, ...] that are stored whole, of the observations ``at`` [B] and of
        those ``window`` [B] steps later, both in one copy. (Observations have T + 1 steps per
        slot.)"""
        both, count = np.concatenate((at, at + window * self._slots.shape.rows)), len(at)
        copies = {name: leaf.take(both, axis=0) for name, leaf in self._obs.items()}
        return (
            {name: torch.from_numpy(copy[:count]) for name, copy in copies.items()},
            {name: torch.from_numpy(copy[count:]) for name, copy in copies.items()},
        )

    def _put_final(self, next_obs: dict[str, torch.Tensor], last: Indices) -> None:
        """Write the final observation into ``next_obs`` where a window was truncated by its
        ``last`` step; the slot stores it apart. (If the step terminated as well, its value is not
        used.)"""
        where = np.flatnonzero(self._truncated[last])
        if not len(where):
            return
        last, into = last[where], torch.from_numpy(where)
        slot, step = np.divmod(last, self._slots.shape.env_steps)
        t, row = np.divmod(step, self._slots.shape.rows)
        for name, leaf in self._final.items():
            seen = leaf.index_select(0, torch.from_numpy(last))
            if name in self._stacks:  # the stack before the step, moved by this frame
                before = self._stacks[name].read(slot, t, row)
                seen = torch.cat((before[:, 1:], seen.unsqueeze(1).to(before.device)), 1)
            next_obs[name].index_copy_(0, into.to(seen.device), seen)


class SequenceReader(ItemReader):
    """Reads sequences, whose windows ``make_windows`` makes."""

    def __init__(
        self,
        slots: TrajectorySlots,
        make_windows: MakeWindows,
        frames: CompressedFrames | None = None,
        copies: DeviceFrames | None = None,
    ) -> None:
        super().__init__(slots, frames, copies)
        sequences = slots.shape.sequences
        assert sequences is not None
        self._sequences = sequences
        self._make_windows = make_windows
        columns = slots.columns()
        self._obs = {n: columns[f"obs/{n}"].flatten(0, 2) for n in slots.obs}
        self._first = columns["first"].flatten(0, 2)
        self._actions = {n: columns[f"action/{n}"].flatten(0, 2) for n in slots.actions}
        self._states = columns["states"].flatten(0, 2)
        self._of_windows = [
            column.reshape(-1)
            for column in (slots.reward, slots.terminated, slots.truncated, slots.valid)
        ]

    def _copy(self, items: Indices, slot: Indices, scaled_probability: torch.Tensor) -> Sequences:
        shape, length = self._slots.shape, self._sequences.length
        start, row = np.divmod(items - slot * shape.items, shape.rows)
        t = start * self._sequences.stride + np.arange(length + 1)[:, None]  # [L+1, B]
        seen = torch.from_numpy((slot * (shape.rollout + 1) + t) * shape.rows + row)
        at = ((slot * shape.rollout + t) * shape.rows + row)[:-1]
        taken = torch.from_numpy(at)
        obs = {name: _take_steps(leaf, seen) for name, leaf in self._obs.items()}
        for name, stacks in self._stacks.items():
            of_slot, of_row = (np.tile(each, length + 1) for each in (slot, row))
            flat = stacks.read(of_slot, t.reshape(-1), of_row)
            obs[name] = flat.view(*t.shape, *flat.shape[1:])
        reward, *flags = (column[at] for column in self._of_windows)
        windows = self._make_windows(reward, *flags)
        return Sequences(
            obs=obs,
            is_first=_take_steps(self._first, seen),
            state=self._states.index_select(0, torch.from_numpy(items)),
            actions={n: _take_steps(leaf, taken) for n, leaf in self._actions.items()},
            returns=torch.from_numpy(windows.returns),
            discount=torch.from_numpy(windows.discount),
            steps=torch.from_numpy(windows.steps.astype(np.int64)),
            scaled_probability=scaled_probability,
            reward=torch.from_numpy(reward),
        )

    def _trained(self, batch: Sequences) -> int:
        return int(torch.count_nonzero(batch.steps[self._sequences.burn_in :]))


def _take(column: npt.NDArray[Any], items: Indices) -> torch.Tensor:
    """Return the rows ``items`` [B] of a column [N, ...], as [B, ...]."""
    return torch.from_numpy(column.take(items, axis=0))


def _take_steps(column: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return the rows ``index`` [L, B] of a column [N, ...], as [L, B, ...]."""
    return column.index_select(0, index.flatten()).view(*index.shape, *column.shape[1:])


def importance_weights(
    scaled_probability: torch.Tensor,
    beta: float | torch.Tensor,
    count: Callable[[], torch.Tensor],
    gather: Gather = alone,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the importance weights, float32 [B], and this learner's fraction of ``count``.

    The weights are (N P(i)) ** -beta, divided by the largest of all learners' parts;
    ``scaled_probability`` [B] is N P(i) (Schaul et al. 2016, arXiv 1511.05952, section 3.4).
    ``count`` returns the number of items, or steps, of this part that the loss is a mean over, [].
    """
    weights = scaled_probability.pow(-beta)
    largest = weights.max()
    if gather is alone:
        return (weights / largest).float(), torch.ones_like(largest)
    own = torch.stack((largest, count().to(weights.dtype)))
    every_largest, counts = gather(own).unbind(1)
    return (weights / every_largest.max()).float(), own[1] / counts.sum().clamp(min=1.0)


def share_of(
    count: Callable[[], torch.Tensor], device: torch.device, gather: Gather = alone
) -> torch.Tensor:
    """Return this learner's fraction of ``count`` (`importance_weights`), for a sample that was
    drawn uniformly, float64 [], on the ``device``."""
    if gather is alone:
        return torch.ones((), dtype=torch.float64, device=device)
    own = count().double()
    return own / gather(own[None]).sum().clamp(min=1.0)
