"""The small runs, each of which is made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sampleforge.api import train
from tests.support.product import record_data, small


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of CartPole."""
    folder = tmp_path_factory.mktemp("product") / "data"
    record_data(folder)
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Callable[[str], Path]:
    """Returns the folder of an algorithm's small run; copy it before you change it."""
    folders: dict[str, Path] = {}

    def of(algo: str) -> Path:
        if algo not in folders:
            folder = tmp_path_factory.mktemp("product") / "run"
            train(small(algo, folder, data))
            folders[algo] = folder
        return folders[algo]

    return of
