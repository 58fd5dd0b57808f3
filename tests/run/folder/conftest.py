"""A run folder for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sampleforge.run.folder.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """A run folder, locked by this test."""
    found = RunFolder(tmp_path / "runs" / "a")
    found.create()
    yield found
    found.close()
