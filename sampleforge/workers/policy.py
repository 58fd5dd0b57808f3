"""The policy worker: batched inference for the actors it serves."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, perf_counter

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.algorithms.acting import Acting
from sampleforge.rollouts.requests import ACT, InferenceRequests
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.staging import begin_on
from sampleforge.workers.staged_acting import StagedActing, fill, gather, scatter
from sampleforge.workers.worker import MODEL_TIMEOUT, EventDriven, Post

Index = npt.NDArray[np.intp]


class PolicyWorker(EventDriven):
    """Answers the open requests of its actors with one forward pass: all, or on a CUDA device as
    many as there is a graph for (the others come first in the next one). The successor of a killed
    policy worker answers the open requests again; it draws other actions, because no actor has read
    the first ones."""

    def __init__(
        self,
        index: int,
        new_acting: Callable[[], Acting],
        slots: TrajectorySlots,
        requests: InferenceRequests,
        post: Post,
        device: torch.device,
        members: int = 1,
    ) -> None:
        super().__init__(f"policy {index}", post)
        self._new_acting = new_acting
        self._slots = slots
        self._requests = requests
        self._actors = requests.served_by(index)
        self._device = device
        self._members = members

    def start(self) -> None:
        super().start()
        self._count["heartbeat"][0] = monotonic() + MODEL_TIMEOUT
        begin_on(self._device)
        self._acting = self._new_acting()
        most = len(self._actors) * self._requests.splits
        self._staged = StagedActing(
            self._acting, self._slots.shape, self._device, most, spins=self._post.spin > 0
        )
        self._beat()

    def step(self) -> bool:
        self._beat()
        actors, splits = self._requests.waiting(self._actors)
        if not len(actors):
            return False
        started = perf_counter()
        count = self._staged.at_once(len(actors))
        if count < len(actors):  # the first of the others comes first in the next step
            self._actors = np.roll(self._actors, -int(np.argmax(self._actors == actors[count])))
            actors, splits = actors[:count], splits[:count]
        self._acting.refresh()
        acting = self._requests.kind[actors, splits] == ACT
        if acting.any():
            self._act(actors[acting], splits[acting])
        if not acting.all():
            self._value(actors[~acting], splits[~acting])
        self._requests.answer(actors, splits)
        self._count["infer_s"] += perf_counter() - started
        self._count["forwards"] += 1
        self._count["rows"] += len(actors) * self._slots.shape.rows
        return True

    def _act(self, actors: Index, splits: Index) -> None:
        """Answer requests for actions: one gather, one forward pass, one write per column."""
        started = perf_counter()
        slots, requests, rows = self._slots, self._requests, self._slots.shape.rows
        at = requests.slot[actors, splits], requests.t[actors, splits]
        inputs = self._staged.inputs(len(actors))
        gather(slots, at, inputs)
        recurrent = slots.shape.state_size > 0
        if recurrent:
            fill(inputs.state, requests.state[actors, splits])
        fill(inputs.rows, self._row_numbers(actors, splits))
        self._count["gather_s"] += perf_counter() - started
        acted = self._staged.act(inputs)
        scatter(slots, at, acted)
        slots.version[at] = self._acting.version
        if recurrent:
            requests.next_state[actors, splits] = acted.state.reshape(len(actors), rows, -1)

    def _value(self, actors: Index, splits: Index) -> None:
        """Answer requests for the values of final observations of same-step environments."""
        slots, requests = self._slots, self._requests
        assert slots.final_value is not None
        inputs = self._staged.inputs(len(actors))
        for name, leaf in requests.final_obs.items():
            fill(inputs.obs[name], leaf[actors, splits])
        fill(inputs.state, requests.state[actors, splits])
        at = requests.slot[actors, splits], requests.t[actors, splits]
        slots.final_value[at] = self._staged.values(inputs).reshape(len(actors), -1)

    def _row_numbers(self, actors: Index, splits: Index) -> Index:
        """Return the numbers of the env rows in the run, int64 [requests, rows]; see
        `LocalInference` for those of a population."""
        rows = self._slots.shape.rows
        first: Index = (actors * self._requests.splits + splits) // self._members * rows
        return first[:, None] + np.arange(rows, dtype=np.intp)
