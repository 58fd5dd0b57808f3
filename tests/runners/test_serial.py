"""One process, one seed: every bit again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.serial_runs import run_serially


@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_a_seed_gives_the_same_weights_and_metrics_again(tmp_path: Path, inference: Any) -> None:
    first, first_reports = run_serially(tmp_path / "1", 7, inference=inference)
    second, second_reports = run_serially(tmp_path / "2", 7, inference=inference)
    assert len(first_reports) >= 4
    assert first_reports == second_reports
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.equal(second[name]), name


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    first, _ = run_serially(tmp_path / "1", 7)
    second, _ = run_serially(tmp_path / "2", 8)
    assert not all(tensor.equal(second[name]) for name, tensor in first.items())
