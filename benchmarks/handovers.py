"""The cost of handing a small fixed-size message from one process to another.

For each channel, between two real processes, each kept on a core of its own:
  round trip     a message there and its answer back, both sides blocking (wall time)
  CPU, blocking  processor time of one side per round trip: one send, one receive that had to sleep
  own cost       send and receive of a message that is already there, by one process alone

    taskset -c 0,1 python benchmarks/handovers.py
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import mmap
import multiprocessing
import os
import resource
import select
import struct
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Protocol

import faster_fifo
from machine import describe, pin, table

from sampleforge.shared.wakeup import FutexWakeup

ONE = (1).to_bytes(8, "little")
RECORD = struct.Struct("<iiq")
"""Worker, slot, generation: 16 bytes, as a slot hand-over has."""
MESSAGE = (3, 17, 123_456)
SPIN_S = 50e-6
"""Seconds: what the kernel takes to wake a process on another core."""


class Channel(Protocol):
    """One direction between two processes, made before the fork."""

    def send(self) -> None: ...

    def receive(self) -> None: ...


class Futex:
    """The trainer's own wake-up: a counter in shared memory and a futex on it."""

    def __init__(self) -> None:
        self.wakeup = FutexWakeup()

    def send(self) -> None:
        self.wakeup.set()

    def receive(self) -> None:
        while not self.wakeup.wait(1.0):
            pass


class SpinningFutex(Futex):
    """The trainer's wake-up, whose waiting side looks for it for `SPIN_S` before it sleeps."""

    def receive(self) -> None:
        until = time.perf_counter() + SPIN_S
        while not self.wakeup.wait(0.0):
            if time.perf_counter() > until:
                super().receive()
                return


class PolledEventfd:
    """The trainer's wake-up before: an eventfd, and a poll for the time-out of a wait."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.poll = select.poll()
        self.poll.register(self.fd, select.POLLIN)

    def send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self.fd, ONE)

    def receive(self) -> None:
        while not self.poll.poll(1000.0):
            pass
        os.read(self.fd, 4096)


class Eventfd:
    """A sequence counter in shared memory and an eventfd, without a message."""

    def __init__(self) -> None:
        self.counter = ctypes.c_int64.from_buffer(mmap.mmap(-1, 8))
        self.fd = os.eventfd(0)

    def send(self) -> None:
        self.counter.value += 1
        os.eventfd_write(self.fd, 1)

    def receive(self) -> None:
        os.eventfd_read(self.fd)


class IndexRing:
    """One producer, one consumer: indices in shared memory, an eventfd to sleep on when empty.

    view[0] is the head and view[1] the tail, each with one writer; on x86 stores are seen in order,
    so the index is there when the tail says so."""

    capacity = 256

    def __init__(self) -> None:
        memory = mmap.mmap(-1, 8 * (self.capacity + 2))
        self.view = (ctypes.c_int64 * (self.capacity + 2)).from_buffer(memory)
        self.fd = os.eventfd(0)

    def send(self) -> None:
        view = self.view
        tail = view[1]
        view[2 + tail % self.capacity] = 17
        view[1] = tail + 1
        os.eventfd_write(self.fd, 1)

    def receive(self) -> None:
        view = self.view
        head = view[0]
        while view[1] == head:
            os.eventfd_read(self.fd)
        _index = view[2 + head % self.capacity]
        view[0] = head + 1


class RawFifo:
    """faster-fifo with fixed-size binary records."""

    def __init__(self) -> None:
        self.queue = faster_fifo.Queue(
            1 << 16, dumps=lambda record: RECORD.pack(*record), loads=RECORD.unpack
        )

    def send(self) -> None:
        self.queue.put(MESSAGE)

    def receive(self) -> None:
        self.queue.get()


class PickledFifo:
    """faster-fifo as it comes."""

    def __init__(self) -> None:
        self.queue = faster_fifo.Queue(1 << 16)

    def send(self) -> None:
        self.queue.put(MESSAGE)

    def receive(self) -> None:
        self.queue.get()


class Pipe:
    """multiprocessing.Pipe with binary records."""

    def __init__(self) -> None:
        self.reader: connection.Connection
        self.writer: connection.Connection
        self.reader, self.writer = multiprocessing.Pipe(duplex=False)

    def send(self) -> None:
        self.writer.send_bytes(RECORD.pack(*MESSAGE))

    def receive(self) -> None:
        RECORD.unpack(self.reader.recv_bytes())


class StandardQueue:
    """multiprocessing.Queue: a thread feeds a pipe."""

    def __init__(self) -> None:
        self.queue: multiprocessing.Queue[tuple[int, int, int]] = multiprocessing.Queue()

    def send(self) -> None:
        self.queue.put(MESSAGE)

    def receive(self) -> None:
        self.queue.get()


CHANNELS: dict[str, Callable[[], Channel]] = {
    "futex": Futex,
    "futex, spinning": SpinningFutex,
    "eventfd, polled": PolledEventfd,
    "eventfd + counter": Eventfd,
    "index ring + eventfd": IndexRing,
    "pipe, 16 bytes": Pipe,
    "faster-fifo, 16 bytes": RawFifo,
    "faster-fifo, pickled": PickledFifo,
    "multiprocessing.Queue": StandardQueue,
}


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def answer(there: Channel, back: Channel, messages: int) -> None:
    pin(1)
    for _ in range(messages):
        there.receive()
        back.send()


def ping_pong(make: Callable[[], Channel], messages: int) -> tuple[float, float]:
    """Return the seconds per round trip: wall time, and processor time of this side."""
    there, back = make(), make()
    warm_up = messages // 10
    task = functools.partial(answer, there, back, messages + warm_up)
    other = multiprocessing.get_context("fork").Process(target=task)
    other.start()
    cores = os.sched_getaffinity(0)
    pin(0)
    for _ in range(warm_up):
        there.send()
        back.receive()
    start, cpu = time.perf_counter(), cpu_seconds()
    for _ in range(messages):
        there.send()
        back.receive()
    wall, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    other.join()
    os.sched_setaffinity(0, cores)
    return wall / messages, cpu / messages


def own_cost(make: Callable[[], Channel], messages: int) -> float:
    """Return the processor seconds to send and receive one message for which no process waits."""
    channel = make()
    cpu = cpu_seconds()
    for _ in range(messages):
        channel.send()
        channel.receive()
    return (cpu_seconds() - cpu) / messages


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000, help="per channel and measurement")
    args = parser.parse_args()
    print(describe("faster-fifo"), end="\n\n")
    rows = []
    for name, make in CHANNELS.items():
        figures = [*ping_pong(make, args.messages), own_cost(make, args.messages)]
        rows.append([name, *(f"{figure * 1e6:.1f}" for figure in figures)])
    print(table(["channel", "round trip, us", "CPU, blocking, us", "own cost, us"], rows))


if __name__ == "__main__":
    main()
