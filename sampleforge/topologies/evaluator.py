"""The evaluators of a policy, workers of the graph that play episodes with published weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from itertools import zip_longest

from sampleforge.config import ConfigError, typed
from sampleforge.env.probe import probe
from sampleforge.env.user_code import import_function
from sampleforge.shared.counters import RestartBudget
from sampleforge.shared.newest import SharedWeights
from sampleforge.shared.records import DividedEvaluations, EvaluationBoard, Evaluations
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import NetworkMaker
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.graph import Edge, GraphBuilder
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.workers.episode_player import EvaluationPart, evaluation_seed
from sampleforge.workers.evaluator import (
    EXTRA_BYTES,
    EvaluationSettings,
    EvaluatorChannels,
    EvaluatorWorker,
    NewModel,
)
from sampleforge.workers.worker import Placement

EXTRA_NICENESS = 5
"""Niceness of the evaluator beyond that of the actors, so that training has precedence."""


Results = Evaluations | DividedEvaluations | None
"""The queue of the results of a policy's evaluators; None if it has none."""
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
    """Return the number of evaluators of a policy."""
    return 0 if config.evaluate_interval is None else config.num_evaluators


def evaluation_env(config: AnyConfig) -> AnyConfig:
    """Return the config of the environment that evaluations are played in (--evaluate-env,
    --evaluate-env-kwargs): that of the training, unless the user gives another one."""
    return config.played_in(config.evaluate_env, config.evaluate_env_kwargs)


def check_evaluation(config: AnyConfig, trained: EnvSpec) -> None:
    """Raise ConfigError if the evaluation function cannot be imported, or if evaluations are played
    in an environment of their own with other observations or actions than ``trained``, that of the
    training; and EnvProbeError if that environment fails."""
    if config.evaluate_interval is None:
        return
    if config.evaluate_function is not None:
        import_function("--evaluate-function", config.evaluate_function)
    if not (config.evaluate_env or config.evaluate_env_kwargs):
        return
    env = evaluation_env(config)
    try:
        spec = probe(env)
    except ConfigError as error:
        name = "evaluate_env" if config.evaluate_env else "evaluate_env_kwargs"
        reason = str(error).removeprefix(f"--env {env.env}: ")
        error.args = (f"{typed(name, getattr(config, name))}: {reason}",)
        raise
    if spec.one_per_process and not trained.one_per_process:
        raise ConfigError(
            f"--evaluate-env {env.env}: a process can have one of it only, as its probe has "
            "found, and an evaluator has several env rows; train in the same environment, or "
            "evaluate the run in it afterwards (`sampleforge eval`)"
        )
    for own, found in zip_longest(trained.agent_groups, spec.agent_groups):
        for kind in ("observations", "actions", "agents"):
            expected, given = (None if s is None else getattr(s, kind) for s in (own, found))
            if expected != given:
                raise ConfigError(
                    f"--evaluate-env {env.env} with {env.env_kwargs} has other {kind} than "
                    f"the environment that is trained in ({config.env}), so its policy cannot "
                    f"play there:\n  {expected}\n  -> {given}"
                )


def add_evaluators(
    graph: GraphBuilder,
    config: AnyConfig,
    weights: SharedWeights,
    new_model: NetworkMaker,
    learner: str = "learner",
    group: int = 0,
    playing: Playing | None = None,
    cores: tuple[int, ...] | None = None,
) -> tuple[Results, tuple[Edge, ...]]:
    """Add the evaluators of a policy, if the config has any. Return the queue of their results, and
    their channels. All policies of a run are evaluated with the same seed. ``learner``: name of the
    worker that publishes the weights. ``group``: the agent group that the policy plays;
    ``playing``: the policies of the other ones. ``cores``: on which they may run (None: on all)."""
    count, interval = num_evaluators(config), config.evaluate_interval
    if interval is None:
        return None, ()
    others = {of: each for of, each in (playing or {}).items() if of != group}
    board = None
    if count > 1:
        models = [new_model(), *(make() for make, _ in others.values())]
        board = EvaluationBoard(count, [model.state_dict() for model in models])
    env, budget = evaluation_env(config), RestartBudget(count, config.max_worker_restarts)
    niceness = min(19, config.worker_niceness + EXTRA_NICENESS)
    tasks, results, edges = graph.hooks.evaluation_tasks, [], []
    for index in range(count):
        settings = EvaluationSettings(
            interval,
            config.evaluate_episodes,
            config.evaluate_stochastic,
            evaluation_seed(graph.start.seed),
            EvaluationPart.of(new_model.spec, index, count),
            group,
            config.evaluate_function,
        )
        channels = EvaluatorChannels(
            weights, Evaluations(extra_bytes=EXTRA_BYTES), others, board, tasks
        )
        post = graph.post()
        node = graph.add(
            "evaluator",
            EvaluatorWorker(env, new_model.to_be_loaded, channels, settings, post),
            post,
            Placement(cores, niceness),
            RestartAlone(budget, index),
        )
        results.append(channels.results)
        edges += [
            Edge(learner, node.name, f"weights, every {interval} env steps"),
            Edge(node.name, "driver", _what_is_returned(settings)),
        ]
    return results[0] if count == 1 else DividedEvaluations(results), tuple(edges)


def _what_is_returned(settings: EvaluationSettings) -> str:
    if settings.function is not None:
        return f"metrics of {settings.function} with frozen weights"
    own, part = settings.episodes, settings.part
    of = "" if part.evaluators == 1 else "its part of "
    return f"returns of {of}{own} episodes with frozen weights"
