"""Intervals of estimates from recorded training data have the exact return as often as they say.

With -s the counts are printed meanwhile. Their results are in benchmarks/results/offline.md.
"""

from __future__ import annotations

import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sampleforge.api import load_policy
from sampleforge.models.config import ModelConfig
from sampleforge.tools.estimate import estimation
from sampleforge.tools.estimate.estimation import EstimationRule, estimate
from sampleforge.tools.estimate.fitted_q import cross_fitted_q
from sampleforge.topologies.config import AppoConfig
from tests.support.offline import run_slowly, wired
from tests.support.serial_runs import run_serially
from tests.support.stop_task import ENV, exact_return

NAMES = ("is", "wis", "pdis", "dr")
COUNTS = ("left_out", "beside_cut", "not_independent")
SETS = 200
LEAST, MOST = 183, 196
"""91.5% and 98%: the standard deviation of a share of 95% in 200 data sets is 1.5%."""
SIZES: dict[str, Any] = {
    "env": ENV,
    "num_workers": 1,
    "num_splits": 2,
    "num_envs_per_worker": 16,
    "rollout": 8,
    "model": ModelConfig(hidden_sizes=(16,)),
}


class Case(NamedTuple):
    """``box``: actions are a Box, so that every fourth row has correlated noise. The recorder acts
    in one of ``every`` rounds; so many ``rounds`` are recorded, of one env step of each of ``rows``
    rows. ``batch``: env steps of an update; the policies that record must not become so different
    from the one that is estimated that a few episodes have all of the weight, of which the command
    warns."""

    box: bool
    every: int
    rounds: int
    rows: int = 16
    batch: int | None = None


CASES = {
    "plain": Case(box=False, every=1, rounds=200),
    "correlated noise": Case(box=True, every=1, rounds=210, rows=32, batch=2048),
    "slow recorder": Case(box=False, every=11, rounds=500, rows=24, batch=3840),
}


def recorded(folder: Path, case: Case, seed: int) -> Path:
    """Record a training with weights of its own, which learns meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
    sizes = {**SIZES, "num_envs_per_worker": case.rows, "batch_size": case.batch}
    own = AppoConfig(
        env_kwargs={"box": case.box}, serial=True, seed=seed, record=str(folder), **sizes
    )
    run_slowly(wired(own)[0], case.rounds, every=case.every)
    return folder


@pytest.mark.slow(timeout=6 * 3600)  # each case 20 to 40 minutes of one free core
@pytest.mark.parametrize("name", CASES)
def test_intervals_have_the_exact_return_in_91_to_98_percent_of_200_data_sets(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out of a recording has no part in it: rows with correlated noise, the episodes
    that a slow recorder drops, those that its end cuts, and those of the same time."""
    fit = partial(cross_fitted_q, iterations=4, updates=25)  # any Q-function will do
    monkeypatch.setattr(estimation, "cross_fitted_q", fit)
    case, run = CASES[name], tmp_path / "run"
    run_serially(run, 1, env_kwargs={"box": case.box}, train_for_env_steps=3000, **SIZES)
    truth = exact_return(load_policy(run), box=case.box)
    covered, total = Counter[str](), Counter[str]()
    for seed in range(SETS):
        data = recorded(tmp_path / "data", case, 1000 + seed)
        found = estimate(run, data, EstimationRule(replicates=500, seed=seed))
        for each in NAMES:
            covered[each] += found[each]["low"] <= truth <= found[each]["high"]
            total[each] += found[each]["value"]
        for key in ("episodes", "episodes_effective", "dropped_episodes", "dropped_cut_episodes"):
            total[key] += found[key]
        for key in COUNTS:
            total[key] += found[f"episodes_{key}"]
        if (seed + 1) % 20 == 0:
            means = {key: round(value / (seed + 1), 2) for key, value in total.items()}
            print(f"{name}, {seed + 1} data sets: {dict(covered)} of {truth:.3f}; means {means}")
    assert total["not_independent"] if case.box else not total["not_independent"]
    assert bool(total["dropped_episodes"]) == (case.every > 1) and not total["dropped_cut_episodes"]
    assert total["left_out"] and total["beside_cut"]
    for each in NAMES:
        assert LEAST <= covered[each] <= MOST, (each, covered)
