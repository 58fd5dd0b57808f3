"""Inline inference that answers the requests of several splits, or agents, with one forward
pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.workers.inference import InlineInference


class BatchedInference(InlineInference):
    """Collects requests until `answer`, which answers all of them with one forward pass."""

    def start(self) -> None:
        super().start()
        self._asked: dict[int, tuple[int, int]] = {}

    def ask(self, split: int, slot: int, t: int) -> None:
        self._asked[split] = slot, t

    def is_answered(self, split: int) -> bool:
        return split not in self._asked

    def answer(self) -> None:
        """Answer all open requests."""
        if not self._asked:
            return
        slots, policy = self._slots, self._policy
        splits = list(self._asked)
        asked = np.array(list(self._asked.values()))
        at = asked[:, 0], asked[:, 1]
        self._asked.clear()
        policy.refresh()
        obs = {name: _flat(leaf[at]) for name, leaf in slots.obs.items()}
        for name, stacks in slots.stacks.items():
            obs[name] = stacks.read_rows(*at).numpy()
        numbers = torch.cat([self._rows[split] for split in splits])
        acted = policy.act_on_arrays(
            obs, _flat(self.state[splits]), _flat(slots.first[at]), numbers
        )
        each = (len(splits), slots.shape.rows)
        for name, action in acted.actions.items():
            slots.actions[name][at] = action.reshape(*each, *action.shape[1:])
        for name, column in acted.extras.items():
            slots.extras[name][at] = column.reshape(*each, *column.shape[1:])
        slots.version[at] = policy.version
        self.state[splits] = acted.state.reshape(*each, acted.state.shape[-1])


def _flat(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array [n, rows, ...] as [n * rows, ...]."""
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
