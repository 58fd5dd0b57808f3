"""The checks that refusals change nothing can fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.folders import named_in, opened_unchanged


def test_all_that_a_command_names_below_its_folder_is_compared(tmp_path: Path) -> None:
    cwd = tmp_path / "cwd"
    (cwd / "run" / "checkpoints").mkdir(parents=True)
    file = cwd / "run" / "config.yaml"
    file.write_text("a: 1")
    args = ["train", "--run-dir", "run", "--out", str(file), "--seed", "1", "..", "." * 5000, ""]
    before = named_in(args, cwd)
    assert before["run"] and set(before["run"]) == {"checkpoints", "config.yaml"}
    assert before[str(file)] and before["1"] is None and ".." not in before
    file.write_text("a: 2")
    after = named_in(args, cwd)
    assert {word for word in before if before[word] != after[word]} == {"run", str(file)}


@pytest.mark.parametrize("text", ["no", "is in use by process 7"])
@pytest.mark.parametrize("changes", [True, False])
def test_a_session_that_fails_to_open_must_leave_its_folder(
    tmp_path: Path, changes: bool, text: str
) -> None:
    def opened(session: Any) -> None:
        if changes:
            (tmp_path / "spec.json").write_text("{}")
        raise ValueError(text)

    session = SimpleNamespace(asked=SimpleNamespace(run_dir=str(tmp_path)))
    caught = changes and text == "no"
    with pytest.raises(AssertionError if caught else ValueError, match=text):
        opened_unchanged(opened)(session)
