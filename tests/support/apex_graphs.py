"""Ape-X graphs of real workers, and a learner that checks every transition instead of learning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from sampleforge.algorithms.averaging import Averaging
from sampleforge.algorithms.dqn.learner import DqnLearner
from sampleforge.algorithms.learning import LearnerPlace, Update
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.replay.limiter import RateLimiter
from sampleforge.replay.sample_batches import ReplaySample, SampleBatches
from sampleforge.replay.snapshot import ReplayFolder
from sampleforge.runners.serial import SerialRunner
from sampleforge.topologies.config import ApexConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.replay.plan import ReplayPlan
from sampleforge.topologies.starts import ResumePoint
from sampleforge.workers.learner import GroupLearnerWorker
from tests.support.envs import code_reward, episode_length
from tests.support.graphs import one_policy, spec_of
from tests.support.pairings import plan_of, wire_of

CODE = "tests.support.envs:CodeEnv"
LONGEST = 9
"""CodeEnv's episodes have at most so many steps."""


def apex_config(**kwargs: Any) -> ApexConfig:
    """A small run on CodeEnv, for checks of where everything comes from."""
    defaults: dict[str, Any] = {
        "env": CODE,
        "num_workers": 2,
        "num_envs_per_worker": 6,
        "num_splits": 2,
        "rollout": 7,
        "model": ModelConfig(hidden_sizes=(8,), normalise_observations=False),
        "debug": True,
        "seed": 1,
        "learning_starts": 200,
        "replay_capacity": 21 * 20,
        "batch_size": 16,
        "prefetch_batches": 4,
        "samples_per_insert": 1.0,
    }
    return ApexConfig(**{**defaults, **kwargs})


def build_apex(
    config: ApexConfig, replays: ReplayFolder | None = None, resume: Any = None
) -> tuple[Graph, ReplayPlan]:
    """The wired graph of a config; nothing is started."""
    return build_replay(config, replays, resume)


def build_replay(
    config: Any, replays: ReplayFolder | None = None, resume: Any = None
) -> tuple[Graph, ReplayPlan]:
    """The same of any algorithm with a replay."""
    spec = spec_of(config)
    config = pairing(config).resolve_defaults(config, spec)
    plan = plan_of(config, spec, "cpu")
    config = dataclasses.replace(config, model=resolve_encoder(config.model, spec.observations))
    assert config.seed is not None
    start = ResumePoint(config.seed, replays=replays, resume=resume)
    return wire_of(config, plan, spec, *one_policy(start)), plan


def _alone(make_learner: Any, averaging: Averaging) -> Any:
    """A learner of its own."""
    return make_learner()


def batches_of(graph: Graph) -> SampleBatches:
    """What the first learner of a graph learns from."""
    worker: Any = graph.groups[0].learner.worker
    made = worker._batches
    assert isinstance(made, SampleBatches)
    return made


def learner_worker(graph: Graph) -> Any:
    """The learner's own worker, in a graph that has started in this process."""
    worker: Any = graph.groups[0].learner.worker
    return worker._worker if isinstance(worker, GroupLearnerWorker) else worker


def limiter_of(graph: Graph) -> RateLimiter:
    """The limiter of a graph's replay."""
    return batches_of(graph).samples.limiter


def with_learner(graph: Graph, make_learner: Any) -> Graph:
    """The same graph with another learner in its learner worker."""
    worker: Any = graph.groups[0].learner.worker
    worker._member._new_learner = partial(_alone, make_learner)
    return graph


def serial_rounds(graph: Graph, rounds: int) -> Iterator[int]:
    """Step all workers in turn; yields after each round."""
    runner = SerialRunner(graph)
    try:
        runner.start()
        for i in range(rounds):
            runner.poll(0)
            yield i
    finally:
        runner.close()


class Step(NamedTuple):
    """What a CodeEnv observation says."""

    env: int
    episode: int
    step: int
    action: int


def check_transition(
    obs: np.ndarray,
    action: int,
    returns: float,
    discount: float,
    after: np.ndarray,
    config: ApexConfig,
) -> None:
    """One transition of CodeEnv, against the environment's own rule. Raises AssertionError."""
    seen, later = Step(*obs.astype(int)), Step(*after.astype(int))
    steps = later.step - seen.step
    length = episode_length(seen.env, seen.episode, LONGEST)
    assert (seen.env, seen.episode) == (later.env, later.episode), "a window crosses episodes"
    assert 1 <= steps <= config.n_step and seen.step < length, (seen, later)
    total = sum(
        config.gamma**k * code_reward(seen.env, seen.episode, seen.step + 1 + k)
        for k in range(steps)
    )
    assert abs(returns - total) < 1e-6 * abs(total), (returns, total, seen, later)
    terminated = later.step == length and seen.episode % 2 == 0
    expected = 0.0 if terminated else config.gamma**steps
    assert abs(discount - expected) < 1e-6, (discount, expected, seen, later)
    if steps == 1:
        assert later.action == action, "the action stored is the one taken"


class CheckingLearner(DqnLearner):
    """Checks every transition, and answers random errors. ``truncated`` counts those whose window
    ends with a final observation that is bootstrapped from."""

    def __init__(self, model: Any, config: ApexConfig) -> None:
        super().__init__(model, config, LearnerPlace(torch.device("cpu")))
        self.config = config
        self.random = np.random.default_rng(0)
        self.checked = self.truncated = 0

    def update(self, sample: ReplaySample, progress: float) -> Update:  # type: ignore[override]
        batch = sample.items
        for seen in sample.seen:
            self._count_observations(seen)
        assert (
            torch.isfinite(batch.scaled_probability).all() and (batch.scaled_probability > 0).all()
        )
        for i in range(len(batch.returns)):
            now, after = (leaves["obs"][i].numpy() for leaves in (batch.obs, batch.next_obs))
            action, discount = int(batch.actions["action"][i]), float(batch.discount[i])
            length = episode_length(int(now[0]), int(now[1]), LONGEST)
            if discount == 0 and after[1] > now[1]:  # a same-step environment's, of no account
                after = np.array([*now[:2], length, action], np.float32)
            check_transition(now, action, float(batch.returns[i]), discount, after, self.config)
            self.truncated += discount > 0 and after[2] == length
        self.checked += len(batch.returns)
        self.version += 1
        errors = self.random.gamma(0.5, size=len(batch.returns)).astype(np.float32)
        return Update({"checked": float(self.checked)}, sample.trained, errors)


class CheckingLearnerMaker:
    """Makes one, in any process."""

    def __init__(self, new_network: Any, config: ApexConfig) -> None:
        self.new_network = new_network
        self.config = config

    def __call__(self) -> CheckingLearner:
        return CheckingLearner(self.new_network(), self.config)
