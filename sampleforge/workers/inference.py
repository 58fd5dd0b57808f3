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

from sampleforge.algorithms.acting import Acted, Acting
from sampleforge.rollouts.requests import VALUE, InferenceRequests
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.staging import Staging, staging_to

Places = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
"""Slots and time steps, int64 [n] each."""


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
    forward pass; otherwise each is answered at once. On a GPU, observations go there from the
    slots, which it reads itself, and one copy brings back all answers. ``members``: the number of
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
        self._staging: Staging | None = None
        self.state = np.zeros((splits, rows, slots.shape.state_size), np.float32)
        final = slots.shape.spec.observations if slots.final_value is not None else {}
        self.final_obs = {
            name: np.zeros((splits, rows, *leaf.shape), leaf.dtype) for name, leaf in final.items()
        }

    def start(self) -> None:
        self._acting = self._new_acting()
        if self._device.type != "cpu":
            self._staging = staging_to(self._device, [self._slots.arrays])
            self._rows = [rows.to(self._device) for rows in self._rows]

    def ask(self, split: int, slot: int, t: int) -> None:
        if not self._together and self._staging is None:
            return self._answer_one(split, slot, t)
        self._asked[split] = slot, t
        if not self._together:
            self.answer()

    def ask_final(self, split: int, slot: int, t: int) -> None:
        assert self._slots.final_value is not None
        state = self.state[split : split + 1]
        leaves = {name: leaf[split : split + 1] for name, leaf in self.final_obs.items()}
        if self._staging is None:
            obs = {name: torch.from_numpy(leaf[0]) for name, leaf in leaves.items()}
            values = self._acting.values(obs, torch.from_numpy(state[0])).numpy()
        else:
            put = self._staging.put
            obs = {name: put(leaf) for name, leaf in leaves.items()}
            (values,) = self._staging.back([self._acting.values(obs, put(state))])
        self._slots.final_value[slot, t] = values

    def answer(self) -> None:
        """Answer all open requests with one forward pass."""
        if not self._asked:
            return
        slots, acting, staging = self._slots, self._acting, self._staging
        splits = list(self._asked)
        asked = np.array(list(self._asked.values()))
        at = asked[:, 0], asked[:, 1]
        self._asked.clear()
        acting.refresh()
        numbers = torch.cat([self._rows[split] for split in splits])
        if staging is not None:
            obs, first = gathered(slots, at, staging, self._device)
            acted = acting.act(obs, staging.put(self.state[splits]), first, numbers)
            after = scatter(slots, at, staging, acted)
        else:
            each = {name: _flat(leaf[at]) for name, leaf in slots.obs.items()}
            for name, stacks in slots.stacks.items():
                each[name] = stacks.read_rows(*at).numpy()
            known = _flat(self.state[splits]), _flat(slots.first[at])
            found = acting.act_on_arrays(each, *known, numbers)
            shape = len(splits), slots.shape.rows
            for name, action in found.actions.items():
                slots.actions[name][at] = action.reshape(*shape, *action.shape[1:])
            for name, column in found.extras.items():
                slots.extras[name][at] = column.reshape(*shape, *column.shape[1:])
            after = found.state
        slots.version[at] = acting.version
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


def gathered(
    slots: TrajectorySlots, at: Places, staging: Staging, device: torch.device
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the observations [n * rows, ...] and beginnings bool [n * rows] at n places (slot, t)
    of the slots, on ``device``."""
    obs = {name: staging.gather(leaf, *at) for name, leaf in slots.obs.items()}
    for name, stacks in slots.stacks.items():
        obs[name] = stacks.read_rows(*at).to(device, non_blocking=True)
    return obs, staging.gather(slots.first, *at)


def scatter(
    slots: TrajectorySlots, at: Places, staging: Staging, acted: Acted[torch.Tensor]
) -> npt.NDArray[np.float32]:
    """Write the actions and columns of n * rows rows to n places (slot, t); return the next
    recurrent states [n * rows, S]. One copy brings all of them from the device."""
    answers = [*acted.actions.values(), *acted.extras.values()]
    *on_host, after = staging.back([*answers, acted.state])
    columns = [slots.actions[n] for n in acted.actions] + [slots.extras[n] for n in acted.extras]
    for column, answer in zip(columns, on_host, strict=True):
        column[at] = answer.reshape(len(at[0]), slots.shape.rows, *answer.shape[1:])
    states: npt.NDArray[np.float32] = after
    return states


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
