"""Graphs of real workers, stepped in this process with the test in the learner's place, or run."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import torch

from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.rollouts.batch import Batch, BatchBuilder
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.runners.base import RunnerContext
from sampleforge.runners.processes import ProcessRunner
from sampleforge.runners.serial import SerialRunner
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import AppoConfig, DdppoConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.pairings.ppo_defaults import resolve_defaults
from sampleforge.topologies.policy_roles import ONLY_POLICY
from sampleforge.topologies.sampler_plan import Plan
from sampleforge.topologies.starts import PolicyStart, ResumePoint
from tests.support.pairings import plan_of, wire_of

Ppo = TypeVar("Ppo", AppoConfig, DdppoConfig)


def spec_of(config: EnvConfig) -> EnvSpec:
    """The spec without a probe process."""
    envs = make_vector(config, 1, [0])
    envs.close()
    return envs.spec


def resolved(config: Ppo, spec: EnvSpec) -> Ppo:
    """The config as the driver has it: what it leaves open is fitted to the environment."""
    found = resolve_defaults(config, spec)
    assert isinstance(found, type(config))
    return found


def build(config: AppoConfig, seed: int = 1) -> tuple[Graph, Plan]:
    """The wired graph of a config; nothing is started."""
    spec = spec_of(config)
    config = resolved(config, spec)
    plan = plan_of(config, spec, "cpu")
    config = dataclasses.replace(config, model=resolve_encoder(config.model, spec.observations))
    return wire_of(config, plan, spec, *one_policy(ResumePoint(seed))), plan


def one_policy(start: ResumePoint) -> tuple[ResumePoint, list[PolicyStart]]:
    """Where a run with one policy begins, which writes no checkpoint."""
    return start, [PolicyStart(ONLY_POLICY, start, forget)]


def forget(tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
    """In the place of writing a checkpoint."""


def rollouts(config: AppoConfig, count: int) -> Iterator[Batch]:
    """``count`` rollouts as the learner would get them, in the order of their hand-over."""
    return rollouts_of(build(config)[0], count)


def rollouts_of(graph: Graph, count: int) -> Generator[Batch, None, None]:
    """``count`` rollouts of a graph that was not started, in the order of their hand-over."""
    workers = [node.worker for node in graph.nodes if node is not graph.groups[0].learner]
    for worker in workers:
        worker.start()
    try:
        exchange = graph.groups[0].exchange
        assert isinstance(exchange, SlotExchange)
        builder = BatchBuilder(exchange.slots, 1)
        while count:
            if not any([worker.step() for worker in workers]):
                workers[0].wait(0.01)
            while count and (slot := exchange.take_ready()) is not None:
                count -= 1
                builder.add(slot)
                yield copy_of(builder.take())
                exchange.give_back(slot)
    finally:
        for worker in workers:
            worker.close()


def copy_of(batch: Batch) -> Batch:
    """The batch in memory of its own: its columns are views of slots or of buffers used again."""

    def copied(column: Any) -> Any:
        if isinstance(column, dict):
            return {name: leaf.clone() for name, leaf in column.items()}
        return column.clone() if isinstance(column, torch.Tensor) else column

    return Batch(**{f.name: copied(getattr(batch, f.name)) for f in dataclasses.fields(batch)})


def updates(
    config: AppoConfig, count: int, seed: int = 1
) -> Iterator[tuple[Graph, dict[str, float]]]:
    """``count`` learner updates of a serial run, each with its metrics."""
    graph, _ = build(config, seed)
    runner = SerialRunner(graph)
    runner.start()
    try:
        while count:
            before = graph.groups[0].weights.published
            while graph.groups[0].weights.published == before:
                runner.poll(0)
            count -= 1
            yield graph, runner.ask(graph.groups[0].learner, "metrics", None, 0)
    finally:
        runner.close()


class running:
    """A graph's processes as a context. The learner is not asked anything."""

    def __init__(self, graph: Any, folder: Path) -> None:
        (folder / "scratch").mkdir()
        self.runner = ProcessRunner(graph, RunnerContext(30.0, folder / "scratch"))

    def __enter__(self) -> ProcessRunner:
        self.runner.start()
        return self.runner

    def __exit__(self, *_: object) -> None:
        self.runner.close()


def survive_kills(graph: Graph, folder: Path, victims: Sequence[str]) -> None:
    """Run a graph's processes, and kill one worker after the other, in the middle of learning. Each
    is replaced, and the learner goes on."""
    with running(graph, folder) as runner:
        deadline, updates = monotonic() + 50, 5.0
        for killed, victim in enumerate([*victims, ""]):
            # The driver may learn of a death later than 50 updates after it.
            while graph.counters.total("updates") < updates or (
                graph.counters.total("restarts") < killed
            ):
                runner.poll(0.02)
                assert monotonic() < deadline, (killed, graph.counters.total("updates"))
            if victim:
                os.kill(runner.pids()[victim], signal.SIGKILL)
            updates = graph.counters.total("updates") + 50
    assert graph.counters.total("restarts") == len(victims)
