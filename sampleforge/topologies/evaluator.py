"""The evaluator of a policy, a worker of the graph that plays episodes with published weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from sampleforge.shared.records import Evaluations
from sampleforge.shared.restart_budget import RestartBudget
from sampleforge.shared.wakeup import Wakeup
from sampleforge.shared.weights import SharedWeights
from sampleforge.topologies.builders import ResumePoint
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.graph import Edge, GraphBuilder
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.workers.episode_player import evaluation_envs, evaluation_seed
from sampleforge.workers.evaluator import EvaluatorWorker, NewModel
from sampleforge.workers.worker import Placement

EXTRA_NICENESS = 5
"""Niceness of the evaluator beyond that of the actors, so that training has precedence."""


@dataclass(frozen=True)
class Evaluation:
    """``results``: the queue of an evaluator's results (None: the policy has no evaluator);
    ``edges``: the channels of its worker."""

    results: Evaluations | None = None
    edges: tuple[Edge, ...] = ()


Playing = Mapping[int, tuple[NewModel, SharedWeights]]
"""The policy that plays each agent group in the evaluations of other groups' policies."""


def first_of_each_group(*policies: Iterable[tuple[int, NewModel, SharedWeights]]) -> Playing:
    """Return the first policy of each agent group, of (agent group, function that makes the model,
    weights)."""
    first: dict[int, tuple[NewModel, SharedWeights]] = {}
    for group, new_model, weights in itertools.chain(*policies):
        first.setdefault(group, (new_model, weights))
    return first


def num_evaluators(config: AnyConfig) -> int:
    """Return the number of evaluators of a policy, 0 or 1."""
    return int(config.evaluate_interval is not None)


def add_evaluator(
    graph: GraphBuilder,
    config: AnyConfig,
    weights: SharedWeights,
    new_model: NewModel,
    start: ResumePoint,
    learner: str = "learner",
    row: int | None = None,
    group: int = 0,
    playing: Playing | None = None,
) -> Evaluation:
    """Add the evaluator of a policy, if the config has one. ``start``: that of the run, so that all
    policies are evaluated with the same seed. ``learner``: name of the worker that publishes the
    weights. ``group``: the agent group that the policy plays; ``playing``: the policies of the
    other ones. ``row``: the evaluator's counter row (default: the next free one)."""
    interval, episodes = config.evaluate_interval, config.evaluate_episodes
    if interval is None:
        return Evaluation()
    seed, wakeup, results = evaluation_seed(start.seed), Wakeup(), Evaluations()
    make_envs = partial(evaluation_envs, config, episodes, seed)
    make_worker = partial(
        EvaluatorWorker,
        make_envs,
        new_model,
        weights,
        graph.progress,
        results,
        wakeup,
        interval=interval,
        episodes=episodes,
        stochastic=config.evaluate_stochastic,
        seed=seed,
        group=group,
        others={of: each for of, each in (playing or {}).items() if of != group},
    )
    node = graph.add(
        "evaluator",
        make_worker,
        wakeup,
        Placement(niceness=min(19, config.worker_niceness + EXTRA_NICENESS)),
        RestartAlone(RestartBudget(1, config.max_worker_restarts), 0),
        (make_envs,),
        row=row,
    )
    return Evaluation(
        results,
        (
            Edge(learner, node.name, f"weights, every {interval} env steps"),
            Edge(node.name, "driver", f"returns of {episodes} episodes with frozen weights"),
        ),
    )
