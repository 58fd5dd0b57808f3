"""Inference of a rank on its own GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from sampleforge.algos.policy import Policy
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.staging import staging_to


class DeviceInference:
    """Inference in the actor's own process on ``device``, where its policy has its weights; an
    `sampleforge.workers.inference.Inference`.

    Observations go from the slots, which a GPU reads itself, to the device, and one copy brings
    back all answers, as in a policy worker. ``rank``: of the actor.
    """

    def __init__(
        self,
        make_policy: Callable[[], Policy],
        slots: TrajectorySlots,
        splits: int,
        rank: int,
        device: torch.device,
    ) -> None:
        self._make_policy = make_policy
        self._slots = slots
        self._device = device
        rows = slots.shape.rows
        self._first_row = [(rank * splits + split) * rows for split in range(splits)]
        self.state = np.zeros((splits, rows, slots.shape.state_size), np.float32)
        final = slots.shape.spec.observations if slots.final_value is not None else {}
        self.final_obs = {
            name: np.zeros((splits, rows, *leaf.shape), leaf.dtype) for name, leaf in final.items()
        }

    def start(self) -> None:
        self._policy = self._make_policy()
        self._staging = staging_to(self._device, [self._slots.arrays])
        rows = torch.arange(self._slots.shape.rows)
        self._rows = [(rows + first).to(self._device) for first in self._first_row]

    def ask(self, split: int, slot: int, t: int) -> None:
        slots, policy, staging = self._slots, self._policy, self._staging
        policy.refresh()
        at = np.array([slot]), np.array([t])
        obs = {name: staging.gather(leaf, *at) for name, leaf in slots.obs.items()}
        for name, stacks in slots.stacks.items():
            obs[name] = stacks.read_rows(*at).to(self._device, non_blocking=True)
        state = staging.put(self.state[split : split + 1])
        acted = policy.act(obs, state, staging.gather(slots.first, *at), self._rows[split])
        columns = [slots.actions[name] for name in acted.actions]
        columns += [slots.extras[name] for name in acted.extras]
        answers = [*acted.actions.values(), *acted.extras.values()]
        *on_host, after = staging.back([*answers, acted.state])
        for column, answer in zip(columns, on_host, strict=True):
            column[slot, t] = answer
        slots.version[slot, t] = policy.version
        self.state[split] = after

    def ask_final(self, split: int, slot: int, t: int) -> None:
        assert self._slots.final_value is not None
        staging, part = self._staging, slice(split, split + 1)
        obs = {name: staging.put(leaf[part]) for name, leaf in self.final_obs.items()}
        (values,) = staging.back([self._policy.values(obs, staging.put(self.state[part]))])
        self._slots.final_value[slot, t] = values

    def answer(self) -> None:
        """Do nothing: `ask` answers at once."""

    def is_answered(self, split: int) -> bool:
        return True
