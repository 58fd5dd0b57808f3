"""Inference requests from actors to policy workers, in shared memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sampleforge.rollouts.slots import SlotShape
from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.wakeup import Wakeup

ACT, VALUE = 0, 1
"""The kinds of a request: actions for obs[t], or values of the final observations of step t."""


class InferenceRequests:
    """The inference requests between actors and the policy workers of one policy.

    An actor writes its request and increments ``asked`` of its split; the policy worker that serves
    the actor writes the answer into the slot and increments ``answered``. Each counter has one
    writer. No observation is sent: it is in the slot already. The actor writes the recurrent state
    before the request (``state`` [actors, splits, rows, S]), the policy worker the one after it
    (``next_state``). Actors of same-step environments also write final observations
    (``final_obs``).

    A policy worker never writes what it reads. So the successor of a killed policy worker can
    answer the open requests from the beginning.
    """

    def __init__(
        self,
        shape: SlotShape,
        splits: int,
        actor_wakeups: list[Wakeup],
        policy_wakeups: list[Wakeup],
    ) -> None:
        actors = len(actor_wakeups)
        each = ((actors, splits), "int64")
        per_split = (actors, splits, shape.rows)
        final = shape.spec.observations if shape.spec.autoreset == "same_step" else {}
        self._arrays = SharedArrays(
            {
                **{name: each for name in ("asked", "answered", "slot", "t", "kind")},
                "state": ((*per_split, shape.state_size), "float32"),
                "next_state": ((*per_split, shape.state_size), "float32"),
                **{
                    f"final/{n}": ((*per_split, *leaf.shape), leaf.dtype)
                    for n, leaf in final.items()
                },
            }
        )
        self._final_names = list(final)
        self._actor_wakeups = actor_wakeups
        self._policy_wakeups = policy_wakeups
        self._attach()

    @property
    def arrays(self) -> SharedArrays:
        return self._arrays

    def _attach(self) -> None:
        self.slot: npt.NDArray[np.int64] = self._arrays["slot"]
        self.splits = self.slot.shape[1]
        self.t: npt.NDArray[np.int64] = self._arrays["t"]
        self.kind: npt.NDArray[np.int64] = self._arrays["kind"]
        self.state: npt.NDArray[np.float32] = self._arrays["state"]
        self.next_state: npt.NDArray[np.float32] = self._arrays["next_state"]
        self.final_obs = {name: self._arrays[f"final/{name}"] for name in self._final_names}
        self._asked: npt.NDArray[np.int64] = self._arrays["asked"]
        self._answered: npt.NDArray[np.int64] = self._arrays["answered"]

    def served_by(self, policy_worker: int) -> npt.NDArray[np.intp]:
        """Return the actors that a policy worker serves, [N]."""
        actors, workers = len(self._actor_wakeups), len(self._policy_wakeups)
        return np.arange(policy_worker, actors, workers, dtype=np.intp)

    def ask(self, actor: int, split: int, slot: int, t: int, kind: int = ACT) -> None:
        """Request actions, or values of final observations, at (slot, t). Called by the actor."""
        self.slot[actor, split] = slot
        self.t[actor, split] = t
        self.kind[actor, split] = kind
        self._asked[actor, split] += 1
        self._policy_wakeups[actor % len(self._policy_wakeups)].set()

    def is_answered(self, actor: int, split: int) -> bool:
        """Return whether the latest request of this split has been answered. Called by the
        actor."""
        return bool(self._asked[actor, split] == self._answered[actor, split])

    def waiting(
        self, actors: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return the open requests of ``actors`` as index pairs (actor [N], split [N]). Called by
        the policy worker."""
        rows, splits = np.nonzero(self._asked[actors] != self._answered[actors])
        return actors[rows], splits

    def answer(self, actors: npt.NDArray[np.intp], splits: npt.NDArray[np.intp]) -> None:
        """Mark these requests as answered, after writing the answers. Called by the policy
        worker."""
        self._answered[actors, splits] = self._asked[actors, splits]
        for actor in set(actors.tolist()):
            self._actor_wakeups[actor].set()

    def __getstate__(self) -> tuple[SharedArrays, list[str], list[Wakeup], list[Wakeup]]:
        return self._arrays, self._final_names, self._actor_wakeups, self._policy_wakeups

    def __setstate__(
        self, state: tuple[SharedArrays, list[str], list[Wakeup], list[Wakeup]]
    ) -> None:
        self._arrays, self._final_names, self._actor_wakeups, self._policy_wakeups = state
        self._attach()
