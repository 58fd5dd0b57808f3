"""What Ape-X reports: returns by epsilon, histograms of TD errors and priorities, ages."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sampleforge.algorithms.dqn.algorithm import DQN
from sampleforge.api import Trainer
from sampleforge.replay.histograms import BINS, count_positive, evenly, histogram
from sampleforge.run.reports.policy_statistics import ReturnsByExploration
from sampleforge.shared.records import EpisodeRecord
from sampleforge.topologies.graph import Exploration
from sampleforge.topologies.replay.ladder import exploration, ladder_of
from tests.support.apex_graphs import apex_config, batches_of, build_apex, limiter_of, serial_rounds


def histograms(folder: Path) -> Iterator[tuple[int, str, Any]]:
    """(step, tag, proto) of every histogram in TensorBoard's files, read by hand."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                if value.HasField("histo"):
                    yield event.step, value.tag, value.histo


@pytest.mark.parametrize("scale", [1e-4, 1.0, 3e3])
def test_counts_are_those_of_numpy(scale: float) -> None:
    values = np.random.default_rng(0).gamma(0.5, scale, 10_000)
    values[:100] = 0.0
    found = histogram(count_positive(values))
    assert found is not None
    edges = np.concatenate(([found.low], found.limits))
    assert (np.diff(edges) / edges[:-1] <= 0.25 + 1e-12).all()
    inside = values[values >= 2.0**-24]
    expected, _ = np.histogram(inside, edges)
    expected[0] += 9900 - len(inside)  # what is smaller counts as the smallest
    assert found.counts.tolist() == expected.tolist()


def test_values_beyond_the_range_count_in_the_first_or_last_bin() -> None:
    counts = count_positive(np.array([0.0, -1.0, 5e-324, 1e-30, 1e30]))
    assert (counts[0], counts[BINS - 1], counts.sum()) == (2, 1, 3)
    assert histogram(count_positive(np.zeros(3))) is None


def test_the_sample_of_a_large_tree_covers_every_row_and_step() -> None:
    """Rows differ in epsilon, and so in their priorities: no stride may miss any."""
    rows, rollout = 16, 50
    leaves = np.arange(2_000_000.0)
    seen = evenly(leaves, rows * rollout).astype(np.int64)
    assert len(seen) < 70_000
    per_place = np.bincount(seen % (rows * rollout), minlength=rows * rollout)
    assert per_place.min() > 0.98 * per_place.max() > 0
    assert len(evenly(leaves[:1000], rows * rollout)) == 1000


@pytest.mark.parametrize("items", [1, 6])
def test_priority_counts_are_empty_without_a_tree(items: int) -> None:
    assert not count_positive(evenly(np.empty(0), items)).any()


def test_returns_are_told_apart_by_epsilon() -> None:
    rows = [(0, 0, row) for row in range(20)]
    epsilons = {row: 0.4 ** (1 + 7 * i / 19) for i, row in enumerate(rows)}
    thirds = {row: (19 - i) // 7 for i, row in enumerate(rows)}
    returns = ReturnsByExploration(Exploration(thirds, epsilons), 100, {})
    own = [
        returns.take(EpisodeRecord(*row, ret=float(i), length=1))
        for i, row in enumerate(rows)
        for _ in range(2)
    ]
    assert sum(own) == 2 * 7, "the greediest third"
    found = returns.scalars()
    by_epsilon = [found[f"return_mean_epsilon_{epsilons[rows[i]]:.2g}"] for i in range(0, 20, 3)]
    assert by_epsilon == [1.0, 4.0, 7.0, 10.0, 13.0, 16.0, 18.5]
    assert len(found) == 3 + 7, "at most 8 parts of the ladder, beside all and two thirds"
    assert found["return_mean_all"] == 9.5
    assert found["return_mean_exploring_third"] == 2.5
    assert found["return_mean_middle_third"] == 9.0
    again = ReturnsByExploration(Exploration(thirds, epsilons), 100, returns.state())
    assert again.scalars() == found, "and goes on after a resume"
    again.forget()
    assert again.scalars() == {}


def test_each_row_of_a_run_has_its_epsilon() -> None:
    chosen = apex_config()
    graph, plan = build_apex(chosen)
    assert graph.groups[0].exploration == exploration(ladder_of(DQN, chosen, plan), plan)
    values = sorted(graph.groups[0].exploration.epsilon.values(), reverse=True)
    assert values == pytest.approx([0.4 ** (1 + 7 * i / 11) for i in range(12)])
    least = max(
        graph.groups[0].exploration.epsilon,
        key=lambda row: -graph.groups[0].exploration.epsilon[row],
    )
    assert graph.groups[0].exploration.third[least] == 0


@pytest.mark.long
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_histograms_are_of_the_shards_priorities_and_the_latest_errors(alpha: float) -> None:
    graph, _ = build_apex(apex_config(num_replay_shards=2, priority_alpha=alpha))
    assert graph.groups[0].histograms is not None
    for _ in serial_rounds(graph, 150):
        graph.groups[0].histograms.read()
    found = graph.groups[0].histograms.read()
    shards = [node.worker._shard for node in graph.nodes if node.worker.name[:6] == "replay"]  # type: ignore[attr-defined]
    sample_requests = batches_of(graph).requests
    errors = np.count_nonzero(sample_requests.errors > 0)
    if not alpha:
        assert set(found) == {"td_error"}, "nothing has a priority"
        return
    assert found["td_error"].counts.sum() == errors > 0
    leaves = np.concatenate([shard._tree.leaves for shard in shards])
    counted = found["priority"]
    stored = limiter_of(graph).replay_counters.stored.sum()
    assert counted.counts.sum() == pytest.approx(stored, abs=100), "of a moment ago"
    assert counted.low <= leaves[leaves > 0].min() * 2 and leaves.max() < counted.limits[-1] * 2


@pytest.mark.long
def test_a_run_reports_all_of_it(tmp_path: Path) -> None:
    chosen = apex_config(
        run_dir=str(tmp_path / "run"),
        serial=True,
        num_replay_shards=2,
        train_for_env_steps=4000,
        report_interval=0.5,
        quiet=True,
    )
    with Trainer(chosen) as trainer:
        for _ in trainer:
            pass
        folder = trainer.run_dir
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    expected = {"env_steps_per_s", "trained_per_s", "samples_per_insert", "replay_fill"}
    expected |= {
        "sample_age_mean",
        "stale_priority_updates",
        "replay_priority_sum_0",
        "replay_priority_sum_1",
    }
    expected |= {"return_mean", "return_mean_all", "return_mean_exploring_third"}
    assert expected <= set(last)
    assert 0 < last["sample_age_mean"] < last["replay_transitions"]
    by_epsilon = [name for name in last if name.startswith("return_mean_epsilon_")]
    assert 6 <= len(by_epsilon) <= 8 and "return_mean_epsilon_0.4" in by_epsilon
    drawn = list(histograms(folder / "tb"))
    assert {tag for _, tag, _ in drawn} == {"losses/td_error", "replay/priority"}
    step, _, proto = [one for one in drawn if one[1] == "replay/priority"][-1]
    assert step == last["env_steps"]
    assert proto.num == sum(proto.bucket) > 0 and len(proto.bucket_limit) == len(proto.bucket)
    assert "priority" not in last, "histograms are for TensorBoard alone"
