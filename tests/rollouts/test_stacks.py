"""Stacks of frames that are kept as single frames are read as the environment gave them."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from sampleforge.config import ConfigError
from sampleforge.env.adapter import with_stacks
from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import EnvVector
from sampleforge.replay.items import ITEM_COLUMNS
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.spec import ArraySpec, EnvSpec, StackPadding
from tests.support.apex_graphs import (
    apex_config,
    build_apex,
    learner_worker,
    limiter_of,
    serial_rounds,
)
from tests.support.env_vectors import buffers
from tests.support.graphs import running
from tests.support.stack_checking import ACTIONS, STACKED, Array, check_stack, checking_graph


def slots_of(leaf: ArraySpec, rollout: int, rows: int, count: int) -> TrajectorySlots:
    spec = EnvSpec("fake", {"obs": leaf}, ACTIONS)
    shape = SlotShape(rollout, rows, spec, 0, {}, single_frames=True, finished=ITEM_COLUMNS)
    return TrajectorySlots(count, shape, debug=True)


class Recorder:
    """Writes what an environment shows into slots, as an actor does, and the naive copy of it."""

    def __init__(self, slots: TrajectorySlots) -> None:
        self.slots, self.slot, self.t = slots, 0, 0
        self.naive: list[tuple[int, int, Array]] = []  # slot, t, stacks [rows, k, ...]

    def show(self, stacks: Array, first: Array) -> None:
        """One observation of all rows. The last of a slot is the first of the next one."""
        slots, column = self.slots, self.slots.stacks["obs"]
        slots.first[self.slot, self.t] = first
        if self.t == 0:
            column.begin(self.slot, stacks)
        else:
            column.put(self.slot, self.t, stacks)
        self.naive.append((self.slot, self.t, stacks.copy()))
        if self.t == slots.shape.rollout and self.slot + 1 < slots.count:
            self.slot, self.t = self.slot + 1, 0
            self.show(stacks, first)
        else:
            self.t += 1

    def check(self) -> int:
        """Read every stack back, all at once and in random order; returns how many."""
        rows = self.slots.shape.rows
        at = [(s, t, row) for s, t, _ in self.naive for row in range(rows)]
        truth = np.concatenate([stacks for _, _, stacks in self.naive])
        order = np.random.default_rng(0).permutation(len(at))
        slot, t, row = np.array(at)[order].T
        found = self.slots.stacks["obs"].read(slot, t, row).numpy()
        assert found.dtype == truth.dtype and found.tobytes() == truth[order].tobytes()
        return len(at)


@pytest.mark.parametrize("padding", ["zero", "reset"])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("rollout", [1, 2, 3, 9])
def test_rebuilt_stacks_equal_whole_storage_byte_for_byte(
    padding: StackPadding, depth: int, rollout: int
) -> None:
    """Episodes of any length, also of one step, that begin anywhere in rollouts of any length."""
    rows, random = 5, np.random.default_rng(depth)
    slots = slots_of(ArraySpec((depth, 2, 3), "uint8", stack=padding), rollout, rows, 40)
    recorder = Recorder(slots)
    stacks = np.zeros((rows, depth, 2, 3), np.uint8)
    while not (recorder.slot == slots.count - 1 and recorder.t > rollout):
        first = random.random(rows) < 0.3 if recorder.naive else np.ones(rows, np.bool_)
        frames = random.integers(1, 256, (rows, 2, 3), np.uint8)
        stacks = np.concatenate([stacks[:, 1:], frames[:, None]], axis=1)
        for row in np.flatnonzero(first):
            stacks[row, :-1] = frames[row] if padding == "reset" else 0
        recorder.show(stacks, first)
    assert recorder.check() == slots.count * (rollout + 1) * rows


def played(vector: EnvVector, slots: TrajectorySlots) -> Recorder:
    """Random actions until the slots are full."""
    recorder, rng = Recorder(slots), np.random.default_rng(0)
    out = buffers(vector.spec, vector.num_rows)
    vector.reset(out.obs)
    out.first.fill(True)
    actions = vector.spec.actions["action"].categories[0]
    while True:
        recorder.show(out.obs["obs"], out.first)
        if recorder.slot == slots.count - 1 and recorder.t > slots.shape.rollout:
            return recorder
        vector.send({"action": rng.integers(0, actions, vector.num_rows)})
        vector.recv(out)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["vector", "single"])
@pytest.mark.parametrize("game", ["Breakout", "Pong"])
def test_rebuilt_atari_stacks_equal_the_environments_byte_for_byte(game: str, backend: Any) -> None:
    pytest.importorskip("ale_py")
    if backend == "single":
        pytest.importorskip("cv2")
    config = EnvConfig(env=f"ALE/{game}-v5", env_backend=backend, max_episode_steps=9)
    vector = make_vector(config, 3, [0, 1, 2])
    leaf = vector.spec.observations["obs"]
    assert leaf == ArraySpec((4, 84, 84), "uint8", stack="zero", low=0.0, high=255.0)
    slots = slots_of(leaf, 5, 3, 9)
    recorder = played(vector, slots)
    vector.close()
    assert slots.first[:, 1:].sum() >= 6, "episodes began within rollouts"
    assert recorder.check() == 9 * 6 * 3


def test_single_frames_take_a_quarter_of_the_memory() -> None:
    """2M Atari transitions: (T + 4) / T frames and about 60 bytes each, whole stacks before."""
    leaf = ArraySpec((4, 84, 84), "uint8", stack="zero")
    spec = EnvSpec("fake", {"obs": leaf}, ACTIONS)
    for rollout, most in ((50, 15.4e9), (100, 14.9e9)):
        slots = 2_000_000 // (10 * rollout)
        single = SlotShape(rollout, 10, spec, 0, {}, single_frames=True, finished=ITEM_COLUMNS)
        whole = SlotShape(rollout, 10, spec, 0, {}, finished=ITEM_COLUMNS)
        assert 14.1e9 < single.nbytes(slots) < most
        assert whole.nbytes(slots) > 3.7 * single.nbytes(slots)
    one = slots_of(leaf, 50, 10, 1)
    assert one.arrays.nbytes == one.shape.nbytes(1)


# ---- through the whole graph ----


@pytest.mark.long
@pytest.mark.parametrize(
    ("inference", "shards", "rollout", "kwargs"),
    [
        ("inline", 1, 7, {}),
        ("worker", 1, 7, {"padding": "reset"}),
        ("worker", 2, 3, {"depth": 5}),
        ("inline", 1, 2, {"depth": 1}),
    ],
)
def test_every_frame_of_every_stack_is_read_from_its_slot_step_and_row(
    inference: str, shards: int, rollout: int, kwargs: dict[str, Any]
) -> None:
    """Through many turns of a small replay, with episodes of 1 to 9 steps. In debug mode, what
    the policy sees is compared with what the environment gave, too."""
    config = apex_config(
        env=STACKED,
        env_kwargs=kwargs,
        inference=inference,
        num_replay_shards=shards,
        rollout=rollout,
    )
    graph, plan = checking_graph(config)
    assert not graph.groups[0].exchange.slots.obs and list(
        graph.groups[0].exchange.slots.stacks
    ) == ["obs"]
    for _ in serial_rounds(graph, 250):
        pass
    worker = learner_worker(graph)
    assert worker._learner.checked > 1000
    assert limiter_of(graph).replay_counters.inserted.sum() > 1.5 * plan.capacity


@pytest.mark.long
@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_stacks_of_vector_envs(mode: str, compression: Any) -> None:
    """Every stack that the actor sees is checked in debug mode; final observations lie apart."""
    env = "tests.support.stacked_envs:StackedVectorEnv"
    if compression != "none":
        pytest.importorskip("lz4")
    graph, _ = checking_graph(
        apex_config(
            env=env,
            env_kwargs={"mode": mode},
            replay_compression=compression,
            replay_compression_ratio=1.0,
        )
    )
    for _ in serial_rounds(graph, 150):
        pass
    assert graph.counters.total("updates") > 20
    assert learner_worker(graph)._learner.truncated > 50


@pytest.mark.long
def test_stacks_of_rebuilt_environments() -> None:
    """An env that raises is replaced: its row begins a new episode in the middle of a rollout."""
    env = "tests.support.stacked_envs:stacked_raising"
    graph, _ = build_apex(apex_config(env=env, env_kwargs={"where": "step", "every": 40}))
    for _ in serial_rounds(graph, 150):
        pass
    assert graph.counters.total("env_restarts") > 2


def test_policies_are_given_whole_stacks() -> None:
    graph, _ = build_apex(apex_config(env=STACKED, inference="inline"))
    seen: list[Array] = []

    def spy(obs: Any, *rest: Any) -> Any:
        seen.append(obs["obs"].numpy().copy())
        return act(obs, *rest)

    for _ in serial_rounds(graph, 30):
        policy = graph.nodes[0].worker._ports[0].inference._acting  # type: ignore[attr-defined]
        if policy.act is not spy:
            act, policy.act = policy.act, spy
    assert len(seen) > 20
    for stack in np.concatenate(seen):
        check_stack(stack, "zero")


@pytest.mark.multiprocess(timeout=120)
def test_no_wrong_frame_with_real_processes(tmp_path: Path) -> None:
    """As fast as they can, on a replay of a few slots that is overwritten all the time."""
    config = apex_config(env=STACKED, samples_per_insert=None, inference="worker", debug=False)
    graph, plan = checking_graph(config)
    with running(graph, tmp_path) as runner:
        replay_counters = limiter_of(graph).replay_counters
        deadline = monotonic() + 100
        while (
            replay_counters.stale_updates.sum() < 50
            or graph.counters.total("trained_steps") < 3000
            or replay_counters.inserted.sum() <= 3 * plan.capacity
        ):
            runner.poll(0.05)
            assert monotonic() < deadline, (replay_counters.stale_updates, replay_counters.inserted)


# ---- what an environment says of itself ----


def test_wrong_metadata_about_stacks_raises_an_error() -> None:
    config = apex_config(env=STACKED, env_kwargs={"says": "reset"}, debug=False)
    graph, _ = build_apex(config)
    with pytest.raises(ConfigError, match=r"'obs' is a stack of 4 frames .* 'reset' before"):
        for _ in serial_rounds(graph, 100):
            pass


def test_appo_stores_stacks_as_they_are() -> None:
    spec = EnvSpec("fake", {"obs": ArraySpec((4, 2), "uint8", stack="zero")}, ACTIONS)
    slots = TrajectorySlots(2, SlotShape(5, 3, spec, 0))
    assert slots.obs["obs"].shape == (2, 6, 3, 4, 2) and not slots.stacks


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"ob": "zero"}, "'ob'\\] is no observation leaf; there is obs"),
        ({"obs": "zeros"}, "is 'zeros', but must be 'zero' or 'reset'"),
        ({"n": "zero"}, "shape \\(\\) of categories; leave it out"),
    ],
)
def test_invalid_stack_metadata_is_refused(said: dict[str, str], message: str) -> None:
    specs = {"obs": ArraySpec((4, 2), "float32"), "n": ArraySpec((), "int64", (3,))}
    with pytest.raises(ConfigError, match=message):
        with_stacks("fake", specs, {"frame_stack": said})
