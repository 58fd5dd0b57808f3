"""Checkpoints: exact, atomic, refused when damaged, never lost in silence."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from sampleforge.api import train
from sampleforge.run.checkpoints import CheckpointTimer
from sampleforge.run.folder.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    decode,
    encode,
)
from sampleforge.topologies.config import ApexConfig, AppoConfig, DdppoConfig
from tests.support.full_disk import full_disk


def checkpoint(number: int) -> Checkpoint:
    """A small checkpoint that says which one it is."""
    return Checkpoint({"w": torch.full((3, 2), float(number))}, {"number": number})


def save(store, number, return_mean=None, milestone=False, copies=0):
    """Checkpoint ``number`` at 100 env steps each."""
    return store.save(
        checkpoint(number),
        env_steps=100 * number,
        version=number,
        return_mean=return_mean,
        milestone=milestone,
        copies=copies,
    )


def load(store, which="latest"):
    """(number, log lines) of what the store gives."""
    log: list[str] = []
    found = store.load(which, log=log.append)
    assert found is not None
    restored, entry = found
    assert restored.tensors["w"].eq(restored.state["number"]).all()
    assert entry.env_steps == 100 * restored.state["number"]
    return restored.state["number"], log


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def test_round_trip_is_exact():
    weights = torch.randn(5, 4)
    tensors = {
        "transposed": weights.t(),
        "view": weights[1],
        "scalar": torch.tensor(0.1, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "bf16": torch.randn(3).bfloat16(),
        "flags": torch.tensor([True, False]),
        "rng": torch.get_rng_state(),
    }
    state = {"big": 2**127 + 1, "third": 1 / 3, "none": None, "list": [1, "ä", {"x": True}]}
    restored = decode(encode(Checkpoint(tensors, state), {}))
    assert restored.state == state
    for name, tensor in tensors.items():
        assert restored.tensors[name].dtype == tensor.dtype
        assert torch.equal(restored.tensors[name], tensor)
    restored.tensors["rng"].add_(1)  # its own memory, writable


@pytest.mark.parametrize("state", [{"a": (1, 2)}, {1: 2}, {"a": {"b": torch.ones(1)}}, {"a": {3}}])
def test_a_state_that_json_would_change_is_refused(store, state):
    with pytest.raises(TypeError, match="state"):
        store.save(Checkpoint({}, state), env_steps=0, version=0, return_mean=None)
    assert store.load(log=pytest.fail) is None


def test_keeps_latest_best_and_milestones(store):
    returns = [1.0, 9.0, None, 2.0, float("nan"), 3.0]
    for number, mean in enumerate(returns):
        save(store, number, mean, milestone=number == 2)
    entries = json.loads((store.folder / "manifest.json").read_text())["entries"]
    assert {entry["env_steps"]: entry["kinds"] for entry in entries} == {
        100: ["best"],
        200: ["milestone"],
        400: ["latest"],
        500: ["latest"],
    }
    files = {path.name for path in store.folder.glob("*.safetensors")}
    assert files == {entry["file"] for entry in entries}
    assert load(store) == (5, []) and load(store, "best") == (1, [])


def test_nothing_saved_is_no_checkpoint(store):
    assert store.load(log=pytest.fail) is None


def test_survives_pickling_and_moving(store, tmp_path):
    store = pickle.loads(pickle.dumps(store))
    save(store, 1)
    shutil.move(store.folder, tmp_path / "elsewhere")
    assert load(CheckpointStore(tmp_path / "elsewhere", 2)) == (1, [])


def refused(store, path):
    """The damaged latest one (2) is said to be refused, and 1 is used."""
    number, log = load(store)
    assert number == 1
    assert f"checkpoint {path.name} is refused" in log[0]
    assert "using checkpoint" in log[-1] and "100 env steps" in log[-1]


def test_truncated_files_are_refused(store):
    save(store, 1)
    path = save(store, 2)
    whole = path.read_bytes()
    for length in [0, 1, 7, 8, 9, *range(10, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refused(store, path)
    path.write_bytes(whole + b"x")
    refused(store, path)


def test_flipped_bits_are_refused(store):
    save(store, 1)
    path = save(store, 2)
    whole = path.read_bytes()
    rng = random.Random(0)
    for _ in range(100):
        flipped = bytearray(whole)
        flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        refused(store, path)


class Malicious:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


PAYLOADS = {
    "pickle": pickle.dumps(Malicious()),
    "huge header": (2**62).to_bytes(8, "little") + b"{}",
    "header of a terabyte": (2**40).to_bytes(8, "little") + b"{" * 100,
    "header without end": (64).to_bytes(8, "little") + b"{" * 64,
    "nested header": (60_000).to_bytes(8, "little") + b"[" * 60_000,
    "other safetensors": (2).to_bytes(8, "little") + b"{}",
    "text": b"hello",
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_foreign_files_are_refused_even_with_their_own_checksum(store, payload, tmp_path):
    from hashlib import sha256

    save(store, 1)
    path = save(store, 2)
    path.write_bytes(payload)
    manifest = store.folder / "manifest.json"
    found = json.loads(manifest.read_text())
    entry = next(entry for entry in found["entries"] if entry["file"] == path.name)
    entry |= {"sha256": sha256(payload).hexdigest(), "size": len(payload)}
    manifest.write_text(json.dumps(found))
    refused(store, path)
    digest = sha256(payload).hexdigest()[:16]  # and one that the manifest does not know
    path.rename(store.folder / f"000000000300-{digest}.safetensors")
    assert load(store)[0] == 1
    assert not os.path.exists("unpickled")


def test_a_damaged_file_is_an_error_if_it_is_the_only_one(store):
    path = save(store, 1)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no valid checkpoint.*0 bytes of.*another run"):
        store.load(log=lambda _: None)
    path.unlink()
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        store.load(log=lambda _: None)


@pytest.mark.parametrize(
    "text", ["", "{", '{"entries": 3}', '{"entries": [{"file": "x"}]}', "[]", "\x00"]
)
def test_a_damaged_manifest_is_rebuilt_from_the_files(store, text):
    save(store, 1, 7.0)
    save(store, 2, 3.0)
    (store.folder / "manifest.json").write_text(text)
    number, log = load(store)
    assert number == 2 and "manifest.json is damaged" in log[0]
    assert load(store, "best")[0] == 1
    save(store, 3, 4.0)
    assert load(store) == (3, []) and load(store, "best") == (1, [])


def test_a_lost_manifest_is_rebuilt_and_a_damaged_one_alone_is_an_error(store):
    save(store, 1)
    path = save(store, 2)
    manifest = store.folder / "manifest.json"
    manifest.unlink()
    assert load(store) == (2, [])
    manifest.write_text("{")
    for file in store.folder.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        store.load(log=lambda _: None)
    assert not path.exists()


def test_a_manifest_cannot_name_files_elsewhere(store, tmp_path):
    save(store, 1)
    manifest = store.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"file": "', '"file": "../'))
    assert "names files that are not checkpoints" in load(store)[1][0]


def test_a_kill_between_the_file_and_the_manifest_loses_nothing(store):
    save(store, 1)
    before = (store.folder / "manifest.json").read_bytes()
    save(store, 2)
    (store.folder / "manifest.json").write_bytes(before)
    assert load(store) == (2, [])


def test_the_latest_checkpoint_is_the_one_saved_last_though_a_damaged_one_had_more_steps(store):
    """The latest is the one saved last, also if a damaged one of more env steps came before."""
    save(store, 1)
    save(store, 5).write_bytes(b"")
    assert load(store)[0] == 1
    save(store, 2)
    assert load(store) == (2, [])


def test_older_weights_never_take_the_place_of_later_ones(store):
    """Neither as the latest, nor, with the return that the later ones had, as the best."""
    for number in (6, 7, 8):
        save(store, number, return_mean=float(number))
    files = sorted(store.folder.iterdir())
    with pytest.raises(CheckpointError, match=r"update 0 are older .* update 7"):
        save(store, 0, return_mean=100.0)
    assert sorted(store.folder.iterdir()) == files
    assert load(store) == (8, []) and load(store, "best") == (8, [])
    save(store, 8, return_mean=9.0)  # no update was made in between


def test_a_full_disk_leaves_the_previous_checkpoint_whole(store):
    save(store, 1)
    files = sorted(store.folder.iterdir())
    with full_disk(100), pytest.raises(OSError):
        save(store, 2)
    assert sorted(store.folder.iterdir()) == files
    assert load(store) == (1, [])


def test_a_disk_that_fills_up_before_the_manifest(store):
    save(store, 1)
    room = 100 + (store.folder / "manifest.json").stat().st_size  # for one entry, not for two
    with full_disk(room), pytest.raises(OSError):
        save(store, 2)
    assert load(store) == (2, [])
    assert not list(store.folder.glob(".*.tmp"))


def test_leftovers_of_a_killed_save_are_removed(store):
    save(store, 1)
    leftover = store.folder / ".x.tmp"
    leftover.write_text("half")
    save(store, 2)
    assert not leftover.exists()


def test_the_best_is_that_of_the_best_evaluation(store):
    """Returns of training count only where there is none. After the same evaluation the first
    checkpoint has the weights that are nearest to the evaluated ones."""
    rated = [(500.0, None), (1.0, (10.0, 100)), (2.0, (30.0, 200)), (3.0, (30.0, 200))]
    rated += [(4.0, (float("nan"), 300)), (5.0, (20.0, 400))]
    for number, (mean, evaluation) in enumerate(rated):
        found, steps = evaluation or (None, None)
        store.save(
            checkpoint(number),
            env_steps=100 * number,
            version=number,
            return_mean=mean,
            eval_return_mean=found,
            eval_env_steps=steps,
        )
    assert load(store, "best") == (2, [])
    (store.folder / "manifest.json").unlink()
    assert load(store, "best")[0] == 2, "the files themselves say so"


def test_without_a_rating_the_best_is_the_latest_and_said_to_be(store):
    for number in range(3):
        save(store, number)
    number, (said,) = load(store, "best")
    assert number == 2 and said.endswith("using the latest")


def test_the_best_is_not_one_of_weights_that_a_copy_has_replaced(store):
    """Of a population's member: it is the best since the last copy, or the newest one."""
    save(store, 0, 9.0, milestone=True)
    assert load(store, "best") == (0, [])
    save(store, 1, copies=1, milestone=True)
    number, (said,) = load(store, "best")
    assert number == 1 and "since the last copy has a mean return yet" in said
    save(store, 2, 5.0, copies=1)
    for number in (3, 4, 5):
        save(store, number, 4.0, copies=1)
    assert load(store, "best") == (2, []) and load(store)[0] == 5
    save(store, 6, 3.0, copies=2)
    assert load(store, "best") == (6, [])
    assert len(list(store.folder.glob("*.safetensors"))) == 4, "two milestones, the latest two"


@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_another_best_is_kept_once_the_best_is_damaged(store, damage):
    for number, return_mean in enumerate([100.0, 500.0, 80.0, 90.0], 1):
        save(store, number, return_mean)
    assert load(store, "best")[0] == 2
    (best,) = store.folder.glob("000000000200-*")
    if damage == "cut":
        best.write_bytes(best.read_bytes()[:-1])
    else:
        best.unlink()
    for number, return_mean in enumerate([60.0, 450.0, 10.0, 20.0, 30.0], 5):
        save(store, number, return_mean)
    assert load(store, "best")[0] == 6
    assert load(store)[0] == 9


def test_a_manifest_of_an_earlier_version_is_read(store):
    for number in range(3):
        save(store, number, 3.0 - number)
    path = store.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for entry in manifest["entries"]:
        del entry["eval_return_mean"], entry["eval_env_steps"], entry["copies"]
    path.write_text(json.dumps(manifest))
    assert load(store, "best") == (0, [])


def test_the_first_checkpoint_is_due_early_if_something_was_learned():
    now, learned = [0.0], list[bool]()
    timer = CheckpointTimer(120.0, lambda: bool(learned), clock=lambda: now[0])
    seen = []
    for second in range(0, 400):
        now[0] = float(second)
        if second == 40:
            learned.append(True)
        if timer.due:
            seen.append(second)
            timer.restart()
    assert seen == [40, 160, 280]
    for interval, learns, first in [(120.0, True, 30), (120.0, False, 120), (7.0, False, 7)]:
        now[0] = 0.0
        timer = CheckpointTimer(interval, partial(bool, learns), clock=lambda: now[0])
        while not timer.due:
            now[0] += 1.0
        assert now[0] == first


ENV = "tests.support.envs:CodeEnv"
EVERY, ROWS = 500, 8


def milestones(run: Path) -> list[int]:
    entries = json.loads((run / "checkpoints" / "manifest.json").read_text())["entries"]
    return [entry["env_steps"] for entry in entries if "milestone" in entry["kinds"]]


def settings(run: Path, env_steps: int) -> dict[str, Any]:
    return {
        **{"env": ENV, "run_dir": str(run), "serial": True, "quiet": True},
        **{"train_for_env_steps": env_steps, "milestone_interval": EVERY, "keep_checkpoints": 1},
    }


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        lambda **more: AppoConfig(num_envs_per_worker=ROWS, async_rl=True, **more),
        lambda **more: ApexConfig(num_envs_per_worker=ROWS, learning_starts=1200, **more),
        lambda **more: DdppoConfig(num_envs_per_worker=ROWS, rollout=16, **more),
    ],
    ids=["appo", "apex", "ddppo"],
)
def test_a_checkpoint_is_written_at_each_milestone(tmp_path: Path, config: Any) -> None:
    """Also at those before the first update: appo and apex learn after the first one or two."""
    run = tmp_path / "run"
    train(config(**settings(run, 1800)))
    assert [steps // EVERY for steps in milestones(run)] == [1, 2, 3]
    assert all(steps % EVERY < 16 * ROWS for steps in milestones(run)), "not later than it need be"
    train(config(**settings(run, 2600)))
    assert [steps // EVERY for steps in milestones(run)] == [1, 2, 3, 4, 5], "after a resume too"
