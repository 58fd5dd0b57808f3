"""Frozen policies: seats that act with snapshots of a policy, are not trained and fill no slot.

Which snapshots there are, and how likely each of them is, the `SnapshotPool` says. Here one
opponent is drawn for every row where a game begins (see `sampleforge.env.games`), for all seats of
the row that the policy plays; and the rows of each snapshot are inferred together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.env.vector import StepOut
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from sampleforge.models.stacked import NetworkOfEachRow, network_of_each_row
from sampleforge.shared.records import NO_SNAPSHOT
from sampleforge.shared.snapshots import LATEST, SnapshotPool
from sampleforge.workers.stream import Stream

Array = npt.NDArray[Any]


class FrozenInference:
    """The models of one actor for the snapshots of a pool: one for each snapshot that a row plays
    with. Actions are drawn from an actor-critic's distribution; a Q-network's are greedy.
    ``new_seed`` returns the seed of all draws in this life of the actor."""

    def __init__(
        self,
        pool: SnapshotPool,
        new_model: Callable[[], ActorCritic | QNetwork],
        new_seed: Callable[[], int],
    ) -> None:
        self._pool = pool
        self._new_model = new_model
        self._new_seed = new_seed

    def start(self) -> None:
        seed = self._new_seed()
        self._draws = np.random.default_rng(seed)
        self._actions = torch.Generator().manual_seed(seed)
        self._models: dict[int, ActorCritic | QNetwork] = {}
        self._networks: NetworkOfEachRow | None = None
        self._playing: dict[int, npt.NDArray[np.int64]] = {}
        self._followed = -1
        self.state_size = self._new_model().state_size

    def add(self, split: int, rows: int) -> npt.NDArray[np.int64]:
        """Return the array of the snapshots, int64 [rows], that play in the rows of ``split``."""
        self._playing[split] = np.full(rows, NO_SNAPSHOT, np.int64)
        return self._playing[split]

    def draw(self, snapshots: npt.NDArray[np.int64], rows: npt.NDArray[np.intp]) -> None:
        """Draw a snapshot for each of ``rows``, and load those that are new."""
        entries = self._pool.draw(self._draws, len(rows))
        for entry in sorted(set(entries.tolist())):
            snapshots[rows[entries == entry]] = self._load(entry)

    def _load(self, entry: int) -> int:
        """Return the snapshot of ``entry``, whose model is ready afterwards."""
        snapshot = self._pool.snapshot(entry)
        if snapshot not in self._models:
            self._forget()
            model = self._new_model()
            snapshot = self._pool.read(entry, model.state_dict())
            self._models[snapshot] = model.eval()
            self._networks = None
        return snapshot

    def _forget(self) -> None:
        """Drop the models of snapshots that have left the pool and that no row plays with."""
        pool = self._pool
        kept = {LATEST, *(pool.snapshot(entry) for entry in range(pool.capacity))}
        kept.update(*(snapshots.tolist() for snapshots in self._playing.values()))
        self._models = {n: model for n, model in self._models.items() if n in kept}

    def _follow(self) -> NetworkOfEachRow:
        """Return the networks of the loaded snapshots, in ascending order of their numbers. Copy
        the newest weights of the policy that is trained, if there are newer ones."""
        is_new = self._has_newer()
        if is_new:
            entry = self._pool.capacity
            self._followed = self._pool.published(entry)
            self._pool.read(entry, self._models[LATEST].state_dict())
        if self._networks is None:
            self._models = dict(sorted(self._models.items()))
            self._loaded = np.array(list(self._models))
            self._networks = network_of_each_row(list(self._models.values()))
        elif is_new:
            self._networks.follow(int(np.searchsorted(self._loaded, LATEST)))
        return self._networks

    def _has_newer(self) -> bool:
        """Return whether rows play with the newest weights, of which there are newer ones."""
        if LATEST not in self._models:
            return False
        return self._pool.published(self._pool.capacity) != self._followed

    def answer(self) -> None:
        """Do nothing: `act` answers at once."""

    @torch.inference_mode()
    def act(
        self, obs: dict[str, Array], state: Array, first: Array, snapshots: npt.NDArray[np.int64]
    ) -> dict[str, Array]:
        """Return actions, leaf -> [rows, ...], for observation leaves [rows, ...]; ``state``
        float32 [rows, S] becomes the next recurrent state. ``snapshots`` int64 [rows]."""
        networks = self._follow()
        leaves = {name: torch.from_numpy(leaf) for name, leaf in obs.items()}
        parameters, after = networks.policy_step(
            leaves,
            torch.from_numpy(state),
            torch.from_numpy(first),
            torch.from_numpy(np.searchsorted(self._loaded, snapshots)),
        )
        if state.shape[-1]:
            state[...] = after.numpy()
        model = next(iter(self._models.values()))  # of the same layout as all others
        actions = model.distribution(parameters, leaves).sample(self._actions)
        return {name: leaf.numpy() for name, leaf in actions.items()}


@dataclass(frozen=True, eq=False)
class FrozenPort:
    """The connection of one actor to a frozen policy. ``policy``: its index, after those of the
    policy groups that are trained."""

    policy: int
    inference: FrozenInference


class Opponents:
    """The opponents in the rows of a split: one snapshot for each row, with which a frozen policy
    acts in all seats that it plays there.

    ``snapshots`` int64 [rows]: the snapshot of each row. ``whole`` bool [rows]: whether it has
    played the current game of the row from the beginning, and in the same seats.
    """

    def __init__(self, port: FrozenPort, split: int, rows: int) -> None:
        self.policy = port.policy
        self.inference = port.inference
        self.snapshots = port.inference.add(split, rows)
        self.whole = np.zeros(rows, np.bool_)

    def begin_games(self, rows: npt.NDArray[np.intp]) -> None:
        """Draw opponents for ``rows``, in which a game begins."""
        self.inference.draw(self.snapshots, rows)
        self.whole[rows] = True

    def change_seats(self) -> None:
        """Draw opponents for all rows, also in the middle of a game, because other seats of the
        split are played by frozen policies from now on."""
        self.inference.draw(self.snapshots, np.arange(len(self.snapshots)))
        self.whole[:] = False


class FrozenStream:
    """A seat of a split while a frozen policy plays it.

    ``seat`` is the stream that fills slots when a trained policy plays the seat; the two share the
    observation with which the next step begins. ``opponents``: the snapshots that play the rows,
    which all seats of the split with the same frozen policy share.
    """

    def __init__(self, seat: Stream, opponents: Opponents) -> None:
        rows = seat.env.num_rows
        self.seat = seat
        self.env = seat.env
        self.policy = opponents.policy
        self.opponents = opponents
        self._inference = opponents.inference
        self._state = np.zeros((rows, opponents.inference.state_size), np.float32)
        self._state_of = opponents.snapshots.copy()
        """The snapshots of which the recurrent state is."""
        self._reward = np.zeros(rows, np.float32)
        self._flags = np.zeros((3, rows), np.bool_)
        self._actions: dict[str, Array] = {}

    def begin(self, *, taken_over: bool) -> None:
        """Begin a rollout. If the seat is taken over from another policy, its recurrent state
        begins at zero."""
        self.seat.leave()
        if taken_over:
            self._state[:] = 0.0

    def ask(self) -> None:
        """Compute the actions. The recurrent state of a row begins at zero with another
        snapshot."""
        snapshots = self.opponents.snapshots
        if self._state.size:
            self._state[snapshots != self._state_of] = 0.0
            self._state_of[:] = snapshots
        first = self.seat.carry_first
        self._actions = self._inference.act(self.seat.carry, self._state, first, snapshots)

    def is_answered(self) -> bool:
        return True

    def actions(self) -> dict[str, Array]:
        """Return the actions of the last `ask`."""
        return self._actions

    def step_out(self) -> StepOut:
        """Return the arrays into which the environments write a step."""
        terminated, truncated, valid = self._flags
        seat = self.seat
        return StepOut(self._reward, terminated, truncated, valid, seat.carry, seat.carry_first)
