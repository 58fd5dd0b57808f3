"""The evaluator beside a topology, whichever it is: it reads the weights that the driver has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from sampleforge.data.counters import Counters
from sampleforge.data.evaluations import Evaluations
from sampleforge.data.replacements import Replacements
from sampleforge.runtime.processes import start_fork_server
from sampleforge.runtime.wakeup import Wakeup
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.graph import COUNTERS, Edge, Evaluator, Graph, Node
from sampleforge.topologies.parts import Start
from sampleforge.topologies.registry import NewModel
from sampleforge.workers.evaluator import EvaluatorWorker
from sampleforge.workers.playing import evaluation_envs, evaluation_seed
from sampleforge.workers.worker import Placement, StopFlag, Worker

NICER = 5
"""The evaluator's niceness beyond that of the actors: what trains goes first."""


def with_evaluator(graph: Graph, config: AnyConfig, new_model: NewModel, start: Start) -> Graph:
    """The graph with its evaluator, if the config has one."""
    interval, episodes = config.evaluate_interval, config.evaluate_episodes
    if interval is None:
        return graph
    seed, counters = evaluation_seed(start.seed), Counters(COUNTERS, 1)
    wakeup, results = Wakeup(), Evaluations()
    make_envs = partial(evaluation_envs, config, episodes, seed)
    worker = EvaluatorWorker(
        make_envs,
        new_model,
        graph.weights,
        graph.progress,
        results,
        wakeup,
        counters,
        interval=interval,
        episodes=episodes,
        stochastic=config.evaluate_stochastic,
        seed=seed,
    )
    placement = Placement(niceness=min(19, config.worker_niceness + NICER))
    lives = Replacements(1, config.max_worker_restarts)
    evaluator = Evaluator(Node(worker, wakeup, placement, (make_envs,)), results, counters, lives)
    learner = "rank 0" if config.algo == "ddppo" else "learner"
    edges = (
        Edge(learner, "evaluator", f"weights, every {interval} env steps"),
        Edge("evaluator", "driver", f"returns of {episodes} episodes with frozen weights"),
    )
    return dataclasses.replace(graph, edges=graph.edges + edges, evaluator=evaluator)


def alone(graph: Graph) -> Graph:
    """The evaluator of ``graph`` as a graph of its own, for a runner of its own: the others count,
    end and are replaced without it."""
    evaluator = graph.evaluator
    assert evaluator is not None
    return dataclasses.replace(
        graph,
        nodes=(evaluator.node,),
        counters=evaluator.counters,
        replacements=evaluator.replacements,
        regrouping=None,
        stop=StopFlag(),
    )


class Runner(Protocol):
    """Of the driver's runners, what is done to two of them."""

    def start(self) -> None: ...
    def pids(self) -> dict[str, int]: ...
    def poll(self, timeout: float) -> None: ...
    def close(self) -> None: ...
    def kill(self) -> None: ...


class MainRunner(Runner, Protocol):
    def ask(self, kind: str, payload: Any, timeout: float) -> Any: ...


def beside(
    runner: MainRunner, graph: Graph, processes: Callable[[Graph], Runner] | None
) -> WithBeside:
    """``runner``, which runs ``graph``, with the evaluator beside it: run by what ``processes``
    makes for a graph, or, without it, in turn."""
    other = alone(graph)
    if processes is None:
        return WithBeside(runner, InTurn(other.nodes[0].worker))
    start_fork_server()  # a rank of torchrun has none yet, and is pinned to a core when it starts
    return WithBeside(runner, processes(other))


class InTurn:
    """Steps one worker in this process, once per poll."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def start(self) -> None:
        self._worker.start()

    def pids(self) -> dict[str, int]:
        return {}

    def poll(self, timeout: float) -> None:
        self._worker.step()

    def close(self) -> None:
        self._worker.close()

    kill = close


class WithBeside:
    """``main``, which runs a topology, and ``beside``, which runs what goes on beside it."""

    def __init__(self, main: MainRunner, beside: Runner) -> None:
        self._main = main
        self._beside = beside

    def start(self) -> None:
        self._main.start()
        self._beside.start()

    def pids(self) -> dict[str, int]:
        return self._main.pids() | self._beside.pids()

    def poll(self, timeout: float) -> None:
        self._main.poll(timeout)
        self._beside.poll(0.0)

    def ask(self, kind: str, payload: Any, timeout: float) -> Any:
        return self._main.ask(kind, payload, timeout)

    def close(self) -> None:
        try:
            self._beside.close()
        finally:
            self._main.close()

    def kill(self) -> None:
        try:
            self._beside.kill()
        finally:
            self._main.kill()
