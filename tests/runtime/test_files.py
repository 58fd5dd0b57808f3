"""Files that a failed write leaves as they were."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sampleforge.runtime.files import write_atomically


def test_a_write_that_fails_names_the_file_and_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a write to a full disk names none."""
    path = tmp_path / "results.json"
    write_atomically(path, b"old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*results\.json'"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
