"""What acts writes the columns that its algorithm names, and no more; the seed of its place alone
decides what it does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.acting import ActingPlace
from sampleforge.rollouts.slots import RECORDED
from sampleforge.shared.counters import Counters, Progress, TrainingClock
from sampleforge.topologies.builders import ActingMaker, PolicySeeds, initial_weights
from sampleforge.topologies.graph import COUNTERS
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.starts import ResumePoint
from tests.support.graphs import spec_of
from tests.support.product import SMALL, small

ROWS = 3
MORE: dict[str, dict[str, Any]] = {
    **{algo: {} for algo in SMALL if algo != "marwil"},
    "apex, quantiles, noise": {"value_distribution": "quantile", "noisy_nets": True},
    "appo, boxes": {"env": "Pendulum-v1", "noise_correlation": 0.5},
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("case", MORE)
def test_acting_writes_the_columns_that_the_record_names(
    case: str, recorded: bool, tmp_path: Path
) -> None:
    config = replace(small(case.split(",")[0], tmp_path, tmp_path), **MORE[case])
    spec, pair = spec_of(config), pairing(config)
    config = pair.resolve_defaults(config, spec)
    maker = pair.network_maker(config, spec, 0)
    start = ResumePoint(1)
    place = partial(
        ActingPlace,
        num_rows=ROWS,
        recorded=recorded,
        ladder=torch.full((ROWS,), 0.5),
        progress=Progress(Counters(COUNTERS, 1), TrainingClock()),
    )
    weights = initial_weights(maker, start)
    new_acting = ActingMaker(maker, weights, PolicySeeds(0, start, None), "cpu", place)
    size = spec.observations["obs"].shape[0]
    obs = {"obs": np.random.default_rng(0).normal(size=(ROWS, size)).astype(np.float32)}
    taken = []
    for _ in range(2):
        acting = new_acting()
        acting.refresh()
        first, rows = np.ones(ROWS, np.bool_), torch.arange(ROWS)
        acted = acting.act_on_arrays(obs, np.zeros((ROWS, 0), np.float32), first, rows)
        named = {**pair.algorithm.columns(config), **dict.fromkeys(RECORDED if recorded else ())}
        assert set(acted.extras) == set(named)
        assert all(len(column) == ROWS for column in acted.extras.values())
        taken.append(acted.actions["action"].tolist())
    assert taken[0] == taken[1]
