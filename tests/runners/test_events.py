"""Events from workers to the session: log lines, warnings, statistics of environments; and a worker
that dies with the lock of its queue in its hand."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from time import monotonic, sleep

import gymnasium as gym
import pytest

from sampleforge.api import Trainer, train
from sampleforge.runners.events import EventReader
from sampleforge.shared.events import (
    Event,
    EventLogHandler,
    EventSender,
    PythonWarnings,
    send,
    send_through,
)
from sampleforge.topologies.config import AppoConfig


class Chatty(gym.Env):
    """Reports its length as a statistic of its own, warns and logs."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        ended = self.t == 7
        if ended:
            logging.getLogger("chatty").warning("an episode has ended")
        info = {"episode_extra_stats": {"flags": self.t}} if ended else {}
        return self.observation_space.sample(), 1.0, ended, False, info


def config(folder: Path, **more) -> AppoConfig:
    return AppoConfig(
        env="tests.runners.test_events:Chatty",
        num_workers=1,
        num_envs_per_worker=4,
        run_dir=str(folder),
        **more,
    )


@pytest.mark.long
def test_statistics_of_an_environment_are_reported_in_a_serial_run(tmp_path: Path) -> None:
    train(config(tmp_path, serial=True, train_for_env_steps=2000))
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["env_flags"] == 7.0


@pytest.mark.multiprocess(timeout=90)
def test_statistics_and_log_lines_come_from_worker_processes(tmp_path: Path) -> None:
    with Trainer(config(tmp_path, report_interval=0.2, quiet=True)) as trainer:
        report = next(report for report in trainer if "env_flags" in report)
    assert report["env_flags"] == 7.0
    lines = (tmp_path / "log.txt").read_text().splitlines()
    said = [line for line in lines if "an episode has ended" in line]
    assert sum(" warning " in line for line in said) == 1, "a warning is told once"
    assert all(" actor 0 " in line for line in said)


def taken(reader: EventReader, count: int) -> list[Event]:
    """What has come, once it is so many events; AssertionError if it is not within seconds."""
    events: list[Event] = []
    deadline = monotonic() + 20
    while len(events) < count:
        events += reader.take()
        assert monotonic() < deadline, events
        sleep(0.01)
    return events


def test_events_come_in_order_and_the_last_ones_after_the_end() -> None:
    reader = EventReader()
    sender = reader.new_sender("actor 0")
    for i in range(100):
        sender("log", ("info", f"line {i}"))
    assert [e.payload[1] for e in taken(reader, 100)] == [f"line {i}" for i in range(100)]
    sender("log", ("info", "the last one"))
    reader.close()
    assert [e.payload[1] for e in reader.take()] == ["the last one"]


def waiting(sender: EventSender) -> list[Event]:
    """Take what is in a sender's queue."""
    events: list[Event] = []
    while not sender.queue.empty():
        events += sender.queue.get_many(block=False)
    return events


def test_a_full_queue_loses_events_without_waiting_and_says_how_many() -> None:
    sender = EventSender("actor 0")
    begun = monotonic()
    for _ in range(1000):
        sender("log", ("info", "x" * 1000))
    assert monotonic() - begun < 10
    arrived = len(waiting(sender))
    sender("log", ("info", "there is room again"))
    told, last = waiting(sender)
    assert told.payload[0] == "warning"
    assert told.payload[1].startswith(f"{1000 - arrived:,} log lines or statistics were lost")
    assert last.payload == ("info", "there is room again")


def test_events_of_a_process_without_a_session_are_dropped() -> None:
    send("log", ("info", "nobody listens"))
    heard: list[str] = []
    assert send_through(lambda kind, payload: heard.append(payload[1])) is None
    log = logging.Logger("mine")
    log.addHandler(EventLogHandler())
    log.warning("x %d", 3)
    send_through(None)
    assert heard == ["x 3"]


def test_a_warning_of_a_package_is_one_line_once_whatever_numbers_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[tuple[str, str]] = []
    send_through(lambda kind, payload: heard.append(payload))
    monkeypatch.setattr(warnings, "showwarning", PythonWarnings())
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for count in range(3):
            warnings.warn(f"\x1b[33mWARN: step {count}\x1b[0m", UserWarning, stacklevel=1)
        warnings.warn("another", DeprecationWarning, stacklevel=1)
    send_through(None)
    assert [level for level, _ in heard] == ["warning", "warning"]
    assert heard[0][1].startswith(f"UserWarning: WARN: step 0 ({__file__}:")
    assert heard[1][1].startswith("DeprecationWarning: another (")


DIES_WITH_THE_LOCK = """
import ctypes, multiprocessing, os, struct
from sampleforge.runners import events

def die(sender):
    # The mutex of a process-shared kind (128) lies 16 bytes before the number of its kind.
    memory = sender.queue.queue_obj_buffer
    numbers = struct.unpack(f"{len(memory) // 4}i", bytes(memory))
    mutex = ctypes.addressof(memory) + 4 * numbers.index(128) - 16
    assert ctypes.CDLL(None).pthread_mutex_lock(ctypes.c_void_p(mutex)) == 0
    os.kill(os.getpid(), 9)

if __name__ == "__main__":
    events.STUCK_S = 2.0
    events.LAST_LOOK_S = 30.0
    reader = events.EventReader()
    first, second = reader.new_sender("actor 0"), reader.new_sender("actor 1")
    process = multiprocessing.get_context("fork").Process(target=die, args=(first,))
    process.start()
    process.join()
    reader.retire(first)
    for i in range(200):
        second("log", ("info", f"{i}"))
        heard = []
        while not heard:
            heard = reader.take()
        assert heard[0].payload == ("info", f"{i}")
        if reader.abandoned:
            break
    successor = reader.new_sender("actor 0")
    successor("log", ("info", "I am back"))
    reader.close()
    assert [e.payload[1] for e in reader.take()] == ["I am back"]
    assert reader.abandoned == ["actor 0"]
    print("survived", flush=True)
    os._exit(0)  # the abandoned thread never returns
"""


@pytest.mark.multiprocess(timeout=60)
def test_a_worker_that_dies_with_the_lock_of_its_queue_costs_its_queue_only(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(DIES_WITH_THE_LOCK)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.stdout == "survived\n", done.stderr


KILLED_ANYWHERE = """
import multiprocessing, os, random, time
from sampleforge.runners import events

def send_without_end(sender):
    number = 0
    while True:
        sender("log", ("info", f"{number:07d}" * 200))
        number += 1

def take(reader, heard):
    for event in reader.take():
        level, text = event.payload
        if level == "warning":
            assert text.endswith("were lost: the event queue was full")
            continue
        assert text == text[:7] * 200, "whole"
        heard.setdefault(event.source, []).append(int(text[:7]))

if __name__ == "__main__":
    events.STUCK_S = 2.0
    reader, heard = events.EventReader(), {}
    moments = random.Random(0)
    for life in range(30):
        sender = reader.new_sender(f"life {life}")
        process = multiprocessing.get_context("fork").Process(
            target=send_without_end, args=(sender,)
        )
        process.start()
        while not heard.get(sender.source):
            take(reader, heard)
        time.sleep(moments.random() * 0.01)
        process.kill()
        process.join()
        reader.retire(sender)
        take(reader, heard)
    last = reader.new_sender("the last one")
    last("log", ("info", "0000007" * 200))
    while "the last one" not in heard or len(reader._senders) > 1:
        take(reader, heard)
        time.sleep(0.01)
    assert heard.pop("the last one") == [7]
    for numbers in heard.values():
        assert numbers == sorted(set(numbers)), "in order, and once"
    print(len(heard), "lives", flush=True)
    os._exit(0)  # the abandoned threads never return
"""


@pytest.mark.multiprocess(timeout=60)
def test_the_events_of_a_worker_that_is_killed_anywhere_are_whole_and_in_order(
    tmp_path: Path,
) -> None:
    """Also inside the queue, with its lock: then the rest of its events is lost, and no others."""
    script = tmp_path / "script.py"
    script.write_text(KILLED_ANYWHERE)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.stdout == "30 lives\n", done.stderr
