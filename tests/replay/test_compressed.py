"""Frames of the replay that are compressed are read as the environment gave them, and what does not
fit makes room."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from sampleforge.config import ConfigError
from sampleforge.replay.compressed import Blocks, Ring
from sampleforge.spec import ArraySpec
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from tests.support.apex_graphs import (
    apex_config,
    batches_of,
    build_apex,
    learner_worker,
    limiter_of,
    serial_rounds,
)
from tests.support.compressed_replay import LEAF, LEASES, CompressedReplay
from tests.support.graphs import running, spec_of
from tests.support.pairings import plan_of
from tests.support.stack_checking import STACKED, checking_graph

pytest.importorskip("lz4")


@pytest.mark.parametrize("leaf", [LEAF, ArraySpec((3,), "float64", stack="zero")])
@pytest.mark.parametrize(("noise", "ratio"), [(2, 1.0), (2, 4.0), (256, 3.0), (256, 1e9)])
def test_decompressed_stacks_equal_whole_storage_byte_for_byte(
    noise: int, ratio: float, leaf: ArraySpec
) -> None:
    """Through several turns of the ring; frames of noise do not shrink, so fewer are stored."""
    replay = CompressedReplay(capacity=6, ratio=ratio, noise=noise, leaf=leaf)
    fill = []
    for _ in range(40):
        slot = replay.insert()
        fill.append(len(replay.shard.stored_slots))
        assert replay.shard.stored_slots[-1] == slot and len(set(replay.leased)) == LEASES
        assert replay.check(replay.shard.draw(64)) == 64
        assert replay.replay_counters.frame_bytes[0] == replay.store.used
    if ratio == 1.0:
        assert max(fill) == fill[-1] == 6
    if noise == 256 and leaf is LEAF:
        assert 1 <= max(fill) < 6, "what does not shrink takes the room of others"
    stored = replay.replay_counters.stored[0]
    assert stored == sum(
        np.count_nonzero(replay.slots.extras["steps"][s]) for s in replay.shard.stored_slots
    )


def test_items_evicted_meanwhile_are_left_out_and_damaged_stored_frames_raise_an_error() -> None:
    replay = CompressedReplay(capacity=4, ratio=1.0, noise=256)
    for _ in range(4):
        replay.insert()
    drawn = replay.shard.draw(64)
    for left in (3, 2, 1):
        replay.insert()
        assert 0 < replay.check(drawn) < 64 * (left + 1.5) / 4
    replay.insert()
    assert replay.check(drawn) == 0
    replay.frames.ring[:] = 0xFF
    with pytest.raises(AssertionError, match=r"stored slots .* damaged"):
        replay.reader.read(*replay.shard.draw(8))


def test_garbage_in_offsets_and_sizes_does_not_break_the_reader() -> None:
    """A slot that is written anew may have any numbers in it while it is read."""
    replay = CompressedReplay(capacity=4, ratio=1.0, noise=2)
    for _ in range(4):
        replay.insert()
    drawn, (at, size) = replay.shard.draw(64), replay.frames.where("obs")
    replay.slots.generation[:] += 1
    for offset in (-(2**40), -3, 0, 2**40):
        for length in (-(2**31), -1, 0, 1, 2**31 - 1):
            at[...], size[...] = offset, length
            assert not replay.reader.read(*drawn).still_valid.any()


def test_the_ring_never_gives_a_byte_twice() -> None:
    random = np.random.default_rng(0)
    ring, taken = Ring(100), np.zeros(100, np.int64)
    pieces: list[tuple[int, int]] = []
    refused = 0
    for _ in range(5000):
        length = int(random.integers(1, 60 if random.random() < 0.2 else 15))
        begin = ring.take(length)
        if begin is None:
            refused += 1
            first, size = pieces.pop(0)
            taken[first : first + size] -= 1
            ring.free_oldest()
        else:
            pieces.append((begin, length))
            taken[begin : begin + length] += 1
            assert begin + length <= 100
        assert taken.max() <= 1 and taken.min() >= 0 and ring.used == taken.sum()
    assert refused > 1000


def test_blocks_cover_every_frame_once() -> None:
    for frames, frame_bytes in ((54, 7056), (1, 5), (8, 7056), (9, 7056), (20, 70_000)):
        blocks = Blocks(frames, 3, frame_bytes)
        assert blocks.depth * frame_bytes <= 65536 or blocks.depth == 1
        sizes = [blocks.nbytes(i) for i in range(blocks.per_row)]
        assert sum(sizes) == frames * frame_bytes and min(sizes) > 0
        assert blocks.most > 3 * frames * frame_bytes


# ---- through the whole graph ----


@pytest.mark.long
@pytest.mark.parametrize(
    ("inference", "shards", "ratio"), [("inline", 1, 1.0), ("worker", 2, 1.0), ("worker", 1, 50.0)]
)
def test_every_compressed_frame_is_read_from_its_slot_step_and_row(
    inference: str, shards: int, ratio: float
) -> None:
    """With a ring that is too small, too: learning begins as soon as it is full."""
    config = apex_config(
        env=STACKED,
        inference=inference,
        num_replay_shards=shards,
        replay_compression="lz4",
        replay_compression_ratio=ratio,
    )
    graph, plan = checking_graph(config)
    for _ in serial_rounds(graph, 250):
        pass
    worker = learner_worker(graph)
    replay_counters = limiter_of(graph).replay_counters
    assert worker._learner.checked > 1000
    assert replay_counters.inserted.sum() > 1.5 * plan.capacity
    assert (replay_counters.stored.sum() < plan.capacity / 3) == (ratio > 1)
    assert 0 < replay_counters.frame_bytes.sum() <= sum(plan.ring_bytes)


@pytest.mark.multiprocess(timeout=120)
def test_no_wrong_compressed_frame_with_real_processes(tmp_path: Path) -> None:
    config = apex_config(
        env=STACKED, samples_per_insert=None, replay_compression="lz4", num_replay_shards=2
    )
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


# ---- before the start ----


def test_the_planned_bytes_of_compressed_frames_are_those_allocated() -> None:
    raw = apex_config(env=STACKED)
    packed = replace(raw, replay_compression="lz4", replay_compression_ratio=4.0)
    graph, plan = build_apex(packed)
    made = graph.groups[0].exchange.slots.arrays.nbytes
    reader: Any = batches_of(graph).make_reader("cpu")
    ring = reader._stacks["obs"]._ring
    assert made == plan.slot_bytes and len(ring) == sum(plan.ring_bytes)
    assert any("shrink 4 times" in note for note in graph.notes)
    spec = spec_of(raw)
    whole = plan_of(resolve_defaults(raw, spec), spec, "cpu")
    assert whole.frame_bytes == 0 and plan.slot_bytes < whole.slot_bytes


def test_what_cannot_be_compressed_is_refused() -> None:
    with pytest.raises(ConfigError, match="none of its observation leaves \\(obs\\) as a stack"):
        build_apex(apex_config(replay_compression="lz4"))
    with pytest.raises(ConfigError, match=r"--replay-compression-ratio 0\.5: must be at least 1"):
        apex_config(replay_compression="lz4", replay_compression_ratio=0.5)


def test_a_missing_lz4_raises_an_error_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "lz4" else find(n))
    with pytest.raises(ConfigError, match=r'pip install "sampleforge\[compress\]"'):
        build_apex(apex_config(env=STACKED, replay_compression="lz4"))
