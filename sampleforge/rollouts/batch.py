"""Batches, which are copied from slots to a device, one memory copy per slot and column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sampleforge.ops.tensors import moved
from sampleforge.rollouts.slots import PER_ROLLOUT, TrajectorySlots, length
from sampleforge.shared.staging import page_lock, wait_for_copies

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Batch:
    """``B`` rows of ``T`` consecutive env steps, time first, with the columns of
    `SlotShape.layout`."""

    obs: dict[str, torch.Tensor]  # [T+1, B, ...]
    is_first: torch.Tensor  # bool [T+1, B]
    actions: dict[str, torch.Tensor]  # [T, B, ...]
    acted: dict[str, torch.Tensor]  # [T, B] each: what acting recorded, `SlotShape.extras`
    version: torch.Tensor  # int64 [T, B]
    reward: torch.Tensor  # float32 [T, B], raw
    terminated: torch.Tensor  # bool [T, B]
    truncated: torch.Tensor  # bool [T, B]
    valid: torch.Tensor  # bool [T, B]
    state: torch.Tensor  # float32 [B, S], the recurrent state before obs[0]
    final_value: torch.Tensor | None = None  # float32 [T, B], for same-step environments
    env_row: torch.Tensor | None = None  # int64 [B], the env row of each column; variable batches
    last_value: torch.Tensor | None = None  # float32 [B], of obs[T]; of rollouts that ended early

    @property
    def value(self) -> torch.Tensor:
        """The values by the behaviour policy, float32 [T, B]."""
        return self.acted["value"]

    @property
    def log_prob(self) -> torch.Tensor:
        """The log-probabilities of the actions by the behaviour policy, float32 [T, B]."""
        return self.acted["log_prob"]

    @property
    def steps(self) -> tuple[int, int]:
        """(T, B)."""
        rollout, rows = self.reward.shape
        return rollout, rows

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device."""
        return moved(self, device)


class BatchBuilder:
    """Copies ``slots_per_batch`` slots, side by side along the rows, into one reused batch on
    ``device``.

    A slot that is marked as the batch's last completes the batch earlier. The batch has as many
    time steps as its longest rollout. A CUDA device fetches the columns by itself from page-locked
    slots.
    """

    def __init__(
        self, slots: TrajectorySlots, slots_per_batch: int, device: torch.device = CPU
    ) -> None:
        self._slots = slots
        self._columns = slots.columns()
        self._device = device
        if device.type == "cuda":
            page_lock(slots.arrays.buffer)
        self._wanted = slots_per_batch
        self._filled = 0
        self._longest = 1
        self._complete = False
        # [T, slots, rows, ...]; those once per rollout: [slots, rows, ...]
        self._buffers: dict[str, torch.Tensor] = {}
        for name, column in self._columns.items():
            time = () if name in PER_ROLLOUT else (column.shape[1],)
            inner = column.shape[2 if time else 1 :]
            shape = (*time, slots_per_batch, *inner)
            self._buffers[name] = torch.empty(shape, dtype=column.dtype, device=device)
        self._batch = self._as_batch(slots_per_batch, slots.shape.rollout)

    def add(self, slot: int) -> bool:
        """Copy one slot into the batch; afterwards the slot may be overwritten. Return whether the
        batch is complete."""
        assert self._filled < self._wanted, "take the complete batch before adding to the next"
        for name, column in self._columns.items():
            buffer = self._buffers[name]
            place = buffer[self._filled] if name in PER_ROLLOUT else buffer[:, self._filled]
            place.copy_(column[slot], non_blocking=True)
        wait_for_copies(self._device)
        self._filled += 1
        self._longest = max(self._longest, length(self._slots, slot))
        ends_batch = self._slots.ends_batch
        last = ends_batch is not None and bool(ends_batch[slot])
        self._complete = last or self._filled == self._wanted
        return self._complete

    def clear(self) -> None:
        """Drop the slots that are in the batch."""
        self._filled, self._longest, self._complete = 0, 1, False

    def take(self) -> Batch:
        """Return the complete batch, which is valid until the next `add`."""
        assert self._complete, f"only {self._filled} of {self._wanted} slots are in"
        filled, longest = self._filled, self._longest
        self.clear()
        whole = filled == self._wanted and longest == self._slots.shape.rollout
        return self._batch if whole else self._as_batch(filled, longest)

    def _as_batch(self, slots: int, rollout: int) -> Batch:
        """Return the first ``slots`` slots and ``rollout`` steps: views if these are all slots, a
        copy otherwise. If the slots could hold longer rollouts, the value of obs[T] is known,
        because actions were requested for it."""
        flat: dict[str, Any] = {}
        left_out = self._slots.shape.rollout - rollout
        if left_out and "value" in self._buffers:
            flat["last_value"] = self._buffers["value"][rollout, :slots].flatten(0, 1)
        for name, buffer in self._buffers.items():
            if name in PER_ROLLOUT:
                flat[name] = buffer[:slots].flatten(0, 1)
            else:
                flat[name] = buffer[: len(buffer) - left_out, :slots].flatten(1, 2)
        leaves: dict[str, dict[str, torch.Tensor]] = {"obs": {}, "action": {}}
        for name in [n for n in flat if "/" in n]:
            kind, leaf = name.split("/", 1)
            leaves[kind][leaf] = flat.pop(name)
        acted = {name: flat.pop(name) for name in self._slots.shape.extras}
        return Batch(
            obs=leaves["obs"],
            actions=leaves["action"],
            acted=acted,
            is_first=flat.pop("first"),
            **flat,
        )
