"""A replay that is saved comes back as it was, whatever happens while it is saved."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sampleforge.replay.limiter import RateLimiter
from sampleforge.replay.snapshot import ReplayFolder, SavedFile, write_array
from sampleforge.run.folder.replays import Replays
from tests.support.compressed_replay import CompressedReplay, deque_of
from tests.support.full_disk import full_disk
from tests.support.replay import Replay
from tests.support.saved_replays import archive_of, never, nothing, restored, saved


def used(alpha: float, shards: int, inserts: int) -> Replay:
    """A replay with a history: inserts all round, updates, draws."""
    replay = Replay(alpha=alpha, shards=shards, seed=3)
    for i in range(inserts):
        shard = i % shards
        replay.insert(shard)
        drawn = replay.shards[shard].draw(32)
        errors = replay.random.gamma(0.5, size=32).astype(np.float32)
        replay.shards[shard].update(drawn.items, drawn.generations, errors)
    return replay


@pytest.mark.long
@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize(("shards", "inserts"), [(1, 4), (1, 40), (3, 61)])
def test_the_next_thousand_draws_are_the_same(
    alpha: float, shards: int, inserts: int, tmp_path: Path
) -> None:
    before = used(alpha, shards, inserts)
    reference, problem = saved(before, tmp_path)
    assert problem is None and reference["env_steps"] == 123
    after = Replay(alpha=alpha, shards=shards, seed=99)
    restored(after, reference, tmp_path)
    for ours, theirs in zip(after.shards, before.shards, strict=True):
        assert ours.stored_slots == theirs.stored_slots
        for _ in range(1000 // shards):
            own, other = ours.draw(16), theirs.draw(16)
            assert (own.items == other.items).all()
            np.testing.assert_allclose(own.scaled_probability, other.scaled_probability, rtol=1e-12)
        for slot in ours.stored_slots:
            for name, column in before.slots.columns().items():
                assert after.slots.arrays[name][slot].tobytes() == column[slot].numpy().tobytes()
    for name in ("stored", "inserted", "full", "stale_updates"):
        assert (
            getattr(after.replay_counters, name) == getattr(before.replay_counters, name)
        ).all(), name
    np.testing.assert_allclose(
        after.replay_counters.priority_sum, before.replay_counters.priority_sum, rtol=1e-12
    )


@pytest.mark.parametrize("learning", [False, True])
def test_learning_goes_on_at_once_only_if_it_had_begun_when_the_replay_was_saved(
    learning: bool, tmp_path: Path
) -> None:
    """The learner's state is saved after the replay: it may have begun between the two, when an
    empty replay was saved."""
    before = used(0.6, 2, 4) if learning else Replay(shards=2)
    RateLimiter(before.replay_counters, 1.0, 100.0, learning_starts=1).begin_learning()
    assert before.replay_counters.learning[0] == learning
    reference, _ = saved(before, tmp_path)
    where = Replays(tmp_path, never).find(reference, pytest.fail).saved
    assert where is not None and where.learning == learning
    after = Replay(shards=2)
    limiter = RateLimiter(after.replay_counters, 1.0, 100.0, learning_starts=1000)
    limiter.load({"balance": 5.0}, restoring=True, begun=where.learning)
    assert not limiter.begin_learning(), "nothing is restored yet"
    restored(after, reference, tmp_path)
    assert limiter.begin_learning() == learning


def test_a_restored_shard_continues_exactly_as_the_saved_one(tmp_path: Path) -> None:
    """Inserts evict the oldest first, ages count on, proportions hold."""
    before = used(0.6, 1, 40)
    reference, _ = saved(before, tmp_path)
    after = Replay(seed=3)
    after.random, after.lives = before.random, before.lives
    restored(after, reference, tmp_path)
    oldest = after.shards[0].stored_slots
    inserted = int(after.replay_counters.inserted[0])
    for i in range(3):
        newest = after.insert()
        stored = after.shards[0].stored_slots
        assert stored[: -i - 1] == oldest[i + 1 :] and stored[-1] == newest
    assert after.replay_counters.inserted[0] > inserted
    usable = sum(
        np.count_nonzero(after.slots.extras["steps"][s]) for s in after.shards[0].stored_slots
    )
    assert after.replay_counters.stored[0] == usable
    tree = after.shards[0]._tree
    assert tree is not None and tree.total == pytest.approx(tree.leaves.sum(), rel=1e-12)


def test_items_sampled_before_a_restore_are_stale_afterwards(tmp_path: Path) -> None:
    before = used(0.6, 1, 40)
    outstanding = [before.shards[0].draw(32) for _ in range(16)]
    reference, _ = saved(before, tmp_path)
    after = Replay()
    restored(after, reference, tmp_path)
    leaves = after.shards[0]._tree.leaves.copy()  # type: ignore[union-attr]
    stale = int(after.replay_counters.stale_updates[0])
    for drawn in outstanding:
        after.shards[0].update(drawn.items, drawn.generations, np.full(32, 9.0, np.float32))
    assert (after.shards[0]._tree.leaves == leaves).all()  # type: ignore[union-attr]
    assert after.replay_counters.stale_updates[0] == stale + 16 * 32


def test_a_saved_replay_fits_a_run_with_fewer_actors_and_slots(tmp_path: Path) -> None:
    before = Replay(leases=5)
    for _ in range(30):
        before.insert()
    assert max(before.shards[0].stored_slots) >= 9, "some lie where there is no slot any more"
    reference, _ = saved(before, tmp_path)
    after = Replay(leases=2)
    restored(after, reference, tmp_path)
    lives = [
        [replay.slots.obs["obs"][slot, 0, 0, 0] for slot in replay.shards[0].stored_slots]
        for replay in (before, after)
    ]
    assert lives[0] == lives[1] and len(set(after.shards[0].stored_slots)) == 7
    for _ in range(20):
        after.insert()


def test_saved_compressed_frames_are_restored_byte_for_byte(tmp_path: Path) -> None:
    if importlib.util.find_spec("lz4") is None:
        pytest.skip("lz4 is not installed")
    before: Any = CompressedReplay(capacity=6, ratio=3.0, noise=256)
    for _ in range(25):
        before.insert()
    before.shards, before.priority = [before.shard], before.shard._priority
    reference, _ = saved(before, tmp_path)
    after: Any = CompressedReplay(capacity=6, ratio=3.0, noise=256)
    for slot in after.leased:  # as if nobody had one
        after.store._free_buffers.append(int(after.slots.frame_buffer[slot]))
    after.replay_counters.leased[0] = 0
    after.shards, after.priority, after.naive = [after.shard], after.shard._priority, before.naive
    restored(after, reference, tmp_path)
    assert (
        after.replay_counters.frame_bytes[0]
        == before.replay_counters.frame_bytes[0]
        == after.store.used
    )
    for _ in range(100):
        own, other = after.shard.draw(16), before.shard.draw(16)
        assert (own.items == other.items).all()
        assert after.check(own) == 16
    after.leased = deque_of(after.shard, 2)
    for _ in range(20):
        after.insert()
        assert after.check(after.shard.draw(32)) == 32


def test_files_are_plain_npy_and_follow_the_umask(tmp_path: Path) -> None:
    replay = used(0.6, 1, 20)
    reference, _ = saved(replay, tmp_path)
    folder = tmp_path / reference["folder"]
    files = list(folder.glob("*.npy"))
    assert len(files) > 10
    usual = tmp_path / "usual"
    usual.touch()
    for path in files:
        np.load(path, allow_pickle=False)
        assert path.stat().st_mode == usual.stat().st_mode
    manifest = json.loads((folder / "replay.json").read_text())
    errors = manifest["shards"][0]["arrays"]["slot/td_error"]["file"]
    stored = list(replay.shards[0].stored_slots)
    assert (np.load(folder / errors) == replay.slots.extras["td_error"][stored]).all()
    assert str(tmp_path) not in (folder / "replay.json").read_text()


# ---- damage ----


def damage_nothing(folder: Path) -> None:
    shutil.rmtree(folder)


def damage_a_bit(folder: Path) -> None:
    path = folder / "shard-0-3.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def damage_the_end(folder: Path) -> None:
    path = folder / "shard-0-3.npy"
    path.write_bytes(path.read_bytes()[:-10])


def damage_the_manifest(folder: Path) -> None:
    path = folder / "replay.json"
    path.write_text(path.read_text().replace("shard-0-3.npy", "../../../etc/passwd"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_nothing, "only the replay of the latest checkpoint is kept"),
        (damage_a_bit, "checksum of shard-0-3.npy is wrong"),
        (damage_the_end, r"has \d+ bytes of \d+"),
        (damage_the_manifest, "checksum of its replay.json is wrong"),
    ],
)
def test_damaged_replay_files_are_refused(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    reference, _ = saved(used(0.6, 1, 9), tmp_path)
    damage(tmp_path / reference["folder"])
    said: list[str] = []
    found = Replays(tmp_path, never).find(reference, said.append)
    assert found.saved is None
    assert re.search(message, found.missing) and re.search(message, said[0])


def test_a_checkpoint_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    found = Replays(tmp_path, never).find({"folder": "../x", "sha256": ""}, nothing_said)
    assert "is not the name of a replay" in found.missing


def nothing_said(text: str) -> None:
    """Not of interest."""


def test_a_full_disk_leaves_the_previously_saved_replay_intact(tmp_path: Path) -> None:
    replay = used(0.6, 2, 30)
    reference, _ = saved(replay, tmp_path)
    replay.insert()
    replays = Replays(tmp_path, never)
    assert replays.find(reference, pytest.fail).saved is not None
    archive = archive_of(replay, ReplayFolder(tmp_path))

    def shards_work() -> None:
        for index, shard in enumerate(replay.shards):
            archive.save(index, shard, nothing)

    with full_disk(1000):
        kept, problem = replays.save(archive, lambda: 456, shards_work, nothing_said)
    assert kept == reference
    assert problem is not None
    for part in ("replay not saved", "File too large", "are free", "--replay-capacity", "123 env"):
        assert part in problem
    assert [path.name for path in tmp_path.iterdir()] == [reference["folder"]]
    assert replays.find(reference, pytest.fail).saved is not None


def test_only_the_latest_replay_is_kept_and_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    replays = Replays(tmp_path, never)
    first, _ = saved(used(0.6, 1, 9), tmp_path)
    second, _ = saved(used(0.6, 1, 10), tmp_path)
    (tmp_path / ".replay-7.unfinished").mkdir()
    (tmp_path / ".replay-7.unfinished" / "shard-0-0.npy").write_bytes(b"half")
    assert len(list(tmp_path.iterdir())) == 3
    replays.remove_unfinished()
    replays.prune(second)
    assert [path.name for path in tmp_path.iterdir()] == [second["folder"]] != [first["folder"]]
    replays.prune(None)
    assert list(tmp_path.iterdir()) == []


def test_a_replay_that_is_saved_twice_is_kept_once(tmp_path: Path) -> None:
    """Without a step between the two its files are the same, and so is its name."""
    replay = used(0.6, 2, 30)
    first, _ = saved(replay, tmp_path)
    again, problem = saved(replay, tmp_path)
    assert (again, problem) == (first, None)
    assert [path.name for path in tmp_path.iterdir()] == [first["folder"]]
    assert Replays(tmp_path, never).find(again, pytest.fail).saved is not None


def test_a_replay_that_is_saved_again_takes_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    replay = used(0.6, 2, 30)
    first, _ = saved(replay, tmp_path)
    damage_a_bit(tmp_path / first["folder"])
    again, problem = saved(replay, tmp_path)
    assert (again, problem) == (first, None)
    assert [path.name for path in tmp_path.iterdir()] == [first["folder"]]
    assert Replays(tmp_path, never).find(again, pytest.fail).saved is not None


def test_large_arrays_are_written_in_pieces(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 255, (50, 3, 7), np.uint8)
    ticks = []
    parts = (array[i : i + 8] for i in range(0, 50, 8))
    path = tmp_path / "a.npy"
    found = write_array(path, array.shape, array.dtype, parts, lambda: ticks.append(1))
    assert (np.load(path) == array).all() and len(ticks) == 8
    assert found == SavedFile("a.npy", found.sha256, path.stat().st_size)
