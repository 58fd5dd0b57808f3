"""Sampled transitions, gathered from where the actors wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.replay.compressed import CompressedFrames
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.spec import ACTION

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Transitions:
    """``B`` transitions: what was seen, what was done, and the n-step window after it."""

    obs: dict[str, torch.Tensor]  # [B, ...]
    action: torch.Tensor  # int64 [B]
    returns: torch.Tensor  # float32 [B]
    discount: torch.Tensor  # float32 [B], 0 where the episode terminated
    next_obs: dict[str, torch.Tensor]  # [B, ...], at the end of the window
    scaled_probability: torch.Tensor  # float64 [B], see `sampleforge.replay.shard.Sample`
    reward: torch.Tensor | None = None  # float32 [B], of the step alone, as the environment gave it

    def to(self, device: torch.device) -> Transitions:
        def move(leaves: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {n: leaf.to(device, non_blocking=True) for n, leaf in leaves.items()}

        plain = move(self.plain())
        return Transitions(obs=move(self.obs), next_obs=move(self.next_obs), **plain)

    def plain(self) -> dict[str, torch.Tensor]:
        """What is no observation, [B] each."""
        columns = {n: getattr(self, n) for n in _PLAIN}
        return {n: column for n, column in columns.items() if column is not None}


_PLAIN = ("action", "returns", "discount", "scaled_probability", "reward")


class Gathered(NamedTuple):
    transitions: Transitions
    held: npt.NDArray[np.bool_]
    """[B] of the sample: which of its items are still what was drawn, and so in here."""

    @property
    def trained(self) -> int:
        """Env steps that are learned from."""
        return len(self.transitions.action)


class TransitionReader:
    """Copies transitions out of slots that may be evicted and written anew at any time.

    The generation is compared after the copy: it moves before an actor may write. What changed
    meanwhile is left out, so the transitions may be fewer than the items.
    """

    def __init__(self, slots: TrajectorySlots, frames: CompressedFrames | None = None) -> None:
        """``frames``: where those of stored slots are, if not in the slots."""
        self._slots = slots
        self._stacks = slots.stacks if frames is None else frames.columns(slots)
        columns = slots.columns()
        self._obs = {n: columns[f"obs/{n}"].flatten(0, 2) for n in slots.obs}
        self._step = {
            name: columns[column].flatten(0, 2)
            for name, column in {
                "action": f"action/{ACTION}",
                "returns": "returns",
                "discount": "discount",
                "reward": "reward",
            }.items()
        }
        self._windows = slots.extras["steps"].reshape(-1)
        self._truncated = slots.truncated.reshape(-1)
        self._final = {n: columns[f"final/{n}"].flatten(0, 2) for n in slots.final_obs}

    def read(
        self, items: Indices, generations: Indices, scaled_probability: npt.NDArray[np.float64]
    ) -> Gathered:
        """The transitions of these items (see `sampleforge.replay.shard`)."""
        shape = self._slots.shape
        slot, step = np.divmod(items, shape.env_steps)
        at = items + slot * shape.rows  # observations have T + 1 steps per slot
        # A window read while an actor writes may be anything; it must only not point outside.
        window = np.minimum(self._windows[items], shape.rollout - step // shape.rows)
        index, seen = torch.from_numpy(items), torch.from_numpy(at)
        after = torch.from_numpy(at + window.astype(np.int64) * shape.rows)
        plain = {n: column.index_select(0, index) for n, column in self._step.items()}
        obs = {n: leaf.index_select(0, seen) for n, leaf in self._obs.items()}
        next_obs = {n: leaf.index_select(0, after) for n, leaf in self._obs.items()}
        t, row = np.divmod(step, shape.rows)
        for name, stacks in self._stacks.items():
            obs[name], next_obs[name] = stacks.read_pair(slot, t, t + window, row)
        if self._final:
            self._put_final(next_obs, items + (np.maximum(window, 1) - 1) * shape.rows)
        found = Transitions(
            obs=obs,
            next_obs=next_obs,
            scaled_probability=torch.from_numpy(scaled_probability.copy()),
            **plain,
        )
        held: npt.NDArray[np.bool_] = self._slots.generation[slot] == generations
        for stacks in self._stacks.values():
            stacks.assert_whole(slot[held])
        return Gathered(found if held.all() else _pick(found, held), held)

    def _put_final(self, next_obs: dict[str, torch.Tensor], last: Indices) -> None:
        """The final observation into ``next_obs`` where a window was truncated by its ``last``
        step, as the slot has it apart. (Where it terminated as well, nothing looks at it.)"""
        where = np.flatnonzero(self._truncated[last])
        if not len(where):
            return
        last, into = last[where], torch.from_numpy(where)
        slot, step = np.divmod(last, self._slots.shape.env_steps)
        t, row = np.divmod(step, self._slots.shape.rows)
        for name, leaf in self._final.items():
            seen = leaf.index_select(0, torch.from_numpy(last))
            if name in self._stacks:  # the stack before it has moved on by this frame
                before = self._stacks[name].read(slot, t, row)
                seen = torch.cat((before[:, 1:], seen.unsqueeze(1)), 1)
            next_obs[name].index_copy_(0, into, seen)


def _pick(found: Transitions, held: npt.NDArray[np.bool_]) -> Transitions:
    mask = torch.from_numpy(held)
    plain = {n: column[mask] for n, column in found.plain().items()}
    return Transitions(
        obs={n: leaf[mask] for n, leaf in found.obs.items()},
        next_obs={n: leaf[mask] for n, leaf in found.next_obs.items()},
        **plain,
    )
