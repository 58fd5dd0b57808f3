"""Ranks that torchrun has started: what they are told, how they meet, what they tell each other."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from sampleforge.config import ConfigError, to_plain
from sampleforge.peers.boards import StoreBoard
from sampleforge.peers.group import RankGroup, RankLost, SoloGroup
from sampleforge.peers.rendezvous import StartupRendezvous, own_address, peer_mismatch
from sampleforge.runtime.machine import Machine, assumed
from sampleforge.runtime.torchrun import World
from sampleforge.shared.counters import Counters
from sampleforge.shared.events import Event
from sampleforge.shared.records import EpisodeList, EpisodeRecord
from sampleforge.topologies import devices
from sampleforge.topologies.config import AppoConfig, DdppoConfig
from sampleforge.topologies.devices import backend_and_device
from sampleforge.topologies.ranks.plan import check_world
from sampleforge.torchrun import follower_graph
from sampleforge.workers.group_member import MetricsSync
from tests.support.rank_threads import on_ranks

VARIABLES = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}


def world(rank: int = 0, size: int = 2, port: int = 1, **kwargs: Any) -> World:
    return World(rank, size, rank, size, "127.0.0.1", port, **kwargs)


# ---- what they are told ----


def test_the_environment_says_which_rank_a_process_is() -> None:
    assert World.of_environment({"MASTER_PORT": "1"}) is None
    assert World.of_environment(VARIABLES) == World(3, 4, 1, 2, "10.0.0.1", 29500)
    more = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    found = World.of_environment({**VARIABLES, **more})
    assert found is not None and found.has_store and found.attempt == 2


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not"),
        ({"RANK": "4"}, "RANK=4, WORLD_SIZE=4, .* contradict each other"),
        ({"LOCAL_RANK": "2"}, "contradict each other"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', but must be a number"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(change: dict[str, str], answer: str) -> None:
    with pytest.raises(ConfigError, match=answer):
        World.of_environment({**VARIABLES, **change})


@pytest.mark.parametrize(
    ("config", "answer"),
    [
        (AppoConfig(env="CartPole-v1"), "WORLD_SIZE is 2, .* appo is of one machine"),
        (DdppoConfig(env="CartPole-v1", num_ranks=3), "--num-ranks is 3 .* WORLD_SIZE is 2"),
        (DdppoConfig(env="CartPole-v1", benchmark=True), "--benchmark is for one machine"),
        (DdppoConfig(env="CartPole-v1", serial=True), "--serial is for one machine"),
        (DdppoConfig(env="CartPole-v1"), "start the ranks again 3 times .* give --run-dir"),
    ],
)
def test_settings_that_do_not_go_with_torchrun_are_refused(config: Any, answer: str) -> None:
    with pytest.raises(ConfigError, match=answer):
        check_world(config, world(max_attempts=3))


def test_each_rank_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "is_nccl_available", lambda: True)
    with assumed(Machine(cores=4, gpus=2)):
        assert backend_and_device("cuda", world(1))[::2] == ("nccl", "cuda:1")
        assert backend_and_device("cuda", world(2, size=3))[::2] == ("gloo", "cuda:0")
        assert backend_and_device("cpu", world(1))[::2] == ("gloo", "cpu")


def test_under_torchrun_the_command_refuses_algorithms_of_one_machine(
    run_cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as started:
        for name, value in {**VARIABLES, "TORCHELASTIC_RUN_ID": "x"}.items():
            started.setenv(name, value)
        done = run_cli("train", "appo", "--env", "CartPole-v1")
    assert done.returncode == 2 and "WORLD_SIZE is 4" in done.stderr
    monkeypatch.setenv("RANK", "0")
    done = run_cli("train", "ddppo", "--env", "CartPole-v1")
    assert done.returncode == 2 and "but WORLD_SIZE, MASTER_PORT, MASTER_ADDR" in done.stderr


# ---- how they meet ----


@pytest.fixture
def port() -> Iterator[int]:
    """Of a store that some launcher keeps."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


def about(**kwargs: Any) -> dict[str, Any]:
    said = {"host": "h", "address": "10.0.0.1", "version": "1", "backend": "gloo", "checkpoint": -1}
    return {**said, **kwargs}


def meet(
    port: int, of_rank: Callable[[int], dict[str, Any]], ranks: int = 3
) -> list[tuple[Any, str]]:
    """What each rank gets out of it, and the round's token."""

    def rank(number: int) -> tuple[Any, str]:
        found = StartupRendezvous(world(number, ranks, port, has_store=True), patience=20.0)
        if number == 0:
            time.sleep(0.2)  # the others find what the round before has left
            return found.lead({"seed": 7}, of_rank(0)), found.token
        return found.follow(of_rank(number)), found.token

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(rank, range(ranks)))


def test_every_round_has_its_own_token_whatever_the_store_holds(port: int) -> None:
    tokens = set()
    for ranks in (3, 3, 2):
        found = meet(port, lambda rank: about(checkpoint=-1 - rank), ranks)
        assert [said["checkpoint"] for said in found[0][0]] == [-1, -2, -3][:ranks]
        assert [message for message, _ in found[1:]] == [{"seed": 7}] * (ranks - 1)
        assert len({token for _, token in found}) == 1
        tokens.add(found[0][1])
    assert len(tokens) == 3


def test_all_ranks_receive_the_mismatch_of_one_rank(port: int) -> None:
    with pytest.raises(ConfigError, match=r"rank 2 .h. has nccl"):
        meet(port, lambda rank: about(backend="nccl" if rank == 2 else "gloo"))


def test_a_missing_rank_is_named(port: int) -> None:
    alone = StartupRendezvous(world(0, 3, port, has_store=True), patience=0.3)
    with pytest.raises(RankLost, match="of 3 ranks, rank 1, 2 did not come"):
        alone.lead({}, about())
    waiting = StartupRendezvous(world(1, 3, port, has_store=True), patience=0.3)
    with pytest.raises(RankLost, match=r"rank 1 of 3 has waited 0.3 s .* did not come"):
        waiting.follow(about())


def test_the_only_rank_of_torchrun_exchanges_nothing(port: int) -> None:
    """With a store, through which it would find others."""
    alone = StartupRendezvous(world(0, 1, port, has_store=True), patience=5.0)
    alone.lead({}, about())
    with assumed(Machine(cores=4, gpus=1)):
        backend, note, device = backend_and_device("cuda", world(0, 1))
    join = alone.of_group(backend, 60.0, device)
    assert isinstance(join.join(0), SoloGroup) and join.device == "cuda:0"
    assert note == "one rank, which exchanges no gradients"


def test_a_port_that_is_taken_is_named_with_the_remedy() -> None:
    with socket.create_server(("", 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"another program has port {taken}; .*--master-port"):
            StartupRendezvous(world(0, port=taken), patience=1.0)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ([about(), about()], None),
        ([about(address="127.0.0.1")] * 2, None),
        ([about(), about(address="127.0.0.1")], "rank 1 .h. can be reached at 127.0.0.1 only"),
        ([about(), about(version="2")], "rank 0 .h. has version 1, but rank 1 .h. has 2; install"),
        ([about(), about(backend="nccl")], "rank 0 .h. has backend gloo, but rank 1 .h. has nccl"),
        ([about(backend=None), about(backend="nccl")], None),
        ([about(checkpoint=5), about()], None),
        ([about(), about(checkpoint=5)], "rank 1 .h. has a checkpoint of 5 env steps"),
    ],
)
def test_ranks_that_cannot_work_together_are_refused(
    said: list[dict[str, Any]], answer: str | None
) -> None:
    found = peer_mismatch(said)
    if answer is None:
        assert found is None
    else:
        with pytest.raises(ConfigError, match=answer):
            raise ConfigError(found)


def test_the_address_is_that_of_the_interface_towards_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert own_address(world()) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nonsense0")
    with pytest.raises(ConfigError, match="GLOO_SOCKET_IFNAME is 'nonsense0', but there is no"):
        own_address(world())


def test_ranks_with_different_commands_do_not_train_together(port: int) -> None:
    config = DdppoConfig(env="CartPole-v1", learning_rate=1e-4, device="cpu", quiet=True)
    rendezvous = StartupRendezvous(world(1, port=port, has_store=True), patience=5.0)
    asked = {"env": "CartPole-v1", "learning_rate": 2e-4}
    with pytest.raises(ConfigError, match=r"learning_rate: 0.0002 -> 0.0001\s+.*same command"):
        follower_graph(config, {"asked": {**to_plain(config), **asked}}, rendezvous)


# ---- how they end when they hang ----


def watched(inside: str, limit: float, starting: bool = False) -> subprocess.CompletedProcess[str]:
    """A process that sleeps for a while inside a watch, whose heart never beats."""
    script = (
        "import time\n"
        "from sampleforge.runtime.watch import Watch\n"
        f"watch = Watch('rank 3', {limit}, lambda: 0.0, lambda: {starting})\n"
        "watch.start()\n"
        f"{inside}\n"
        "watch.close()\n"
    )
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("starting", "doing"), [(False, "in one step"), (True, "making or resetting one environment")]
)
def test_a_rank_that_hangs_ends_with_its_stacks(starting: bool, doing: str) -> None:
    done = watched("with watch.inside(): time.sleep(50)", 0.2, starting)
    assert done.returncode == 1 and 'File "<string>", line 5 in <module>' in done.stderr
    assert f"\nrank 3: has been {doing} for " in done.stderr


@pytest.mark.multiprocess
def test_a_rank_that_is_busy_elsewhere_does_not_hang() -> None:
    done = watched("with watch.inside(): pass\ntime.sleep(1.5)", 0.5)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.multiprocess
def test_a_rank_ends_when_torchrun_has_died(tmp_path: Path) -> None:
    """A shell in its place starts one, waits until it is watched, and is killed."""
    rank = (
        "import pathlib, time; from sampleforge.runtime.watch import Watch; "
        "watch = Watch('rank 3', 0.2, time.monotonic, bool); watch.start(); "
        "pathlib.Path('watched').touch(); time.sleep(50)"
    )
    script = f'{sys.executable} -c "{rank}" & until [ -e watched ]; do sleep 0.1; done; kill -9 $$'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == -9 and "its parent process (torchrun) has died" in done.stderr


# ---- what they tell each other ----


def until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def test_the_board_in_the_store_has_the_steps_of_all_ranks(port: int) -> None:
    def store() -> Any:
        return PrefixStore("round", TCPStore("127.0.0.1", port, is_master=False))

    boards = [StoreBoard(store(), rank, 2) for rank in range(2)]
    try:
        assert boards[0].missing(1) == [0, 1] and boards[0].reached(1) == 0
        boards[1].mark(1, 3)
        until(lambda: boards[0].reached(3) == 1)
        assert boards[0].reached(4) == 0 and boards[0].missing(3) == [0]
        boards[0].mark(0, 3)
        until(lambda: boards[1].reached(3) == 2)
        assert boards[1].missing(3) == []
    finally:
        for board in boards:
            board.close()


def test_a_board_without_its_store_does_not_hold_up_a_rank() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    board = StoreBoard(TCPStore("127.0.0.1", server.port, is_master=False), 0, 1)
    try:
        assert board.missing(1) == [0]
        del server
        until(lambda: board.missing(1) is None)
        board.mark(0, 1)
        assert board.reached(1) == 1
    finally:
        board.close()


NUMBER = (1 << 62) + 12345
"""Of an episode's statistics."""


def test_counters_reach_all_ranks_and_episodes_and_events_the_driver() -> None:
    def work(group: RankGroup) -> tuple[list[float], list[EpisodeRecord], list[Event]]:
        counters, played, known = Counters(("a", "b"), 3), EpisodeList(), EpisodeList()
        sync = MetricsSync(counters, played, known if group.rank == 0 else None)
        for round in range(2):
            counters.row(group.rank)["a"] += 10 + group.rank
            played.extend(
                EpisodeRecord(0, 1, at, 1.5 * group.rank, 7, stats=NUMBER + at)
                for at in range(2 * group.rank)
            )
            text = "ü" * (round + 1) * group.rank
            sync.events.extend([Event(f"rank {group.rank}", "log", ("warning", text))])
            sync.events.extend([Event("actor", "episode_stats", (NUMBER, {"score": math.inf}))])
            sync.exchange(group)
        counters.row(group.rank)["a"] += 100  # not told yet
        return counters.column("a").tolist(), known.take(), sync.events.take()

    found = on_ranks(3, work)
    told = np.array([20.0, 22.0, 24.0])
    for rank, (column, *_) in enumerate(found):
        assert column == (told + 100 * (np.arange(3) == rank)).tolist()
    assert [len(known) for _, known, _ in found] == [2 * (2 + 4), 0, 0]
    assert found[0][1][1:3] == [
        EpisodeRecord(1, 1, 1, 1.5, 7, stats=NUMBER + 1),
        EpisodeRecord(2, 1, 0, 3.0, 7, stats=NUMBER),
    ]
    stats = Event("actor", "episode_stats", (NUMBER, {"score": math.inf}))
    logs = [Event(f"rank {r}", "log", ("warning", "ü" * n * r)) for n in (1, 2) for r in (0, 1, 2)]
    events = [each for log in logs for each in (log, stats)]
    assert sorted(found[0][2], key=str) == sorted(events, key=str)
    assert found[1][2] == found[2][2] == []
