"""Replay workers that are killed are replaced: nothing that was stored is lost, every request is
answered once, wherever the kill strikes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.compressed_replay import LEASES as BUFFERS
from tests.support.compressed_replay import CompressedReplay
from tests.support.kills import kills, live
from tests.support.processes import StartCli
from tests.support.replay_worker import ReplayWorld
from tests.support.runs import last_report, summary, train, until, until_trained, worker
from tests.support.variants import slow

pytestmark = pytest.mark.long


def busy_world(alpha: float) -> ReplayWorld:
    """A full replay, before a step that takes rollouts, evicts, leases, draws and takes errors."""
    world = ReplayWorld(alpha)
    for _ in range(4):
        world.round()
    world.check()
    world.play()
    world.learn()
    return world


@pytest.mark.parametrize(
    ("alpha", "meanwhile"), [(0.6, 3), slow(0.0, 0), slow(0.6, 0), slow(0.0, 3)]
)
def test_nothing_is_lost_wherever_the_worker_is_killed(alpha: float, meanwhile: int) -> None:
    """``meanwhile``: rounds of actors and learner before there is a successor."""
    worlds: list[ReplayWorld] = []

    def new_life() -> Callable[[], object]:
        worlds.append(busy_world(alpha))
        return worlds[-1].worker.step

    points = 0
    for _ in kills(new_life):
        points += 1
        world = worlds.pop()
        for _ in range(meanwhile):
            world.play()
            world.learn()
        world.replace()
        world.check(in_order=not meanwhile)
        for _ in range(3):
            world.round()
        world.check(in_order=not meanwhile)
        assert world.samples > 10
    assert points > 100, "instants"


def test_nothing_is_lost_if_the_successor_is_killed_as_well() -> None:
    points = 0
    for first in range(1, 400, 23):
        worlds: list[ReplayWorld] = []

        def new_life(first: int = first, worlds: list[ReplayWorld] = worlds) -> Callable[[], None]:
            worlds.append(busy_world(0.6))
            live(worlds[-1].worker.step, first)
            worlds[-1].worker = worlds[-1].new_worker()
            return worlds[-1].begin

        for _ in kills(new_life, step=7):
            points += 1
            world = worlds.pop()
            world.replace()
            world.check()
            world.round()
            world.check()
    assert points > 100, "instants"


def test_compressed_frames_are_found_again_wherever_the_shard_is_killed() -> None:
    """Frames that compress badly, so that room for a slot may take several evictions."""
    replays: list[CompressedReplay] = []

    def new_life() -> Callable[[], object]:
        replays.append(CompressedReplay(capacity=6, ratio=2.0, noise=200))
        for _ in range(9):
            replays[-1].insert()
        replays[-1].complete()
        return replays[-1].store_complete

    new_life()()
    undisturbed = replays.pop().shard.stored_slots
    assert undisturbed
    points = 0
    for _ in kills(new_life, step=3):
        points += 1
        replay = replays.pop()
        replay.replace()
        every = replay.everything()
        assert replay.shard.stored_slots == undisturbed
        assert replay.check(every) == len(every.items)
        for _ in range(8):
            replay.insert()
        assert len(replay.leased) == BUFFERS, "no frame buffer is lost"
        assert replay.check(replay.shard.draw(64)) > 0
    assert points > 100, "instants"


def kill_one(process: subprocess.Popen[str], run: Path, life: int) -> None:
    """Kill a replay worker in its ``life``; everything is still there, and goes on."""
    before = last_report(run)
    worker(process, "sampleforge: replay 1").kill()
    until(lambda: last_report(run).get("restarts_replay") == life, process)
    seen = last_report(run)
    assert seen["replay_transitions"] >= before["replay_transitions"]
    until(lambda: last_report(run)["updates"] > seen["updates"] + 20, process)
    until(lambda: last_report(run)["env_steps"] > seen["env_steps"] + 500, process)


@pytest.mark.multiprocess(timeout=90)
@pytest.mark.parametrize("core", ["none", slow("gru")])
def test_a_killed_replay_worker_is_replaced_in_a_run(
    start_cli: StartCli, tmp_path: Path, core: str
) -> None:
    run = tmp_path / "run"
    more = ["--learning-starts", "500", "--num-replay-shards", "2", "--model.core", core]
    process = start_cli(*train("CartPole-v1", *more, "--debug", algo="apex"))
    until_trained(process, run)
    for life in (1, 2):
        kill_one(process, run, life)
    process.terminate()
    _, stderr = process.communicate(timeout=30)
    assert "it is restarted (2 of 3 times)" in stderr
    assert summary(run)["restarts_by_role"] == {"actor": 0, "replay": 2, "learner": 0}
