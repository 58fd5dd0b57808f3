"""Actors that are killed are replaced: no slot is lost, wherever the kill strikes, and no half
written rollout is ever handed over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sampleforge.env.place import row_seeds
from sampleforge.replay.exchange import ReplayExchange
from sampleforge.rollouts.exchange import RolloutExchange, SlotExchange
from sampleforge.rollouts.slots import Owner
from sampleforge.shared.records import EpisodeQueue, EpisodeRecord
from sampleforge.shared.wakeup import Wakeup
from tests.support.kills import kills, live, watched
from tests.support.processes import StartCli
from tests.support.runs import last_report, summary, train, until, until_trained, worker
from tests.support.slots import some_slots
from tests.support.variants import slow

SLOTS = 4
STEP = 7
"""Of the instants at which a successor is killed, every so many; another selection for each
instant at which its predecessor was killed."""


def of_appo() -> tuple[RolloutExchange, Callable[[], list[int]]]:
    """An exchange with one actor, and what its other end does once: takes what is ready, and
    gives it back."""
    exchange = SlotExchange(some_slots(SLOTS, debug=True), [Wakeup()], [Wakeup()])

    def consume() -> list[int]:
        found = []
        while (slot := exchange.take_ready()) is not None:
            found.append(slot)
            exchange.give_back(slot)
        return found

    return exchange, consume


def of_apex() -> tuple[RolloutExchange, Callable[[], list[int]]]:
    """The same of a replay with two shards, which evict at once."""
    slots = some_slots(SLOTS, debug=True)
    exchange = ReplayExchange(slots, [Wakeup()], [Wakeup(), Wakeup()], 2, lambda *_: None)
    for slot in range(SLOTS):
        exchange.lease(slot // 2, 0, slot)

    def consume() -> list[int]:
        found = []
        for shard in (0, 1):
            while (slot := exchange.take_ready(shard, 0)) is not None:
                assert slot // 2 == shard, "to the right owner"
                found.append(slot)
                slots.move(slot, Owner.READY, Owner.STORED)
                slots.move(slot, Owner.STORED, Owner.FREE)
                exchange.lease(shard, 0, slot)
        return found

    return exchange, consume


def life(exchange: RolloutExchange) -> None:
    """An actor's life: two rollouts at a time, unless it is killed before."""
    exchange.take_over(0)
    taken = [exchange.take_free(0), exchange.take_free(0)]
    for slot in taken:
        if slot is not None:
            exchange.slots.reward[slot] = slot
            exchange.hand_over(0, slot)


Make = Callable[[], tuple[RolloutExchange, Callable[[], list[int]]]]


@pytest.mark.long
@pytest.mark.parametrize("make", [of_appo, of_apex])
def test_a_restarted_actor_finds_all_its_slots_wherever_it_was_killed(make: Make) -> None:
    """And so has the successor's, which was killed at any instant as well."""
    instants = sum(1 for _ in kills(lambda: partial(life, make()[0])))
    assert instants > 30
    for first in range(1, instants + 1):
        for second in range(1 + first % STEP, instants + 30, STEP):
            exchange, consume = make()
            for at in (first, second):
                live(partial(life, exchange), at)
            exchange.take_over(0)
            for slot in consume():
                assert exchange.slots.generation[slot] >= 1
            taken = [exchange.take_free(0) for _ in range(SLOTS)]
            assert sorted(t for t in taken if t is not None) == list(range(SLOTS)), (first, second)
            assert exchange.take_free(0) is None
            assert (exchange.slots.owner == Owner.WRITING).all()


@pytest.mark.long
@pytest.mark.parametrize("make", [of_appo, of_apex])
def test_no_slot_is_lost_if_the_other_end_moves_between_any_two_stores(make: Make) -> None:
    """The reader of an actor's rollouts goes on while the actor is killed and its successor takes
    over."""
    exchanges: list[tuple[RolloutExchange, Callable[[], list[int]]]] = []

    def new_life() -> Callable[[], object]:
        exchanges.append(make())
        return partial(life, exchanges[-1][0])

    for _ in kills(new_life):
        exchange, consume = exchanges.pop()
        watched(lambda exchange=exchange: exchange.take_over(0), consume)  # type: ignore[misc]
        taken = [exchange.take_free(0) for _ in range(SLOTS)]
        assert sorted(t for t in taken if t is not None) == list(range(SLOTS))


@pytest.mark.parametrize("make", [of_appo, of_apex])
def test_complete_rollouts_arrive_once_and_incomplete_ones_never_after_a_kill(make: Make) -> None:
    """A rollout that was complete holds its slot's number; a renewed or untouched slot does not:
    debug poisons it with NaN."""
    exchanges: list[RolloutExchange] = []

    def new_life() -> Callable[[], object]:
        exchanges.append(make()[0])
        exchanges[-1].slots.reward.fill(float("nan"))
        return partial(life, exchanges[-1])

    for _ in kills(new_life):
        exchange = exchanges.pop()
        slots = exchange.slots
        before = slots.generation.copy()
        exchange.take_over(0)
        for slot in range(SLOTS):
            if slots.owner[slot] == Owner.READY:
                assert (slots.reward[slot] == slot).all()
                assert slots.generation[slot] == before[slot]
            elif slots.owner[slot] == Owner.WRITING:
                assert slots.generation[slot] == before[slot] + 1


def test_an_incomplete_episode_record_is_not_read_and_does_not_block_the_queue() -> None:
    episodes = EpisodeQueue(2, capacity=2)
    episodes.put([EpisodeRecord(1, 0, 3, 7.5, 9)])
    arrays = episodes._arrays
    arrays["who"][1, 1] = 5  # written, and killed before the ring's end moved
    assert episodes.take() == [EpisodeRecord(1, 0, 3, 7.5, 9)]
    assert episodes.take() == []
    episodes.put([EpisodeRecord(1, 1, 2, -1.0, 4, policy=2)])
    assert episodes.take() == [EpisodeRecord(1, 1, 2, -1.0, 4, policy=2)]


def test_a_restarted_actor_plays_other_episodes_and_the_first_life_the_same_ones() -> None:
    assert row_seeds(3, 1, 0, 4) == row_seeds(3, 1, 0, 4, life=0)
    lives = [tuple(row_seeds(3, 1, 0, 4, life=life)) for life in range(3)]
    assert len({seed for seeds in lives for seed in seeds}) == 12
    assert lives[1] != tuple(row_seeds(3, 1, 0, 4, resumes=1))


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize(
    ("algo", "inference"),
    [("appo", "worker"), ("apex", "inline"), slow("appo", "inline"), slow("apex", "worker")],
)
def test_a_killed_actor_is_replaced_until_the_restart_budget_is_used_up(
    start_cli: StartCli, tmp_path: Path, algo: str, inference: str
) -> None:
    run = tmp_path / "run"
    more = ["--learning-starts", "500"] if algo == "apex" else []
    more += ["--inference", inference, "--max-worker-restarts", "1", "--debug"]
    process = start_cli(*train("CartPole-v1", *more, algo=algo))
    until_trained(process, run)
    first = worker(process, "sampleforge: actor 0")
    first.kill()
    until(lambda: last_report(run).get("restarts") == 1, process)
    seen = last_report(run)
    until(lambda: last_report(run)["updates"] > seen["updates"] + 20, process)
    until(lambda: last_report(run)["env_steps"] > seen["env_steps"] + 2000, process)
    worker(process, "sampleforge: actor 0").kill()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "it is restarted (1 of 1 times)" in stderr
    assert "actor 0 was ended by signal SIGKILL" in stderr.rstrip().splitlines()[-1]
    assert "it is restarted (1 of 1 times)" in (run / "log.txt").read_text()
    written = summary(run)
    assert written["status"] == "failed" and written["restarts"] == 1
