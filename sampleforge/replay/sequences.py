"""Sequences for recurrent Q-learning: stretches of rollouts, with the state they began in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.ops.n_step import Flags, Floats, Windows
from sampleforge.replay.compressed import CompressedFrames
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.spec import ACTION

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sequences:
    """``B`` sequences of ``L`` env steps each.

    An episode may end within one and the next begin: ``first`` resets the state there, and no
    n-step window reaches over it (`sampleforge.ops.n_step.n_step_windows` over these L steps).
    """

    obs: dict[str, torch.Tensor]  # [L+1, B, ...]
    first: torch.Tensor  # bool [L+1, B], observations that begin an episode
    state: torch.Tensor  # float32 [B, S], the actor's before obs[0]
    action: torch.Tensor  # int64 [L, B]
    returns: torch.Tensor  # float32 [L, B], of the window
    discount: torch.Tensor  # float32 [L, B], 0 where the episode terminated within the window
    steps: torch.Tensor  # int64 [L, B], length of the window; 0: there is nothing to learn
    scaled_probability: torch.Tensor  # float64 [B], see `sampleforge.replay.shard.Sample`
    reward: torch.Tensor | None = None  # float32 [L, B], as the environment gave it

    def to(self, device: torch.device) -> Sequences:
        plain = {n: c.to(device, non_blocking=True) for n, c in self._plain().items()}
        obs = {n: leaf.to(device, non_blocking=True) for n, leaf in self.obs.items()}
        return Sequences(obs=obs, **plain)

    def pick(self, which: torch.Tensor) -> Sequences:
        """Those of them where ``which``, bool [B]."""
        alone = ("state", "scaled_probability")  # without an axis of time
        plain = {n: c[which] if n in alone else c[:, which] for n, c in self._plain().items()}
        return Sequences(obs={n: leaf[:, which] for n, leaf in self.obs.items()}, **plain)

    def _plain(self) -> dict[str, torch.Tensor]:
        return {n: c for n, c in self.__dict__.items() if n != "obs" and c is not None}


class GatheredSequences(NamedTuple):
    sequences: Sequences
    held: npt.NDArray[np.bool_]
    """[B] of the sample: which of its items are still what was drawn, and so in here."""
    trained: int
    """Env steps that are learned from."""


class MakeWindows(Protocol):
    def __call__(
        self, reward: Floats, terminated: Flags, truncated: Flags, valid: Flags
    ) -> Windows:
        """The n-step windows of [T, rows] each."""


class SequenceReader:
    """Copies sequences out of slots that may be evicted and written anew at any time; as
    `sampleforge.replay.transitions.TransitionReader` does, it leaves out what changed meanwhile."""

    def __init__(
        self,
        slots: TrajectorySlots,
        make_windows: MakeWindows,
        frames: CompressedFrames | None = None,
    ) -> None:
        """``frames``: where those of stored slots are, if not in the slots."""
        sequences = slots.shape.sequences
        assert sequences is not None
        self._slots = slots
        self._sequences = sequences
        self._make_windows = make_windows
        self._stacks = slots.stacks if frames is None else frames.columns(slots)
        columns = slots.columns()
        self._obs = {n: columns[f"obs/{n}"].flatten(0, 2) for n in slots.obs}
        self._first = columns["first"].flatten(0, 2)
        self._action = columns[f"action/{ACTION}"].flatten(0, 2)
        self._states = columns["states"].flatten(0, 2)
        self._of_windows = [
            column.reshape(-1)
            for column in (slots.reward, slots.terminated, slots.truncated, slots.valid)
        ]

    def read(
        self, items: Indices, generations: Indices, scaled_probability: npt.NDArray[np.float64]
    ) -> GatheredSequences:
        """The sequences of these items (see `sampleforge.replay.shard`)."""
        shape, length = self._slots.shape, self._sequences.length
        slot, within = np.divmod(items, shape.items)
        start, row = np.divmod(within, shape.rows)
        t = start * self._sequences.stride + np.arange(length + 1)[:, None]  # [L+1, B]
        seen = torch.from_numpy((slot * (shape.rollout + 1) + t) * shape.rows + row)
        at = ((slot * shape.rollout + t) * shape.rows + row)[:-1]
        obs = {name: _take(leaf, seen) for name, leaf in self._obs.items()}
        for name, stacks in self._stacks.items():
            of_slot, of_row = (np.tile(each, length + 1) for each in (slot, row))
            found = stacks.read(of_slot, t.reshape(-1), of_row)
            obs[name] = found.view(*t.shape, *found.shape[1:])
        reward, *flags = (column[at] for column in self._of_windows)
        windows = self._make_windows(reward, *flags)
        batch = Sequences(
            obs=obs,
            first=_take(self._first, seen),
            state=self._states.index_select(0, torch.from_numpy(items)),
            action=_take(self._action, torch.from_numpy(at)),
            returns=torch.from_numpy(windows.returns),
            discount=torch.from_numpy(windows.discount),
            steps=torch.from_numpy(windows.steps.astype(np.int64)),
            scaled_probability=torch.from_numpy(scaled_probability.copy()),
            reward=torch.from_numpy(reward),
        )
        held: npt.NDArray[np.bool_] = self._slots.generation[slot] == generations
        for stacks in self._stacks.values():
            stacks.assert_whole(slot[held])
        if not held.all():
            batch = batch.pick(torch.from_numpy(held))
        trained = int(torch.count_nonzero(batch.steps[self._sequences.burn_in :]))
        return GatheredSequences(batch, held, trained)


def _take(column: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows ``index`` [L, B] of a column [N, ...]: [L, B, ...]."""
    return column.index_select(0, index.flatten()).view(*index.shape, *column.shape[1:])
