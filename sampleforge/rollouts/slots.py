"""Trajectory slots: the storage of every rollout, from the actor that writes it to the learner.

Ownership of a slot:

    FREE -> WRITING (one actor; its policy worker between request and reply)
         -> READY -> READING (one learner) -> FREE

A column never has two writers at a time. Ownership moves only through an exchange
(`sampleforge.rollouts.exchange`), without locks. A slot's generation rises with each life of the
slot: a worker with (slot, generation) of an earlier life can tell that the slot has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import torch

from sampleforge.rollouts.sequence_shape import SequenceShape
from sampleforge.rollouts.stacks import StackColumn
from sampleforge.shared.arrays import Layout, SharedArrays, layout_bytes
from sampleforge.spec import ArraySpec, EnvSpec


class Owner(IntEnum):
    """The owner of a slot; see the head of this file."""

    FREE = 0
    WRITING = 1
    READY = 2
    READING = 3
    STORED = 4
    """In the replay, until the slot is evicted."""


PER_ROLLOUT = ("state", "env_row")
"""Columns [rows, ...] with one entry per rollout instead of one per step."""
ACTOR_CRITIC = {"log_prob": "float32", "value": "float32"}
"""The extra columns of an actor-critic: log-probability and value by the behaviour policy."""

RECORDED = ("parameters", "independent")
"""The extra columns that a policy writes for a recording; see `TrajectorySlots`."""


@dataclass(frozen=True)
class SlotShape:
    """The contents of a slot: a rollout of ``rollout`` (T) env steps of ``rows`` rows.

    ``extras``: columns [T, rows] that the policy writes beside the actions, name -> dtype.
    ``finished``: those that are written when the rollout is complete, before it is handed over.
    ``single_frames``: leaves that are stacks of frames are stored as single frames
    (`sampleforge.rollouts.stacks`). ``frame_buffers``: number of slots that may have raw frames at
    a time (None: all), see `sampleforge.replay.compressed`. ``sequences``: the sequences of a
    replay for a recurrent core; ``rollout`` then includes the overlap. ``variable``: the number of
    slots of a batch varies. ``final_obs``: the final observations of truncated episodes are stored
    under same-step autoreset, where ``obs`` does not hold them; they take as much memory as
    ``obs``. ``parameters``: number of parameters of the distribution that an action is drawn from,
    which are stored for a recording (0: nothing is recorded), and with them the final observations
    of all episodes under same-step autoreset.
    """

    rollout: int
    rows: int
    spec: EnvSpec
    state_size: int
    extras: Mapping[str, str] = field(default_factory=lambda: ACTOR_CRITIC)
    single_frames: bool = False
    frame_buffers: int | None = None
    sequences: SequenceShape | None = None
    variable: bool = False
    final_obs: bool = False
    parameters: int = 0
    finished: Mapping[str, str] = field(default_factory=dict)

    @property
    def drops_truncated(self) -> bool:
        """Whether the observation that a truncated step is bootstrapped from is not kept."""
        return self.spec.autoreset == "same_step" and not self.final_obs

    @property
    def env_steps(self) -> int:
        return self.rollout * self.rows

    @property
    def starts(self) -> int:
        """Number of sequences of each row; 1 without sequences."""
        return 1 if self.sequences is None else self.sequences.starts(self.rollout)

    @property
    def items(self) -> int:
        """Number of items that a replay can draw from a slot: transitions, or sequences."""
        return self.env_steps if self.sequences is None else self.starts * self.rows

    @property
    def stacks(self) -> dict[str, ArraySpec]:
        """The observation leaves that are stored as single frames."""
        leaves = self.spec.observations.items()
        return {n: leaf for n, leaf in leaves if self.single_frames and leaf.stack is not None}

    def layout(self, count: int) -> Layout:
        """Return the arrays of ``count`` slots: [count, T+1, rows, ...] for observations (before
        each step and after the last one), [count, T, rows, ...] for the results of steps."""
        before = (count, self.rollout + 1, self.rows)
        step = (count, self.rollout, self.rows)
        arrays: dict[str, tuple[tuple[int, ...], str]] = {}
        for name, leaf in self.spec.observations.items():
            arrays[f"obs/{name}"] = (before + leaf.shape, leaf.dtype)
        for name, leaf in self.stacks.items():
            buffers = count if self.frame_buffers is None else self.frame_buffers
            frames = (buffers, self.rollout + leaf.shape[0], self.rows)
            arrays[f"obs/{name}"] = (frames + leaf.shape[1:], leaf.dtype)
        for name, action in self.spec.actions.items():
            arrays[f"action/{name}"] = (step + action.shape, action.dtype)
        arrays |= {
            **{name: (step, dtype) for name, dtype in {**self.extras, **self.finished}.items()},
            "first": (before, "bool"),
            "version": (step, "int64"),
            "reward": (step, "float32"),
            "terminated": (step, "bool"),
            "truncated": (step, "bool"),
            "valid": (step, "bool"),
            **self._beginnings(count),
            "owner": ((count,), "int32"),
            "generation": ((count,), "int64"),
        }
        if self.stacks:
            arrays["frame_buffer"] = ((count,), "int64")
        if self.spec.autoreset == "same_step":
            arrays["final_value"] = (step, "float32")
            arrays |= self._final_obs(step)
        arrays |= self.recorded(step)
        if self.variable:
            arrays["env_row"] = ((count, self.rows), "int64")
            arrays["ends_batch"] = ((count,), "bool")
        return arrays

    def _final_obs(self, step: tuple[int, ...]) -> Layout:
        """Return the arrays of final observations. Of stacks of frames only the newest frame is
        stored: the others are in ``obs``."""
        if not self.final_obs:
            return {}
        return {
            f"final/{name}": (step + leaf.shape[name in self.stacks :], leaf.dtype)
            for name, leaf in self.spec.observations.items()
        }

    def recorded(self, step: tuple[int, ...]) -> Layout:
        """Return the arrays that only a recording needs; of stacks they have the newest frames."""
        if not self.parameters:
            return {}
        arrays: dict[str, tuple[tuple[int, ...], str]] = {
            "parameters": ((*step, self.parameters), "float32"),
            "independent": (step, "bool"),
        }
        if self.spec.autoreset == "same_step":
            for name, leaf in self.spec.observations.items():
                shape = leaf.shape[leaf.stack is not None :]
                arrays[f"recorded/{name}"] = (step + shape, leaf.dtype)
        return arrays

    def _beginnings(self, count: int) -> Layout:
        """Return the arrays of the recurrent states before the rollout, or, with sequences, of the
        recurrent state before each sequence and its first TD error."""
        if self.sequences is None:
            return {"state": ((count, self.rows, self.state_size), "float32")}
        each = (count, self.starts, self.rows)
        return {
            "states": ((*each, self.state_size), "float32"),
            "sequence_error": (each, "float32"),
            "sequence_usable": (each, "bool"),
        }

    def nbytes(self, count: int) -> int:
        return layout_bytes(self.layout(count))


class TrajectorySlots:
    """``count`` slots in shared memory; columns by name as numpy arrays and as torch tensors.

    ``obs`` are the observation leaves that are stored whole, ``stacks`` those stored as single
    frames.

    The columns are those of `SlotShape.layout`: ``first`` marks observations that begin an episode,
    ``extras`` are the algorithm's own columns, ``version`` is the version of the behaviour policy,
    ``valid`` is False where the environment ignored the action, ``state`` is the recurrent state
    before ``obs[0]``. With sequences there are ``states`` instead, [starts, rows, S] before the
    first step of each. If batches vary, ``env_row`` [rows] is the env row of each row of the
    rollout, and ``ends_batch`` marks the last slot of a batch. ``final_obs`` (if the shape has
    them) holds the observations after steps that a same-step environment truncated, of stacks only
    the newest frame; at other steps it has no meaning.

    For a recording, ``extras`` also has `RECORDED`: "parameters", float32 [T, rows, P], of the
    distribution that an action was drawn from, and "independent", bool [T, rows], whether it was
    drawn from it independently of the steps before. Under same-step autoreset ``recorded_final``
    has the final observations of all episodes.
    """

    def __init__(self, count: int, shape: SlotShape, *, debug: bool = False) -> None:
        self.count = count
        self.shape = shape
        self.debug = debug
        self.arrays = SharedArrays(shape.layout(count))
        self._name_columns()
        if shape.frame_buffers is None:
            self.frame_buffer[:] = np.arange(len(self.frame_buffer))

    def _name_columns(self) -> None:
        stacks, leaves = self.shape.stacks, self.shape.spec.observations
        self.obs = {n: self.arrays[f"obs/{n}"] for n in leaves if n not in stacks}
        self.actions = {n: self.arrays[f"action/{n}"] for n in self.shape.spec.actions}
        self.first = self.arrays["first"]
        self.frame_buffer = self.arrays["frame_buffer"] if stacks else np.empty(0, np.int64)
        self.stacks = {
            name: StackColumn(
                name, leaf, self.arrays.tensor(f"obs/{name}"), self.first, self.frame_buffer
            )
            for name, leaf in stacks.items()
        }
        recorded = RECORDED if self.shape.parameters else ()
        own = (*self.shape.extras, *self.shape.finished, *recorded)
        self.extras = {n: self.arrays[n] for n in own}
        self.version = self.arrays["version"]
        self.reward = self.arrays["reward"]
        self.terminated = self.arrays["terminated"]
        self.truncated = self.arrays["truncated"]
        self.valid = self.arrays["valid"]
        if self.shape.sequences is None:
            self.state = self.arrays["state"]
        else:
            self.states = self.arrays["states"]
            self.sequence_error = self.arrays["sequence_error"]
            self.sequence_usable = self.arrays["sequence_usable"]
        self.owner = self.arrays["owner"]
        self.generation = self.arrays["generation"]
        same_step = self.shape.spec.autoreset == "same_step"
        self.final_value = self.arrays["final_value"] if same_step else None
        kept = leaves if self.shape.final_obs and same_step else {}
        self.final_obs = {name: self.arrays[f"final/{name}"] for name in kept}
        finals = leaves if self.shape.parameters and same_step else {}
        self.recorded_final = {name: self.arrays[f"recorded/{name}"] for name in finals}
        self.keeps_final = bool(self.final_obs or self.recorded_final)
        self.env_row = self.arrays["env_row"] if self.shape.variable else None
        self.ends_batch = self.arrays["ends_batch"] if self.shape.variable else None

    def columns(self) -> Mapping[str, torch.Tensor]:
        """Return every per-step column as a torch tensor [count, T or T+1, rows, ...], and the
        columns of recurrent states; frames are [count or frame_buffers, k-1 + T+1, rows, ...].
        Columns that only a recording needs are left out."""
        skip = {"owner", "generation", "frame_buffer", "ends_batch", *self.shape.recorded(())}
        return {n: self.arrays.tensor(n) for n in self.shape.layout(1) if n not in skip}

    def move(self, slot: int, old: Owner, new: Owner) -> None:
        """Record a change of owner. Called by the old owner."""
        if self.debug:
            owner = Owner(int(self.owner[slot]))
            assert owner == old, f"slot {slot} is {owner.name}, expected {old.name} -> {new.name}"
        if new is Owner.FREE:
            self.generation[slot] += 1  # first: a FREE slot has begun its next life in any case
        self.owner[slot] = new
        if new is Owner.FREE and self.debug:
            self._poison(slot)

    def renew(self, slot: int) -> None:
        """Begin a new generation of a WRITING slot whose writer was killed; it stays WRITING."""
        assert self.owner[slot] == Owner.WRITING, slot
        self.generation[slot] += 1
        if self.debug:
            self._poison(slot)

    def _poison(self, slot: int) -> None:
        """Overwrite a freed slot, so that tests detect reads of stale data."""
        for name, column in self.columns().items():
            if name.startswith("obs/") and self.shape.frame_buffers is not None:
                continue  # its frame buffer belongs to another slot already
            array = column[slot].numpy()
            if np.issubdtype(array.dtype, np.floating):
                array.fill(np.nan)
            elif array.dtype == np.bool_:
                array.fill(True)
            else:
                array.view(np.uint8).fill(0xAB)

    def __getstate__(self) -> tuple[int, SlotShape, bool, SharedArrays]:
        return self.count, self.shape, self.debug, self.arrays

    def __setstate__(self, state: tuple[int, SlotShape, bool, SharedArrays]) -> None:
        self.count, self.shape, self.debug, self.arrays = state
        self._name_columns()


NOT_TAKEN = -1
"""The policy version of the steps after the end of a short rollout."""


def end_rollout(slots: TrajectorySlots, slot: int, t: int) -> None:
    """Make the rollout in ``slot`` end with step ``t - 1``.

    ``obs[t]`` and the policy's output for it (its value is the bootstrap) must have been written.
    They are repeated to the end of the slot: then every number in it is finite, and ``obs[T]`` is
    the first observation of the next rollout. Of stacks of frames the newest frame is repeated. The
    steps from ``t`` on are not valid, and their version is `NOT_TAKEN`.
    """
    stacks = {f"obs/{name}" for name in slots.stacks}
    for name, column in slots.columns().items():
        if name not in PER_ROLLOUT and name not in stacks:
            column[slot, t + 1 :] = column[slot, t].clone()
    for frames in slots.stacks.values():
        newest = frames.newest(slot, t, slots.shape.rollout + 1)
        newest[1:] = newest[0]
    for flags in (slots.valid, slots.terminated, slots.truncated):
        flags[slot, t:] = False
    slots.reward[slot, t:] = 0.0
    slots.version[slot, t:] = NOT_TAKEN
    if slots.final_value is not None:
        slots.final_value[slot, t:] = 0.0


def length(slots: TrajectorySlots, slot: int) -> int:
    """Return the number of steps of the rollout in ``slot``."""
    return int(np.count_nonzero(slots.version[slot, :, 0] != NOT_TAKEN))
