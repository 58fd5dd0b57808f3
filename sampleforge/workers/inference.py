"""The sources of an actor's actions: inline inference in the actor, or a policy worker (remote).

Both have the same interface, so the actor's loop is independent of the choice.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.algos.policy import Policy
from sampleforge.rollouts.requests import VALUE, InferenceRequests
from sampleforge.rollouts.slots import TrajectorySlots


class Inference(Protocol):
    """Computes the actions of one actor's splits. ``state`` float32 [splits, rows, S] is their
    recurrent state; same-step environments write their final observations into the leaves of
    ``final_obs`` [splits, rows, ...]."""

    state: npt.NDArray[np.float32]
    final_obs: dict[str, npt.NDArray[np.generic]]

    def start(self) -> None: ...

    def ask(self, split: int, slot: int, t: int) -> None:
        """Request that the action columns at (slot, t) are written, for obs[t]."""

    def ask_final(self, split: int, slot: int, t: int) -> None:
        """Request that ``final_value`` at (slot, t) is written, for the split's final
        observations."""

    def answer(self) -> None:
        """Answer the requests of all agents of a split, if they are answered together."""

    def is_answered(self, split: int) -> bool: ...


class InlineInference:
    """Inference in the actor itself, which computes the actions when they are requested."""

    def __init__(
        self,
        make_policy: Callable[[], Policy],
        slots: TrajectorySlots,
        splits: int,
        actor: int,
        members: int = 1,
    ) -> None:
        """``members``: of the population whose splits the actor has in turn. The policy is that of
        one of them, and the numbers of its env rows are those of a run with that one alone."""
        self._make_policy = make_policy
        self._slots = slots
        rows = slots.shape.rows
        streams = [(actor * splits + split) // members for split in range(splits)]
        self._rows = [torch.arange(rows) + stream * rows for stream in streams]
        self.state = np.zeros((splits, rows, slots.shape.state_size), np.float32)
        final = slots.shape.spec.observations if slots.final_value is not None else {}
        self.final_obs = {
            name: np.zeros((splits, rows, *leaf.shape), leaf.dtype) for name, leaf in final.items()
        }

    def start(self) -> None:
        self._policy = self._make_policy()

    def ask(self, split: int, slot: int, t: int) -> None:
        slots, policy = self._slots, self._policy
        policy.refresh()
        obs = {name: leaf[slot, t] for name, leaf in slots.obs.items()}
        for name, stacks in slots.stacks.items():
            obs[name] = stacks.read_rows(np.array([slot]), np.array([t])).numpy()
        acted = policy.act_on_arrays(
            obs, self.state[split], slots.first[slot, t], self._rows[split]
        )
        for name, action in acted.actions.items():
            slots.actions[name][slot, t] = action
        for name, column in acted.extras.items():
            slots.extras[name][slot, t] = column
        slots.version[slot, t] = policy.version
        if self.state.shape[-1]:
            self.state[split] = acted.state

    def ask_final(self, split: int, slot: int, t: int) -> None:
        assert self._slots.final_value is not None
        obs = {name: torch.from_numpy(leaf[split]) for name, leaf in self.final_obs.items()}
        values = self._policy.values(obs, torch.from_numpy(self.state[split]))
        self._slots.final_value[slot, t] = values.numpy()

    def answer(self) -> None:
        """Do nothing: `ask` answers at once."""

    def is_answered(self, split: int) -> bool:
        return True


class RemoteInference:
    """Inference in a policy worker; meanwhile the actor steps its other splits."""

    def __init__(self, requests: InferenceRequests, actor: int) -> None:
        self._requests = requests
        self._actor = actor
        self._acting = [False] * requests.splits
        """Of each split, whether a request for actions is open."""

    def start(self) -> None:
        # The policy worker may still write answers to requests of a killed predecessor into the
        # slots. Wait for these.
        while not all(map(self.is_answered, range(self._requests.splits))):
            sleep(0.001)
        self.state = np.zeros_like(self._requests.state[self._actor])
        self.final_obs = {
            name: leaf[self._actor] for name, leaf in self._requests.final_obs.items()
        }

    def ask(self, split: int, slot: int, t: int) -> None:
        self._send_state(split)
        self._acting[split] = True
        self._requests.ask(self._actor, split, slot, t)

    def ask_final(self, split: int, slot: int, t: int) -> None:
        self._send_state(split)
        self._requests.ask(self._actor, split, slot, t, VALUE)

    def answer(self) -> None:
        """Do nothing: the policy worker answers."""

    def _send_state(self, split: int) -> None:
        if self.state.shape[-1]:
            self._requests.state[self._actor, split] = self.state[split]

    def is_answered(self, split: int) -> bool:
        if not self._requests.is_answered(self._actor, split):
            return False
        if self._acting[split]:
            self._acting[split] = False
            if self.state.shape[-1]:
                self.state[split] = self._requests.next_state[self._actor, split]
        return True
