"""What members publish: whole at every instant, also while the run prunes its checkpoints and after
kills."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sampleforge.run.folder.checkpoint import Checkpoint, CheckpointStore
from sampleforge.tools.pbt import published
from sampleforge.tools.pbt.published import Published, PublishedStates


class Run:
    """The checkpoints of a member's run, of which it keeps one, and what it publishes."""

    def __init__(self, folder: Path, member: str) -> None:
        self.store = CheckpointStore(folder / "members" / member / "checkpoints", 1)
        self.store.folder.mkdir(parents=True)
        self.problems: list[str] = []
        self.folder = folder / "published"
        self.states = PublishedStates(self.folder, self.problems.append)
        self.member = member

    def save(self, value: int) -> str:
        path = self.store.save(
            Checkpoint({"model/x": torch.full((4,), float(value))}, {"value": value}),
            env_steps=value,
            version=value,
            return_mean=None,
        )
        return path.name

    def publish(self, value: int) -> Published:
        state = Published(self.member, value, value, 1.0, 2.0, 3, self.save(value))
        self.states.publish(state, self.store.folder)
        return state


def test_a_published_checkpoint_outlives_the_run_s_own(tmp_path: Path) -> None:
    run = Run(tmp_path, "0")
    state = run.publish(1)
    run.save(2)
    assert not (run.store.folder / state.checkpoint).exists()
    found = run.states.fetch("0")
    assert found is not None and found[0] == state
    assert found[1].state == {"value": 1} and found[1].tensors["model/x"][0] == 1.0


def test_the_checkpoint_before_is_kept_for_members_that_have_read_its_name(tmp_path: Path) -> None:
    run = Run(tmp_path, "0")
    names = [f"0-{run.publish(value).checkpoint}" for value in (1, 2, 3)]
    assert sorted(path.name for path in run.folder.glob("*.safetensors")) == names[1:]


def test_members_with_similar_ids_do_not_touch_each_other(tmp_path: Path) -> None:
    one, other = Run(tmp_path, "1"), Run(tmp_path, "1-2")
    kept = other.publish(1)
    for value in (1, 2, 3):
        one.publish(value)
    found = other.states.fetch("1-2")
    assert found is not None and found[0] == kept


def test_a_state_whose_checkpoint_was_replaced_meanwhile_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, "0")
    run.publish(1)
    read = Path.read_bytes
    busy = [2, 3]

    def read_late(path: Path) -> bytes:
        if path.suffix == ".safetensors" and path.parent == run.folder and busy:
            run.publish(busy.pop(0))
            run.publish(busy.pop(0))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_late)
    found = run.states.fetch("0")
    assert found is not None and found[1].state == {"value": 3}


def test_a_member_that_was_killed_before_its_state_was_written_has_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, "0")
    before = run.publish(1)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(published, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            run.publish(2)
    found = run.states.fetch("0")
    assert found is not None and found[0] == before
    run.publish(3)
    run.publish(4)
    assert len(list(run.folder.glob("*.safetensors"))) == 2


def test_without_hard_links_the_checkpoint_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    run = Run(tmp_path, "0")
    run.publish(1)
    found = run.states.fetch("0")
    assert found is not None and found[1].state == {"value": 1}
    assert not list(run.folder.glob("*.tmp"))


def test_damaged_files_are_refused_and_said_to_be(tmp_path: Path) -> None:
    run = Run(tmp_path, "0")
    state = run.publish(1)
    path = run.folder / f"0-{state.checkpoint}"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert run.states.fetch("0") is None and "checksum" in run.problems[-1]
    for text in ("{", "[]", '{"member": "1"}', '{"member": "0", "other": 1}'):
        (run.folder / "0.json").write_text(text)
        assert run.states.read() == {} and run.states.fetch("0") is None
        assert "0.json is ignored" in run.problems[-1]


def test_a_state_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    run = Run(tmp_path, "0")
    state = run.publish(1)
    secret = tmp_path / "secret.safetensors"
    secret.write_bytes((run.folder / f"0-{state.checkpoint}").read_bytes())
    moved = replace(state, checkpoint="../../secret.safetensors")
    run.states.publish(replace(state, round=2), run.store.folder)
    text = (run.folder / "0.json").read_text()
    (run.folder / "0.json").write_text(text.replace(state.checkpoint, moved.checkpoint))
    assert run.states.fetch("0") is None and "not of this member" in run.problems[-1]
