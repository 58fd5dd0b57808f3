"""Sequences for recurrent Q-learning: parts of rollouts with the recurrent state before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.ops.n_step import Flags, Floats, Windows
from sampleforge.ops.tensors import mapped, moved
from sampleforge.replay.compressed import CompressedFrames
from sampleforge.replay.device_frames import DeviceFrames, stack_readers
from sampleforge.rollouts.slots import TrajectorySlots

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sequences:
    """``B`` sequences of ``L`` env steps each.

    An episode may end within a sequence and the next one begin: ``is_first`` resets the state
    there, and no n-step window reaches across (`sampleforge.ops.n_step.n_step_windows` of these L
    steps).
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
    columns: dict[str, torch.Tensor] = field(default_factory=dict)
    """[L, B]: further columns, which the algorithm has asked for."""

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


class GatheredSequences(NamedTuple):
    """The sequences of a sample that could be read."""

    sequences: Sequences
    still_valid: npt.NDArray[np.bool_]
    """bool [B] of the sample: True for the items that were not evicted, which are in
    ``sequences``."""
    trained: int
    """Number of env steps that are learned from."""


MakeWindows = Callable[[Floats, Flags, Flags, Flags], Windows]
"""Makes the n-step windows of a batch of sequences, given reward, terminated, truncated and valid,
all [T, rows]."""


class SequenceReader:
    """Copies sequences out of slots that may be evicted and overwritten at any time. Like
    `sampleforge.replay.transitions.TransitionReader`, it leaves out items that changed
    meanwhile."""

    def __init__(
        self,
        slots: TrajectorySlots,
        make_windows: MakeWindows,
        frames: CompressedFrames | None = None,
        copies: DeviceFrames | None = None,
        names: Sequence[str] = (),
    ) -> None:
        """Make a reader of ``slots``; see `sampleforge.replay.transitions.TransitionReader`."""
        sequences = slots.shape.sequences
        assert sequences is not None
        self._slots = slots
        self._sequences = sequences
        self._make_windows = make_windows
        self._copies = copies
        self._stacks = stack_readers(slots, frames, copies)
        columns = slots.columns()
        self._obs = {n: columns[f"obs/{n}"].flatten(0, 2) for n in slots.obs}
        self._first = columns["first"].flatten(0, 2)
        self._actions = {n: columns[f"action/{n}"].flatten(0, 2) for n in slots.actions}
        self._columns = {n: columns[n].flatten(0, 2) for n in names}
        self._states = columns["states"].flatten(0, 2)
        self._of_windows = [
            column.reshape(-1)
            for column in (slots.reward, slots.terminated, slots.truncated, slots.valid)
        ]

    def read(
        self, items: Indices, generations: Indices, scaled_probability: npt.NDArray[np.float64]
    ) -> GatheredSequences:
        """Return the sequences of these items (see `sampleforge.replay.shard`); all arguments are
        [B]."""
        shape, length = self._slots.shape, self._sequences.length
        slot, within = np.divmod(items, shape.items)
        if self._copies is not None:
            self._copies.follow(slot, generations)
        start, row = np.divmod(within, shape.rows)
        t = start * self._sequences.stride + np.arange(length + 1)[:, None]  # [L+1, B]
        seen = torch.from_numpy((slot * (shape.rollout + 1) + t) * shape.rows + row)
        at = ((slot * shape.rollout + t) * shape.rows + row)[:-1]
        taken = torch.from_numpy(at)
        obs = {name: _take(leaf, seen) for name, leaf in self._obs.items()}
        for name, stacks in self._stacks.items():
            of_slot, of_row = (np.tile(each, length + 1) for each in (slot, row))
            flat = stacks.read(of_slot, t.reshape(-1), of_row)
            obs[name] = flat.view(*t.shape, *flat.shape[1:])
        reward, *flags = (column[at] for column in self._of_windows)
        windows = self._make_windows(reward, *flags)
        batch = Sequences(
            obs=obs,
            is_first=_take(self._first, seen),
            state=self._states.index_select(0, torch.from_numpy(items)),
            actions={n: _take(leaf, taken) for n, leaf in self._actions.items()},
            returns=torch.from_numpy(windows.returns),
            discount=torch.from_numpy(windows.discount),
            steps=torch.from_numpy(windows.steps.astype(np.int64)),
            scaled_probability=torch.from_numpy(scaled_probability.copy()),
            reward=torch.from_numpy(reward),
            columns={n: _take(column, taken) for n, column in self._columns.items()},
        )
        still_valid: npt.NDArray[np.bool_] = self._slots.generation[slot] == generations
        for stacks in self._stacks.values():
            stacks.assert_whole(slot[still_valid])
        if not still_valid.all():
            batch = batch.pick(torch.from_numpy(still_valid))
        trained = int(torch.count_nonzero(batch.steps[self._sequences.burn_in :]))
        return GatheredSequences(batch, still_valid, trained)


def _take(column: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return the rows ``index`` [L, B] of a column [N, ...], as [L, B, ...]."""
    return column.index_select(0, index.flatten()).view(*index.shape, *column.shape[1:])
