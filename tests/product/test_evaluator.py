"""A run is evaluated while it trains, and afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sampleforge.api import Trainer
from sampleforge.evaluation import evaluate
from sampleforge.run.folder.trust import Trust
from tests.support.product import SMALL, is_possible, small


@pytest.mark.long
@pytest.mark.parametrize("algo", SMALL)
def test_a_run_is_evaluated_while_it_trains(algo: str, data: Path, tmp_path: Path) -> None:
    more = {"evaluate_interval": 500, "evaluate_episodes": 4, "report_interval": 0.1}
    with Trainer(small(algo, tmp_path / "run", data, **more)) as trainer:
        for _ in trainer:
            pass
        found = trainer.evaluate(episodes=3)
    assert is_possible(algo, found["return_mean"])
    assert "eval_return_mean" in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.long
@pytest.mark.parametrize("algo", SMALL)
def test_a_finished_run_is_evaluated(algo: str, trained: Callable[[str], Path]) -> None:
    found = evaluate(trained(algo), episodes=3, trust=Trust(everything=True))
    assert is_possible(algo, found["return_mean"])
