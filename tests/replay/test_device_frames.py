"""Copies of the replay's frames on the learner's device. What they do is the same on any device, so
these tests have them on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.config import ConfigError
from sampleforge.replay.device_frames import DeviceFrames
from sampleforge.replay.items import ITEM_COLUMNS
from sampleforge.replay.samples import TransitionReader
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.spec import ArraySpec, EnvSpec
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from tests.support.apex_graphs import (
    apex_config,
    batches_of,
    learner_worker,
    limiter_of,
    serial_rounds,
)
from tests.support.graphs import spec_of
from tests.support.pairings import plan_of
from tests.support.stack_checking import ACTIONS, STACKED, checking_graph

CPU = torch.device("cpu")


class MakeReader:
    """Makes a reader with copies of the frames of a ``share`` of the slots."""

    def __init__(self, slots: TrajectorySlots, share: float) -> None:
        self.slots = slots
        self.places = int(slots.count * share)

    def __call__(self, device: str) -> TransitionReader:
        return TransitionReader(self.slots, copies=DeviceFrames(self.slots, self.places, CPU))


@pytest.mark.long
@pytest.mark.parametrize(("mode", "share"), [("next_step", 1.0), ("same_step", 0.5)])
def test_every_frame_of_every_stack_is_that_of_its_slot(mode: str, share: float) -> None:
    """Through several turns of a small replay; the learner checks every frame."""
    env = "tests.support.stacked_envs:StackedVectorEnv"
    graph, plan = checking_graph(apex_config(env=env, env_kwargs={"mode": mode}))
    slots = graph.groups[0].exchange.slots
    object.__setattr__(batches_of(graph), "make_reader", MakeReader(slots, share))
    for _ in serial_rounds(graph, 250):
        pass
    worker = learner_worker(graph)
    assert worker._learner.checked > 1000
    assert mode == "next_step" or worker._learner.truncated > 50
    assert limiter_of(graph).replay_counters.inserted.sum() > 1.5 * plan.capacity
    copies = worker._source.reader.reader._copies
    assert 0 < copies.places == int(slots.count * share)


def test_a_slot_is_copied_once_per_life_and_not_while_an_actor_may_write_into_it() -> None:
    leaf = ArraySpec((2, 1), "uint8", stack="reset")
    spec = EnvSpec("fake", {"obs": leaf}, ACTIONS)
    shape = SlotShape(3, 2, spec, 0, {}, single_frames=True, finished=ITEM_COLUMNS)
    slots = TrajectorySlots(4, shape)
    frames = slots.arrays.tensor("obs/obs")
    frames.copy_(torch.arange(4)[:, None, None, None].expand_as(frames))
    copies = DeviceFrames(slots, 3, CPU)
    column, slot = copies.columns()["obs"], np.arange(4)
    at = np.zeros(4, np.int64)

    def read() -> list[int]:
        stacks = column.read(slot, at, at)
        assert stacks.shape == (4, 2, 1)
        return [int(stack[0, 0]) for stack in stacks]

    drawn = slots.generation.copy()
    slots.generation[1] += 1  # evicted since it was drawn: an actor writes into it
    copies.follow(slot, drawn)
    frames += 10
    found = read()
    assert found[0] == 0 and found[2] == 2, "from the copies"
    assert found[3] == 13, "there is no place for this slot"
    copies.follow(slot, slots.generation.copy())
    assert read() == [0, 11, 2, 13], "only the slot that was not copied before"
    slots.generation[0] += 1
    copies.follow(slot, slots.generation.copy())
    assert read() == [10, 11, 2, 13]


@pytest.mark.parametrize(
    ("change", "device", "message"),
    [
        ({}, "cpu", "the learner is on the cpu"),
        ({"env": "tests.support.envs:CodeEnv"}, "cuda", "none of its observation leaves"),
        ({"replay_gpu_memory": 1e-9}, "cuda", "the frames of one slot need"),
    ],
)
def test_what_cannot_be_kept_on_a_gpu_is_refused(
    change: dict[str, Any], device: str, message: str
) -> None:
    config = replace(apex_config(env=STACKED, replay_gpu_memory=1.0), **change)
    spec = spec_of(config)
    with pytest.raises(ConfigError, match=message):
        plan_of(resolve_defaults(config, spec), spec, device)


def test_memory_for_some_of_the_slots_gives_them_places() -> None:
    config = apex_config(env=STACKED)
    spec = spec_of(config)
    resolved = resolve_defaults(config, spec)
    whole = plan_of(replace(resolved, replay_gpu_memory=1.0), spec, "cuda")
    assert whole.frame_places == whole.slots
    half = whole.slot_bytes / 2 / 2**30
    assert plan_of(replace(resolved, replay_gpu_memory=half), spec, "cuda").frame_places > 0
    with pytest.raises(ConfigError, match="--replay-compression lz4"):
        replace(resolved, replay_gpu_memory=1.0, replay_compression="lz4")


@pytest.mark.gpu
def test_frames_on_a_gpu_are_those_of_the_slots() -> None:
    """Many slots, some without a place, in an order of their own."""
    leaf = ArraySpec((4, 84, 84), "uint8", stack="zero")
    spec = EnvSpec("fake", {"obs": leaf}, ACTIONS)
    shape = SlotShape(8, 4, spec, 0, {}, single_frames=True, finished=ITEM_COLUMNS)
    slots = TrajectorySlots(16, shape)
    frames = slots.arrays.tensor("obs/obs")
    frames.copy_(torch.randint(0, 256, frames.shape, dtype=torch.uint8))
    random = np.random.default_rng(0)
    slots.first[...] = random.random(slots.first.shape) < 0.2
    copies = DeviceFrames(slots, 12, torch.device("cuda"))
    slot, t, row = (random.integers(0, n, 300) for n in (16, 9, 4))
    copies.follow(slot, slots.generation[slot])
    found = copies.columns()["obs"].read(slot, t, row)
    assert found.is_cuda
    assert torch.equal(found.cpu(), slots.stacks["obs"].read(slot, t, row))
