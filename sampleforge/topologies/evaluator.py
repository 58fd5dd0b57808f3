"""The evaluator beside a topology, whichever it is: it reads the weights that the driver has."""

from __future__ import annotations

import dataclasses
from functools import partial

from sampleforge.shared.counters import Counters
from sampleforge.shared.records import Evaluations
from sampleforge.shared.restart_budget import RestartBudget
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.builders import ResumePoint
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.graph import COUNTERS, Edge, Evaluator, Graph, Node
from sampleforge.topologies.registry import NewModel
from sampleforge.workers.episode_player import evaluation_envs, evaluation_seed
from sampleforge.workers.evaluator import EvaluatorWorker
from sampleforge.workers.worker import Placement, StopFlag

NICER = 5
"""The evaluator's niceness beyond that of the actors: what trains goes first."""


def with_evaluator(
    graph: Graph, config: AnyConfig, new_model: NewModel, start: ResumePoint
) -> Graph:
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
    lives = RestartBudget(1, config.max_worker_restarts)
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
        restart_budget=evaluator.restart_budget,
        group_epoch=None,
        stop=StopFlag(),
    )
