"""When the rollouts of ranks end: late ones are cut short, early ones go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sampleforge.api import train
from sampleforge.models.config import ModelConfig
from sampleforge.peers.boards import RolloutBoard
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import length
from sampleforge.run.reports.metrics import read_metrics
from sampleforge.topologies.config import DdppoConfig
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.rank import Preemption
from tests.support.graphs import build
from tests.support.short_rollouts import config
from tests.support.variants import slow


def test_preemption_waits_for_enough_ranks_and_enough_steps() -> None:
    board = RolloutBoard(5)
    last = Preemption(board, 4, 5, rollout=16, sync_fraction=0.6, min_rollout_fraction=0.25)
    ranks = [Preemption(board, rank, 5, 16, 0.6, 0.25) for rank in range(4)]
    for rank in ranks[:2]:
        assert not rank.finish()
    assert not last.ends(15)
    ranks[2].finish()
    assert not last.ends(3) and last.ends(4) and last.missing() == [3, 4]
    assert last.finish(), "it was cut short"
    last.iteration = 2
    last.begin()
    assert not last.ends(15) and last.missing() == [0, 1, 2, 3, 4], "another iteration, anew"
    assert not last.finish()


def test_an_early_rank_keeps_sampling_until_enough_ranks_have_their_steps() -> None:
    """... and is not said to have been cut short. Until then it may be the one that is missed."""
    board = RolloutBoard(3)
    early, other, late = (Preemption(board, rank, 3, 16, 0.6, 0.25) for rank in range(3))
    assert not early.ends(16) and not early.ends(17) and not late.ends(14)
    assert other.ends(16) and late.missing() == [0, 1, 2]
    assert early.ends(18) and late.ends(9)
    assert [rank.finish() for rank in (early, other, late)] == [False, False, True]
    assert late.missing() == []


def test_an_early_rank_begins_no_step_while_enough_ranks_are_in_their_last_one() -> None:
    """They would wait for it. But none is cut short by those who are not there yet."""
    board = RolloutBoard(3)
    early, other, late = (Preemption(board, rank, 3, 16, 0.6, 0.25) for rank in range(3))
    assert not early.ends(16) and not other.ends(14) and not early.ends(17)
    assert not other.ends(15) and early.ends(18)
    assert not early.finish()
    assert not late.ends(9) and other.ends(16) and late.ends(9)
    board = RolloutBoard(2)  # of a variable number, five of which are taken at once
    early, other = (Preemption(board, rank, 2, 40, 1.0, 0.25, at_once=5) for rank in range(2))
    assert not early.ends(40) and not other.ends(34) and not early.ends(41)
    assert not other.ends(36) and early.ends(43) and other.ends(40)


def test_a_rank_does_not_keep_sampling_in_rounds_shorter_than_the_boards_latency() -> None:
    """Of a board that hangs in a store; what is late is cut short all the same."""
    board = RolloutBoard(2)
    here, there = (Preemption(board, rank, 2, 16, 0.5, 0.25) for rank in range(2))
    for rank in (here, there):
        rank.begin()
    board.latency = 60.0
    patient = Preemption(RolloutBoard(2), 0, 2, 16, 1.0, 0.25)
    patient.begin()
    assert not patient.ends(16), "memory has no latency"
    assert not there.ends(15) and here.ends(16) and there.ends(15) and there.finish()


def test_rollouts_that_restart_after_a_lost_rank_do_not_count_as_complete() -> None:
    """The rank that had its steps samples again, as does the one that is replaced."""
    board = RolloutBoard(2)
    here, lost = (Preemption(board, rank, 2, 16, 1.0, 0.25) for rank in range(2))
    for rank in (here, lost):
        rank.iteration = 3
        rank.begin()
    assert not lost.ends(16) and here.ends(16)
    here.finish()
    successor = Preemption(board, 1, 2, 16, 1.0, 0.25)
    successor.iteration = 3
    for rank in (here, successor):
        rank.begin()
    assert not here.ends(16) and not successor.ends(8) and here.missing() == [0, 1]
    assert successor.ends(16)


@pytest.mark.parametrize("splits", [1, 2, 3])
def test_all_splits_of_a_rank_end_with_the_same_step(splits: int) -> None:
    graph, _ = build(config(num_splits=splits))
    actor, slots = graph.nodes[0].worker, graph.groups[0].exchange.slots
    assert isinstance(actor, ActorWorker)
    asked: list[int] = []

    def ends(t: int) -> bool:
        asked.append(t)
        return t >= 5

    exchange = graph.groups[0].exchange
    assert isinstance(exchange, SlotExchange)
    actor._stepping._ends_early = ends
    actor.start()
    lengths: list[int] = []
    try:
        while len(lengths) < 4 * splits:
            actor.step()
            while (slot := exchange.take_ready()) is not None:
                lengths.append(length(slots, slot))
                exchange.give_back(slot)
    finally:
        actor.close()
    assert lengths == [5] * 4 * splits
    assert asked[:6] == [1, 2, 3, 4, 5, 0], "once for each round of steps"


@pytest.mark.multiprocess(timeout=180)
@pytest.mark.parametrize("core", [slow("none"), "gru"])
def test_ranks_do_not_wait_for_a_slower_rank(tmp_path: Path, core: str) -> None:
    """Two ranks, both of which must finish: the faster one gives more than --rollout steps."""
    model = ModelConfig(hidden_sizes=(8,), core=core, core_size=8)  # type: ignore[arg-type]
    chosen = DdppoConfig(
        env="tests.support.envs:StragglerEnv",
        env_kwargs={"factor": 2},
        device="cpu",
        num_ranks=2,
        num_envs_per_worker=2,
        rollout=32,
        minibatch_size=32,
        num_epochs=2,
        model=model,
        train_for_env_steps=1200,
        report_interval=1,
        quiet=True,
        debug=True,
        run_dir=str(tmp_path / "run"),
    )
    train(chosen)
    reports = [r for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if r["updates"]]
    last = reports[-1]
    assert last["rank0_preempted"] == last["rank1_preempted"] == 0
    assert last["rank1_steps"] > 1.1 * last["rank0_steps"]
    assert last["checksums_compared"] * 4 == last["updates"], "two epochs of two minibatches each"
    assert all(r["ratio_deviation_first"] < 1e-5 for r in reports if "ratio_deviation_first" in r)


@pytest.mark.multiprocess(timeout=180)
def test_a_slow_rank_ends_its_rollouts_early_and_the_other_ranks_wait_less(tmp_path: Path) -> None:
    """Rank 0 needs 8 times as long for a step. Without pre-emption all others wait for it."""
    last = {}
    for fraction in (1.0, 0.6):
        folder = tmp_path / str(fraction)
        chosen = DdppoConfig(
            env="tests.support.envs:StragglerEnv",
            device="cpu",
            num_ranks=3,
            num_envs_per_worker=2,
            rollout=32,
            minibatch_size=64,
            num_epochs=2,
            train_for_env_steps=600,
            report_interval=1,
            sync_fraction=fraction,
            max_rollout_fraction=1.0,
            quiet=True,
            debug=True,
            run_dir=str(folder),
        )
        train(chosen)
        last[fraction] = [r for r in read_metrics(folder / "metrics.jsonl") if r["updates"]][-1]
    waiting, preempting = last[1.0], last[0.6]
    assert [waiting[f"rank{r}_preempted"] for r in range(3)] == [0, 0, 0]
    assert preempting["rank0_preempted"] > 0 == preempting["rank1_preempted"]
    assert preempting["rank0_steps"] < preempting["rank1_steps"]
    # From the start of the first rollout to the end of the last update, by rank 1's account.
    rate = {f: r["env_steps"] / (r["rank1_rollout_s"] + r["rank1_wait_s"]) for f, r in last.items()}
    assert rate[0.6] > 1.3 * rate[1.0]
