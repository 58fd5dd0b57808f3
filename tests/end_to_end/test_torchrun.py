"""DD-PPO under torchrun itself: on one host, and on two, which are network namespaces here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from sampleforge.run.reports.metrics import read_metrics
from tests.support import REPO
from tests.support.processes import kill

FLAGS = [
    "ddppo",
    "--env",
    "CartPole-v1",
    "--num-envs-per-worker",
    "2",
    "--rollout",
    "64",
    "--debug",
    "--device",
    "cpu",
    "--seed",
    "1",
    "--report-interval",
    "0.5",
    "--train-for-env-steps",
    "10000000",
    "--run-dir",
    "run",
]


@dataclass
class Node:
    """A torchrun, with its ranks, in a folder of its own."""

    process: psutil.Popen
    folder: Path

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def reports(self) -> list[dict[str, Any]]:
        metrics = self.folder / "run" / "metrics.jsonl"
        return read_metrics(metrics) if metrics.exists() else []

    def steps(self) -> float:
        return max((report["env_steps"] for report in self.reports()), default=0.0)

    def rank(self, number: int) -> psutil.Process:
        for child in self.process.children(recursive=True):
            if f"sampleforge: rank {number}" in " ".join(child.cmdline()):
                return child
        raise AssertionError(f"rank {number} has no process:\n{self.output}")


@contextmanager
def launched(folder: Path, torchrun: str, *flags: str, host: str = "") -> Iterator[Node]:
    """torchrun with train.py; what still runs at the end is killed. ``host``: a namespace."""
    folder.mkdir(exist_ok=True)
    inside = ["ip", "netns", "exec", host] if host else []
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun.split()]
    with (folder / "output").open("w") as output:
        process = psutil.Popen(
            [*inside, *command, str(REPO / "train.py"), *FLAGS, *flags],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    node = Node(process, folder)
    try:
        yield node
    finally:
        if process.poll() is None:
            kill([*process.children(recursive=True), process])
        process.wait()


def until(condition: Callable[[], bool], *nodes: Node) -> None:
    """Wait for it, as long as all nodes live; the test has a limit of its own."""
    while not condition():
        for node in nodes:
            assert node.process.poll() is None, node.output
        time.sleep(0.1)


def ended(*nodes: Node) -> list[int]:
    """Their exit codes, when they have ended."""
    return [node.process.wait() for node in nodes]


RANKED = """
import os
import gymnasium as gym


class Ranked(gym.Wrapper):
    def step(self, action):
        *found, info = self.env.step(action)
        return *found, {**info, "episode_extra_stats": {"rank": float(os.environ["RANK"])}}


def make():
    return Ranked(gym.make("CartPole-v1"))
"""


@pytest.mark.multiprocess(timeout=120)
def test_ranks_of_torchrun_train_a_killed_one_costs_nothing_and_all_end_at_the_limit(
    tmp_path: Path,
) -> None:
    """--debug compares the checksums of all ranks after every update."""
    (tmp_path / "ranked.py").write_text(RANKED)
    flags = ("--train-for-env-steps", "10000", "--env", "ranked:make")
    with launched(tmp_path, "--standalone --nproc-per-node 2 --max-restarts 1", *flags) as node:
        until(lambda: node.steps() > 1000, node)
        assert node.reports()[-1]["rank1_steps"] > 0, "rank 0 knows what rank 1 does"
        node.rank(1).send_signal(signal.SIGKILL)
        assert ended(node) == [0], node.output
    steps = [report["env_steps"] for report in node.reports()]
    updates = [report["updates"] for report in node.reports()]
    assert steps == sorted(steps) and updates == sorted(updates), "it went on where it was"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["restarts"]) == ("finished", 1), node.output
    assert 10_000 <= summary["env_steps"] <= 10_000 + 2 * 2 * 64 and summary["episodes"] > 0
    assert 0 < node.reports()[-1]["env_rank"] < 1, "the environments of both ranks"
    assert "has restarted all ranks (1 of 1 times); training resumes at" in node.output
    assert list((tmp_path / "run" / "checkpoints").glob(f"{summary['env_steps']:012d}-*"))


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip() or "ip failed"


@contextmanager
def two_hosts() -> Iterator[list[str]]:
    """Two network namespaces with a cable between them, and nothing else: 10.77.0.1 and .2 on
    interfaces called cable. Skips the test where they cannot be made."""
    hosts = [f"sf-test-{os.getpid()}-{at}" for at in range(2)]
    with ExitStack() as stack:
        for host in hosts:
            try:
                problem = ip("netns", "add", host)
            except FileNotFoundError:
                problem = "there is no ip command"
            if problem:
                pytest.skip(f"network namespaces cannot be made here: {problem}")
            stack.callback(ip, "netns", "del", host)
        ends = ["cable", "netns", hosts[0], "type", "veth", "peer", "cable", "netns", hosts[1]]
        problem = ip("link", "add", *ends)
        if problem:
            pytest.skip(f"network namespaces cannot be joined here: {problem}")
        for at, host in enumerate(hosts):
            assert not ip("-n", host, "addr", "add", f"10.77.0.{at + 1}/24", "dev", "cable")
            assert not ip("-n", host, "link", "set", "lo", "up")
            assert not ip("-n", host, "link", "set", "cable", "up")
        yield hosts


@pytest.mark.multiprocess(timeout=150)
def test_two_hosts_notice_a_cut_cable_and_go_on_when_it_is_whole(tmp_path: Path) -> None:
    """Within --rank-timeout and what it takes to end; the state goes through the cable, since only
    the first host has the run folder."""
    torchrun = "--nnodes 2 --nproc-per-node 1 --max-restarts 1 --master-addr 10.77.0.1"
    with two_hosts() as hosts, ExitStack() as stack:
        nodes = [
            stack.enter_context(
                launched(
                    tmp_path / str(at),
                    f"{torchrun} --master-port 29500 --node-rank {at}",
                    *("--rank-timeout", "4"),
                    host=host,
                )
            )
            for at, host in enumerate(hosts)
        ]
        until(lambda: nodes[0].steps() > 1000, *nodes)
        assert not ip("-n", hosts[0], "link", "set", "cable", "down")
        cut = time.monotonic()
        lost = re.compile(r"rank \d of 2 lost another rank while .*\(a rank that is silent")
        until(lambda: all(lost.search(node.output) for node in nodes), *nodes)
        assert time.monotonic() - cut < 40, "a few seconds, but for a machine under load"
        before = nodes[0].steps()
        assert not ip("-n", hosts[0], "link", "set", "cable", "up")
        until(lambda: nodes[0].steps() > before + 1000, *nodes)
        for node in nodes:
            node.process.send_signal(signal.SIGTERM)
        ended(*nodes)
    assert not (tmp_path / "1" / "run").exists()
    steps = [report["env_steps"] for report in nodes[0].reports()]
    assert steps == sorted(steps) and nodes[0].reports()[-1]["rank1_steps"] > 0
    summary = json.loads((tmp_path / "0" / "run" / "summary.json").read_text())
    assert (summary["status"], summary["restarts"]) == ("interrupted", 1)
