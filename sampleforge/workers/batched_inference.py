"""Inline inference that answers the requests of several splits, or agents, with one forward
pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.workers.inference import InlineInference


class BatchedInference(InlineInference):
    """Collects requests until `answer`, which answers all of them with one forward pass. The slots
    must store whole observations, not single frames."""

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
        numbers = torch.cat([self._rows[split] for split in splits])
        acted = policy.act(obs, _flat(self.state[splits]), _flat(slots.first[at]), numbers)
        each = (len(splits), slots.shape.rows)
        for name, action in acted.actions.items():
            slots.actions[name][at] = action.numpy().reshape(*each, *action.shape[1:])
        for name, column in acted.extras.items():
            slots.extras[name][at] = column.numpy().reshape(each)
        slots.version[at] = policy.version
        self.state[splits] = acted.state.numpy().reshape(*each, acted.state.shape[-1])


def _flat(array: npt.NDArray[Any]) -> torch.Tensor:
    """Return an array [n, rows, ...] as a tensor [n * rows, ...]."""
    return torch.from_numpy(array).flatten(0, 1)
