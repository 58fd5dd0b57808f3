"""Batches that a thread gathers ahead hold what those gathered in turn hold; it ends with the
learner, and the learner with it."""

from __future__ import annotations

import dataclasses
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.ops.running_stats import Gather
from sampleforge.rollouts.batch import (
    Batch,
    BatchBuilder,
    BatchSource,
    PrefetchingBatchSource,
    Seconds,
    SerialBatchSource,
    SlotBatches,
)
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import Owner
from sampleforge.run.session import Session
from sampleforge.runners.base import WorkerDied
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.config import AppoConfig
from sampleforge.topologies.slots import wire as appo
from sampleforge.topologies.slots.plan import gathers_ahead
from sampleforge.workers.learner import LearnerWorker
from tests.support.graphs import build, updates
from tests.support.slots import some_slots

CPU = torch.device("cpu")
SLOTS, PER_BATCH = 8, 2


class VerdictContext:
    """An actor's and a learner's end of some slots; `write` numbers the rollouts from 1."""

    def __init__(self) -> None:
        self.slots = some_slots(SLOTS, debug=True)
        self.wakeup = Wakeup()
        self.actor_wakeup = Wakeup()
        self.exchange = SlotExchange(self.slots, [self.actor_wakeup], [self.wakeup])
        self.builders = [BatchBuilder(self.slots, PER_BATCH) for _ in range(2)]
        self.spent = np.zeros(1)
        self.written = 0
        self.device = CPU

    def write(self) -> bool:
        """Hand a rollout over, every column filled with its number; False without a free slot."""
        slot = self.exchange.take_free(0)
        if slot is None:
            return False
        self.written += 1
        for column in self.slots.columns().values():
            column[slot] = self.written
        self.exchange.hand_over(0, slot)
        return True

    def ahead(self, builders: list[BatchBuilder] | None = None) -> PrefetchingBatchSource:
        return PrefetchingBatchSource(
            self.exchange, builders or self.builders, self.wakeup, self.spent, self.device
        )

    def in_turn(self, *, synchronous: bool = False) -> SerialBatchSource:
        return SerialBatchSource(
            self.exchange, self.builders[0], self.wakeup, self.spent, synchronous=synchronous
        )

    def owners(self, owner: Owner) -> int:
        return int((self.slots.owner == owner).sum())


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Iterator[VerdictContext]:
    """The thread looks for slots only when it is woken: a wake-up that were lost would show."""
    monkeypatch.setattr("sampleforge.rollouts.batch.POLL_INTERVAL", 10**6)
    made = VerdictContext()
    yield made


@contextmanager
def closing(batch_source: PrefetchingBatchSource) -> Iterator[PrefetchingBatchSource]:
    try:
        yield batch_source
    finally:
        batch_source.close()


def until(condition: Callable[[], Any]) -> Any:
    give_up_at = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < give_up_at, "it never came true"
        time.sleep(0.001)
    return found


def numbers(batch: Batch) -> list[int]:
    """The rollouts in a batch; AssertionError if its columns do not agree on them."""
    columns = [batch.reward, *batch.obs.values(), *batch.actions.values(), batch.version]
    found = [column.flatten(2).amax((0, 2)) if column.ndim > 2 else column[0] for column in columns]
    for column in found:
        assert torch.equal(column.long(), found[0].long())
    rows = found[0].view(PER_BATCH, -1)
    assert (rows == rows[:, :1]).all() and (batch.reward == batch.reward[0]).all()
    return rows[:, 0].long().tolist()


def taken_of(batch_source: BatchSource) -> Batch:
    """The next complete batch."""
    found = until(lambda: batch_source.take(0.0))
    assert found is not None
    batch: Batch = found.batch
    return batch


def test_the_next_batch_is_gathered_while_one_is_learned_from(setting: VerdictContext) -> None:
    with closing(setting.ahead()) as batch_source:
        for _ in range(6):
            setting.write()
        first = taken_of(batch_source)
        assert numbers(first) == [1, 2]
        until(lambda: setting.owners(Owner.FREE) == SLOTS - 2)
        assert setting.owners(Owner.READY) == 2, "there is no third batch to copy them into"
        until(lambda: batch_source._complete)  # the thread says so after it has freed the slots
        assert numbers(first) == [1, 2]
        batch_source.done()
        second = taken_of(batch_source)
        assert numbers(second) == [3, 4]
        until(lambda: setting.owners(Owner.FREE) == SLOTS)
        assert numbers(second) == [3, 4], "the third batch lies where the first one was"
        batch_source.done()
        assert numbers(taken_of(batch_source)) == [5, 6]
        assert setting.spent[0] > 0


@pytest.mark.parametrize("way", ["ahead", "in turn", "in turn, synchronous"])
def test_every_rollout_is_learned_from_once_in_order(setting: VerdictContext, way: str) -> None:
    """Freed slots are poisoned: a copy that came too late would not agree with itself."""
    batch_source: BatchSource
    if way == "ahead":
        batch_source = setting.ahead()
    else:
        batch_source = setting.in_turn(synchronous=way.endswith("synchronous"))
    learned: list[int] = []
    try:
        while len(learned) < 200:
            while setting.written < 200 and setting.write():
                pass
            batch_source.gather()
            taken = batch_source.take(0.0)
            if taken is not None:
                learned += numbers(taken.batch)
                batch_source.done()
    finally:
        batch_source.close()
    assert learned == list(range(1, 201))
    assert setting.owners(Owner.FREE) == SLOTS


class Failing(BatchBuilder):
    def add(self, slot: int) -> bool:
        raise ValueError(f"deliberate: slot {slot} cannot be read")


def test_take_raises_the_exception_that_ended_the_gathering_thread(
    setting: VerdictContext,
) -> None:
    with closing(setting.ahead([Failing(setting.slots, PER_BATCH)])) as batch_source:
        setting.write()
        until(lambda: batch_source.wakeup.wait(1.0) and batch_source._error)
        with pytest.raises(ValueError, match="deliberate") as caught:
            batch_source.take(0.0)
        stack = "".join(traceback.format_exception(caught.value))
        assert "_gather_one" in stack and "in add" in stack, "the thread's own stack"


def test_a_wake_up_that_may_be_meant_for_the_learner_is_passed_on(
    setting: VerdictContext,
) -> None:
    with closing(setting.ahead()) as batch_source:
        assert not batch_source.wakeup.wait(0.05)
        setting.wakeup.set()
        assert batch_source.wakeup.wait(60.0)


@pytest.mark.parametrize("rollouts", [0, 1, SLOTS])
def test_close_ends_the_gathering_thread_in_any_state(
    setting: VerdictContext, rollouts: int
) -> None:
    batch_source = setting.ahead()
    for _ in range(rollouts):
        setting.write()
    until(lambda: len(batch_source._complete) == min(2, rollouts // PER_BATCH))
    batch_source.close()
    assert not any(thread.name == "gather ahead" for thread in threading.enumerate())


class Device:
    """Of torch.cuda what `Fence` and `side_stream` use, per thread; keeps a log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[str, str, int]] = []
        self._of_thread = threading.local()
        device = self

        class Event:
            def record(self, stream: str) -> None:
                device.log.append((stream, "record", id(self)))

        class Stream(str):
            def wait_event(self, event: Event) -> None:
                device.log.append((self, "wait", id(event)))

        @contextmanager
        def stream(entered: Stream) -> Iterator[None]:
            self._of_thread.stream = entered
            yield

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: Stream("side"))
        monkeypatch.setattr(torch.cuda, "stream", stream)
        monkeypatch.setattr(
            torch.cuda,
            "current_stream",
            lambda device: getattr(self._of_thread, "stream", Stream("learner's")),
        )


def test_on_a_gpu_copies_and_kernels_keep_their_order(
    monkeypatch: pytest.MonkeyPatch, setting: VerdictContext
) -> None:
    """Copies into a batch come after the kernels that read it, and kernels after the copies, each
    on the stream of its thread. Only the device waits for a stream, no thread does."""
    device = Device(monkeypatch)
    setting.device = torch.device("cuda")

    class Logging(BatchBuilder):
        def add(self, slot: int) -> bool:
            device.log.append(("side", "copy", 0))
            return super().add(slot)

    builder = Logging(setting.slots, PER_BATCH)
    with closing(setting.ahead([builder])) as batch_source:
        for expected in ([1, 2], [3, 4]):
            for _ in range(PER_BATCH):
                setting.write()
            assert numbers(taken_of(batch_source)) == expected
            batch_source.done()
        until(lambda: len(device.log) == 14)
    read, filled = device.log[0][2], device.log[4][2]
    learned = [("learner's", "wait", filled), ("learner's", "record", read)]
    copied = [("side", "wait", read), *[("side", "copy", 0)] * 2, ("side", "record", filled)]
    made = [("learner's", "record", read)]
    assert device.log == [*made, *copied, *learned, *copied, *learned, copied[0]]


def test_prefetching_is_only_for_a_gpu_and_asynchronous_mode() -> None:
    config = AppoConfig(env="CartPole-v1", num_workers=2, num_envs_per_worker=4, async_rl=True)
    _, plan = build(config)
    gpu = dataclasses.replace(plan, device="cuda:0")
    assert gathers_ahead(gpu, serial=False)
    assert not gathers_ahead(gpu, serial=True)
    assert not gathers_ahead(plan, serial=False)
    assert not gathers_ahead(dataclasses.replace(gpu, synchronous=True), serial=False)


def test_serial_mode_gathers_in_turn() -> None:
    config = AppoConfig(env="CartPole-v1", serial=True, num_envs_per_worker=4, batch_size=128)
    for graph, _ in updates(config, 1):
        worker = graph.groups[0].learner.worker
        assert isinstance(worker, LearnerWorker) and isinstance(worker._source, SerialBatchSource)
        assert threading.active_count() == 1


class FailingBatches(SlotBatches):
    def source(
        self, wakeup: Wakeup, count: Mapping[str, Seconds], version: int, gather: Gather
    ) -> BatchSource:
        failing = [Failing(self.exchange.slots, self.slots_per_batch)]
        spent = count["batch_s"]
        return PrefetchingBatchSource(self.exchange, failing, wakeup, spent, self.device)


def small_run(folder: Path, env_steps: int) -> Session:
    config = AppoConfig(
        env="CartPole-v1",
        num_workers=2,
        num_envs_per_worker=8,
        async_rl=True,
        train_for_env_steps=env_steps,
        report_interval=0.2,
        run_dir=str(folder),
        debug=True,
        quiet=True,
        seed=3,
    )
    return Session(config)


@pytest.mark.multiprocess(timeout=120)
def test_a_run_with_prefetching_trains_saves_and_resumes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(appo, "gathers_ahead", lambda plan, serial: True)
    versions = []
    for env_steps in (10_000, 20_000):
        with small_run(tmp_path / "run", env_steps) as run:
            for _ in run.reports():
                pass
            counters = run.graph.counters
            assert counters.total("batch_s") > 0
            assert counters.total("trained_steps") > 4_000, "of 10,000; some were on their way"
        versions.append(run.statistics.summary()["updates"])
    assert versions[1] > versions[0] > 0


@pytest.mark.multiprocess(timeout=120)
def test_a_run_ends_with_the_traceback_of_the_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(appo, "SlotBatches", FailingBatches)
    with pytest.raises(WorkerDied) as caught, small_run(tmp_path / "run", 10**9) as run:
        for _ in run.reports():
            pass
    text = str(caught.value)
    assert "learner failed" in text and "_gather_one" in text
    assert text.splitlines()[-1].startswith("ValueError: deliberate: slot")
