"""A replay that a real actor fills from CodeEnv, with actions of any space that say which env,
episode and step they were taken in."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from sampleforge.algorithms.acting import Acted
from sampleforge.env.config import EnvConfig
from sampleforge.env.gymnasium_ids import sync_vector
from sampleforge.ops.q_learning import Windows, n_step_windows
from sampleforge.replay.compressed import CompressedFrames, FrameStore, ring_bytes
from sampleforge.replay.exchange import ReplayExchange
from sampleforge.replay.items import ITEM_COLUMNS, write_items
from sampleforge.replay.limiter import ReplayCounters
from sampleforge.replay.samples import SequenceReader, TransitionReader
from sampleforge.replay.shard import Prioritisation, ReplayShard, Sample, ShardMemory, ShardSlots
from sampleforge.rollouts.sequence_shape import SequenceShape
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.shared.counters import Counters
from sampleforge.shared.records import EpisodeList
from sampleforge.shared.wakeup import Wakeup
from sampleforge.spec import ACTION, EnvSpec, flatten, leaves
from sampleforge.topologies.graph import COUNTERS
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.inference import LocalInference
from sampleforge.workers.stream import PolicyPort
from tests.support.envs import CodeEnv
from tests.support.posts import some_post

ROWS, DEPTH, N_STEP, GAMMA = 3, 4, 3, 0.9
CAPACITY, LEASES = 6, 2
SEQUENCES = SequenceShape(length=8, stride=4, burn_in=2)

Array = np.ndarray[Any, Any]


def action_leaf(space: gym.Space[Any], where: Array, leaf: int) -> Array:
    """The action of one leaf that was taken in ``where``: [env id, episode, step]."""
    random = np.random.default_rng([*where.astype(int).tolist(), leaf])
    if isinstance(space, spaces.Box):
        return random.uniform(-1, 1, space.shape).astype(space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return random.integers(space.nvec)
    if isinstance(space, spaces.MultiBinary):
        return random.integers(0, 2, space.shape).astype(np.int8)
    assert isinstance(space, spaces.Discrete)
    return random.integers(space.n, size=())


def coded_actions(space: gym.Space[Any], seen: Array) -> dict[str, Array]:
    """The actions taken on CodeEnv's observations ``seen`` [..., 4], by leaf [..., ...]."""
    where = seen[..., :3].reshape(-1, 3)
    return {
        name: np.stack([action_leaf(each, row, number) for row in where]).reshape(
            (*seen.shape[:-1], *(each.shape or ()))
        )
        for number, (name, each) in enumerate(leaves(space, ACTION))
    }


COLUMNS = {"log_prob": "float32", "serial": "int64"}
"""What the policy records beside the actions."""


def coded_columns(seen: Array) -> dict[str, Array]:
    """The columns recorded for CodeEnv's observations ``seen`` [..., 4], [...] each."""
    env, episode, step = (seen[..., i].astype(np.int64) for i in range(3))
    serial = (env << 40) + (episode << 20) + step
    return {"log_prob": -np.sqrt(1 + serial).astype(np.float32), "serial": serial}


class CodedActions(gym.Wrapper[Any, Any, Any, Any]):
    """CodeEnv with another action space, in stacks of frames if ``stacked``; it asserts that it is
    given the coded actions."""

    def __init__(self, space: gym.Space[Any], stacked: bool) -> None:
        self.code = CodeEnv()
        super().__init__(FrameStackObservation(self.code, DEPTH) if stacked else self.code)
        self.action_space = space
        if stacked:
            self.metadata = {**self.code.metadata, "frame_stack": {"obs": "reset"}}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        expected = coded_actions(self.action_space, self.code.observation())
        for name, leaf in flatten(self.action_space, action, ACTION).items():
            assert np.array_equal(leaf, expected[name])
        return self.env.step(0)


class CodingPolicy:
    """Takes the coded actions. Its recurrent state is the newest [env id, step] it has seen."""

    version = 0

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space

    def refresh(self) -> None:
        """Do nothing: there are no weights."""

    def act_on_arrays(self, obs: Any, state: Any, is_first: Any, rows: Any) -> Acted[Array]:
        newest = obs["obs"] if obs["obs"].ndim == 2 else obs["obs"][:, -1]
        actions = coded_actions(self.space, newest)
        return Acted(actions, coded_columns(newest), newest[:, [0, 2]][:, : state.shape[1]])


class ActedReplay:
    """A replay of one shard, ``kind`` "whole" (observations), "frames", "compressed", "sequences"
    or "sequences of frames", its actor, and its reader."""

    def __init__(self, space: gym.Space[Any], kind: str) -> None:
        self.space, self.kind = space, kind
        stacked = kind not in ("whole", "sequences")
        sequences = SEQUENCES if kind.startswith("sequences") else None
        config = EnvConfig(env="fake", decorrelate=False)
        make = partial(CodedActions, space, stacked)
        make_rows = partial(sync_vector, config, make, ROWS, list(range(5, 5 + ROWS)))
        envs = make_rows()
        envs.close()
        count = CAPACITY + LEASES
        shape = slot_shape(envs.spec, sequences, kind)
        self.slots = TrajectorySlots(count, shape, debug=True)
        self.counters, self.priority = ReplayCounters(1), Prioritisation(0.6, 1e-6)
        store, frames = None, None
        if kind == "compressed":
            frames = CompressedFrames(shape, [count], [ring_bytes(shape, CAPACITY, 1.0)])
            store = FrameStore(0, frames, self.slots, range(LEASES))
        memory = ShardMemory(count, shape.items, prioritised=True)
        own = ShardSlots(0, 0, count, CAPACITY)
        self.shard = ReplayShard(own, self.slots, memory, self.priority, self.counters, [0], store)
        self.shards = [self.shard]
        self.exchange = ReplayExchange(self.slots, [Wakeup()], [Wakeup()], LEASES, finish_rollout)
        self.reader: Any
        if sequences is None:
            self.reader = TransitionReader(self.slots, frames)
        else:
            self.reader = SequenceReader(self.slots, make_windows, frames)
        inference = LocalInference(partial(CodingPolicy, space), self.slots, 1, 0)  # type: ignore[arg-type]
        self.counted = Counters(COUNTERS, 1)
        self.actor = ActorWorker(
            0,
            [make_rows],
            [PolicyPort(0, self.exchange, inference)],
            EpisodeList(),
            some_post(counters=self.counted),
        )

    def fill(self, rollouts: int) -> None:
        """Have the actor play, and the shard insert, so many rollouts."""
        for _ in range(LEASES):
            self.lease()
        self.actor.start()
        while rollouts:
            self.actor.step()
            slot = self.exchange.take_ready(0, 0)
            if slot is not None:
                self.shard.insert(slot)
                self.lease()
                rollouts -= 1
        self.actor.close()
        assert self.counted.total("env_restarts") == 0, "an environment was given another action"

    def lease(self) -> None:
        slot = self.shard.lease()
        assert slot is not None
        self.exchange.lease(0, 0, slot)

    def check(self, drawn: Sample) -> int:
        """Read a sample, and compare every action, and what the slots have beside it, with what
        belongs to its observation; return how many there were."""
        gathered = self.reader.read(*drawn)
        assert gathered.still_valid.all()
        batch = gathered.batch
        seen = batch.obs["obs"].numpy()
        seen = seen[..., -1, :] if self.slots.stacks else seen
        seen = seen[:-1] if self.kind.startswith("sequences") else seen
        places = self.places(drawn.items)
        expected = coded_actions(self.space, seen)
        assert list(batch.actions) == list(expected)
        for name, leaf in batch.actions.items():
            assert leaf.numpy().dtype == self.slots.actions[name].dtype
            assert leaf.shape == expected[name].shape
            assert leaf.numpy().tobytes() == expected[name].astype(leaf.numpy().dtype).tobytes()
            stored = self.slots.actions[name][places]
            assert leaf.numpy().tobytes() == stored.tobytes()
        for name, column in coded_columns(seen).items():
            assert self.slots.extras[name][places].tobytes() == column.tobytes()
        assert (seen[..., 0] == 5 + places[-1]).all(), "the env of the row that was drawn"
        return int(seen[..., 0].size)

    def places(self, items: Array) -> tuple[Array, Array, Array]:
        """Slot, t and row of every step of these items, [B], or [L, B] for sequences."""
        shape = self.slots.shape
        slot, within = np.divmod(items, shape.items)
        start, row = np.divmod(within, shape.rows)
        if shape.sequences is None:
            return slot, start, row
        t = start * shape.sequences.stride + np.arange(shape.sequences.length)[:, None]
        return tuple(np.broadcast_arrays(slot, t, row))  # type: ignore[return-value]


def slot_shape(spec: EnvSpec, sequences: SequenceShape | None, kind: str) -> SlotShape:
    buffers = LEASES if kind == "compressed" else None
    if sequences is None:
        options: Any = {"final_obs": True, "finished": ITEM_COLUMNS}
        return SlotShape(7, ROWS, spec, 0, COLUMNS, True, buffers, **options)
    return SlotShape(12, ROWS, spec, 2, COLUMNS, True, buffers, sequences)


def make_windows(reward: Any, terminated: Any, truncated: Any, valid: Any) -> Windows:
    return n_step_windows(reward, terminated, truncated, valid, N_STEP, GAMMA)


def finish_rollout(slots: TrajectorySlots, slot: int) -> None:
    """What an algorithm without Q-values adds to a rollout: windows, and the same first priority
    for all items."""
    ends = slots.terminated[slot], slots.truncated[slot]
    windows = make_windows(slots.reward[slot], *ends, slots.valid[slot])
    write_items(slots, slot, windows, np.ones_like(windows.returns))
