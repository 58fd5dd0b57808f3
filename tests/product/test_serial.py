"""Two serial runs with one seed are the same, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sampleforge.api import train
from tests.support.product import SMALL, small
from tests.support.runs import newest


@pytest.mark.long
@pytest.mark.parametrize("algo", SMALL)
def test_serial_runs_are_repeated_bit_by_bit(
    algo: str, trained: Callable[[str], Path], data: Path, tmp_path: Path
) -> None:
    first = newest(trained(algo))
    train(small(algo, tmp_path / "again", data))
    again = newest(tmp_path / "again")
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    train(small(algo, tmp_path / "other", data, seed=2))
    other = newest(tmp_path / "other")
    assert any(not torch.equal(first[n], other[n]) for n in first if n.startswith("model/"))
