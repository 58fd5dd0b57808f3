"""What tests of reports get."""

from __future__ import annotations

import pytest

from sampleforge.run.folder.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    yield folder
    folder.close()
