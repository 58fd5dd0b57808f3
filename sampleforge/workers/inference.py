"""The sources of an actor's actions: inference in the actor itself (local), or a policy worker
(remote).

Both have the same interface, so the actor's loop is independent of the choice.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.algorithms.acting import Acting
from sampleforge.rollouts.requests import VALUE, InferenceRequests
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.staging import begin_on
from sampleforge.workers.staged_acting import StagedActing, fill, gather, scatter


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


class LocalInference:
    """Inference in the actor itself, whose policy has its weights on ``device``.

    With ``together``, requests are collected until `answer`, which answers all of them with one
    forward pass; otherwise each is answered at once. ``members``: the number of
    members of the population whose splits the actor has in turn. The policy is that of one of them,
    and the numbers of its env rows are those of a run with that one alone.
    """

    def __init__(
        self,
        new_acting: Callable[[], Acting],
        slots: TrajectorySlots,
        splits: int,
        actor: int,
        members: int = 1,
        *,
        together: bool = False,
        device: str = "cpu",
    ) -> None:
        self._new_acting = new_acting
        self._slots = slots
        self._together = together
        self._device = torch.device(device)
        rows = slots.shape.rows
        streams = [(actor * splits + split) // members for split in range(splits)]
        self._rows = [torch.arange(rows) + stream * rows for stream in streams]
        self._asked: dict[int, tuple[int, int]] = {}
        self._staged: StagedActing | None = None
        self.state = np.zeros((splits, rows, slots.shape.state_size), np.float32)
        final = slots.shape.spec.observations if slots.final_value is not None else {}
        self.final_obs = {
            name: np.zeros((splits, rows, *leaf.shape), leaf.dtype) for name, leaf in final.items()
        }

    def start(self) -> None:
        begin_on(self._device)
        self._acting = self._new_acting()
        if self._device.type != "cpu":
            shape, splits = self._slots.shape, len(self.state)
            self._staged = StagedActing(self._acting, shape, self._device, splits)

    def ask(self, split: int, slot: int, t: int) -> None:
        if not self._together and self._staged is None:
            return self._answer_one(split, slot, t)
        self._asked[split] = slot, t
        if not self._together:
            self.answer()

    def ask_final(self, split: int, slot: int, t: int) -> None:
        assert self._slots.final_value is not None
        obs, state = {n: leaf[split] for n, leaf in self.final_obs.items()}, self.state[split]
        if self._staged is None:
            leaves = {name: torch.from_numpy(leaf) for name, leaf in obs.items()}
            values = self._acting.values(leaves, torch.from_numpy(state)).numpy()
        else:
            inputs = self._staged.inputs(1)
            for name, leaf in obs.items():
                fill(inputs.obs[name], leaf)
            fill(inputs.state, state)
            values = self._staged.values(inputs)
        self._slots.final_value[slot, t] = values

    def answer(self) -> None:
        """Answer all open requests with one forward pass."""
        if not self._asked:
            return
        slots, acting, staged = self._slots, self._acting, self._staged
        splits = list(self._asked)
        asked = np.array(list(self._asked.values()))
        at = asked[:, 0], asked[:, 1]
        self._asked.clear()
        acting.refresh()
        numbers = torch.cat([self._rows[split] for split in splits])
        if staged is not None:
            inputs = staged.inputs(len(splits))
            gather(slots, at, inputs)
            fill(inputs.state, self.state[splits])
            inputs.rows.copy_(numbers)
            acted = staged.act(inputs)
        else:
            each = {name: _flat(leaf[at]) for name, leaf in slots.obs.items()}
            for name, stacks in slots.stacks.items():
                each[name] = stacks.read_rows(*at).numpy()
            known = _flat(self.state[splits]), _flat(slots.first[at])
            acted = acting.act_on_arrays(each, *known, numbers)
        scatter(slots, at, acted)
        slots.version[at] = acting.version
        after = acted.state
        self.state[splits] = after.reshape(len(splits), slots.shape.rows, after.shape[-1])

    def is_answered(self, split: int) -> bool:
        return split not in self._asked

    def _answer_one(self, split: int, slot: int, t: int) -> None:
        """Answer one request on the CPU, without what several of them need."""
        slots, acting = self._slots, self._acting
        acting.refresh()
        obs = {name: leaf[slot, t] for name, leaf in slots.obs.items()}
        for name, stacks in slots.stacks.items():
            obs[name] = stacks.read_rows(np.array([slot]), np.array([t])).numpy()
        acted = acting.act_on_arrays(
            obs, self.state[split], slots.first[slot, t], self._rows[split]
        )
        for name, action in acted.actions.items():
            slots.actions[name][slot, t] = action
        for name, column in acted.extras.items():
            slots.extras[name][slot, t] = column
        slots.version[slot, t] = acting.version
        if self.state.shape[-1]:
            self.state[split] = acted.state


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


def _flat(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array [n, rows, ...] as [n * rows, ...]."""
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
