"""Sampled transitions, gathered from the slots that the actors wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.ops.tensors import mapped, moved
from sampleforge.replay.compressed import CompressedFrames
from sampleforge.replay.device_frames import DeviceFrames, stack_readers
from sampleforge.rollouts.slots import TrajectorySlots

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
    columns: dict[str, torch.Tensor] = field(default_factory=dict)
    """[B]: further columns of the step, which the algorithm has asked for."""

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


class Gathered(NamedTuple):
    """The transitions of a sample that could be read."""

    transitions: Transitions
    still_valid: npt.NDArray[np.bool_]
    """bool [B] of the sample: True for the items that were not evicted, which are in
    ``transitions``."""

    @property
    def trained(self) -> int:
        """Number of env steps that are learned from."""
        return len(self.transitions.returns)


Relabel = Callable[[Transitions, Indices], None]
"""Changes some of the transitions of the items [B], in place."""


class TransitionReader:
    """Copies transitions out of slots that may be evicted and overwritten at any time.

    The reader compares the generation after the copy; the shard raises it before an actor may
    write. Items that changed meanwhile are left out, so there may be fewer transitions than items.
    """

    def __init__(
        self,
        slots: TrajectorySlots,
        frames: CompressedFrames | None = None,
        copies: DeviceFrames | None = None,
        names: Sequence[str] = (),
        relabel: Relabel | None = None,
    ) -> None:
        """Make a reader of ``slots``; ``frames``: the compressed frames of stored slots, None if
        frames are in the slots; ``copies``: those of frames on the learner's device, onto which
        stacks are then read; ``names``: of the slots' extra columns that samples have;
        ``relabel``: what gives transitions other goals, as in `sampleforge.replay.hindsight`."""
        self._slots = slots
        self._copies = copies
        self._relabel = relabel
        self._stacks = stack_readers(slots, frames, copies)
        columns = slots.columns()
        self._obs = {n: columns[f"obs/{n}"].flatten(0, 2).numpy() for n in slots.obs}
        self._actions = {n: columns[f"action/{n}"].flatten(0, 2).numpy() for n in slots.actions}
        self._step = {n: columns[n].flatten().numpy() for n in ("returns", "discount", "reward")}
        self._columns = {n: slots.extras[n].reshape(-1) for n in names}
        self._windows = slots.extras["steps"].reshape(-1)
        self._truncated = slots.truncated.reshape(-1)
        self._final = {n: columns[f"final/{n}"].flatten(0, 2) for n in slots.final_obs}

    def read(
        self, items: Indices, generations: Indices, scaled_probability: npt.NDArray[np.float64]
    ) -> Gathered:
        """Return the transitions of these items (see `sampleforge.replay.shard`); all arguments are
        [B]."""
        shape = self._slots.shape
        slot = items // shape.env_steps
        in_time = items // shape.rows  # steps of all slots before, and t
        t = in_time - slot * shape.rollout
        if self._copies is not None:
            self._copies.follow(slot, generations)
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
            scaled_probability=torch.from_numpy(scaled_probability.copy()),
            **{n: _take(column, items) for n, column in self._step.items()},
            columns={n: _take(column, items) for n, column in self._columns.items()},
        )
        if self._relabel is not None:
            self._relabel(transitions, items)
        still_valid: npt.NDArray[np.bool_] = self._slots.generation.take(slot) == generations
        for stacks in self._stacks.values():
            stacks.assert_whole(slot[still_valid])
        if np.count_nonzero(still_valid) < len(items):
            transitions = transitions.pick(torch.from_numpy(still_valid))
        return Gathered(transitions, still_valid)

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


def _take(column: npt.NDArray[Any], items: Indices) -> torch.Tensor:
    """Return the rows ``items`` [B] of a column [N, ...], as [B, ...]."""
    return torch.from_numpy(column.take(items, axis=0))
