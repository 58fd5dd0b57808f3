"""Builders of models, policies and env vectors, which worker processes call, and the agent groups
whose policies have the same ones."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sampleforge.algorithms.acting import Acting, ActingPlace, NewSeed
from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.config import ConfigError
from sampleforge.env.place import POLICY_STREAM, Place, row_seeds
from sampleforge.env.registry import make_vector
from sampleforge.env.tasks import following
from sampleforge.env.threaded import ThreadedVector
from sampleforge.env.vector import EnvVector
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.models.encoders import to_be_loaded
from sampleforge.runtime.torch_settings import usual_torch
from sampleforge.shared.counters import Progress
from sampleforge.shared.member_board import MemberBoard
from sampleforge.shared.newest import SharedWeights, TaskBoard
from sampleforge.shared.wakeup import Wakeup
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import (
    AnyConfig,
    ReplayRunConfig,
    SlotsRunConfig,
    StoredRunConfig,
)
from sampleforge.topologies.sampler_plan import SamplerPlan, nearest_minibatch
from sampleforge.topologies.starts import ResumePoint

NewModel = Callable[[], ActorCritic]
MakeEnv = Callable[[], EnvVector]


Lives = Callable[[int], int]
"""Returns how often a worker was restarted so far, by which its next life seeds otherwise."""

_SEEDING = threading.Lock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Return a context in which torch's global generator begins with ``seed``; afterwards it goes
    on as before. One thread at a time is inside: the sessions of two threads may begin together."""
    with _SEEDING, torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which looks for devices of all kinds: 1 ms.
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True)
class NetworkMaker:
    """Makes the network of a policy with its initial weights, the same for the same ``seed``.
    Raises ConfigError if it does not fit into memory."""

    algorithm: Algorithm
    config: Any
    spec: EnvSpec
    seed: int

    def __call__(self) -> Any:
        try:
            with seeded(self.seed), usual_torch():
                return self.algorithm.new_network(self.config, self.spec)
        except RuntimeError as error:
            if "can't allocate memory" not in str(error):  # how torch says it
                raise
            raise ConfigError(
                f"the network does not fit into memory ({error}); lower --model.hidden-sizes or "
                "the other sizes of --model"
            ) from error

    def to_be_loaded(self) -> Any:
        """Return the same network without its initial weights: others are loaded next."""
        with to_be_loaded():
            return self()


def initial_weights(new_model: Callable[[], torch.nn.Module], start: ResumePoint) -> SharedWeights:
    """Return shared weights in which those of the model, or of the checkpoint, are published
    already, so that no worker waits for the learner's process."""
    model = new_model()
    version = 0 if start.resume is None else start.resume.weights(model)
    if start.resume is None and start.initial is not None:
        start.initial.weights(model)
    weights = SharedWeights(model.state_dict())
    weights.publish(model.state_dict(), version)
    return weights


@dataclass(frozen=True)
class ActingMaker:
    """Makes the policy of an actor (inline) or policy worker, in its process. ``place`` makes the
    rest of its `ActingPlace`, given the generator and whether to begin anew.

    ``sizes``: numbers of rows for which its passes are compiled; several stand for any number
    (empty: they are not compiled)."""

    network: NetworkMaker
    weights: SharedWeights
    seeds: PolicySeeds
    device: str
    place: Callable[[torch.Generator, NewSeed], ActingPlace]
    sizes: tuple[int, ...] = ()

    def __call__(self) -> Acting:
        maker = self.network
        assert maker.algorithm.new_acting is not None
        generator = torch.Generator(self.device).manual_seed(self.seeds.first())
        place = self.place(generator, self.seeds)
        acting = maker.algorithm.new_acting(maker.config, maker.to_be_loaded(), self.weights, place)
        if self.sizes:
            acting.compile(maker.spec.observations, self.sizes)
        return acting


def acting_maker(
    network: NetworkMaker,
    weights: SharedWeights,
    plan: SamplerPlan,
    seeds: PolicySeeds,
    progress: Progress,
    ladder: torch.Tensor | None = None,
    device: str | None = None,
) -> ActingMaker:
    """Return what makes the policy of an actor (inline) or policy worker. ``seeds``: of its
    actions; ``device``: on which it acts (None: `acting_device`)."""
    config = network.config
    sizes: tuple[int, ...] = ()
    if isinstance(config, SlotsRunConfig) and config.compile:
        served = plan.num_workers if plan.inference == "worker" else 1
        shared = plan.inference == "worker" or plan.variable
        many = shared and served * plan.num_streams > 1
        sizes = (plan.rows, 2 * plan.rows) if many else (plan.rows,)
    place = partial(
        ActingPlace,
        precision=plan.acting_precision,
        num_rows=plan.agent_rows,
        split_rows=plan.rows,
        seats=plan.num_seats,
        recorded=plan.records,
        ladder=ladder,
        progress=progress,
        policies=getattr(config, "num_policies", 1),
        graphs=records_acting(config),
        is_trained=seeds.start.is_trained,
    )
    return ActingMaker(network, weights, seeds, device or acting_device(plan), place, sizes)


def records_acting(config: Any) -> bool:
    """Return whether a policy on a GPU may launch its passes as graphs: as asked, by default unless
    its network has code of the user's own, which may wait for the device."""
    asked: bool | None = getattr(config, "cuda_graphs", None)
    return not config.model.has_own_code if asked is None else asked


def acting_device(plan: SamplerPlan) -> str:
    """Return the device on which actions are computed."""
    return plan.device if plan.inference == "worker" else "cpu"


class PolicySeeds:
    """The seeds of the ``index``-th actor's (inline) or policy worker's policy; see `policy_seed`.
    ``board``: of a member of a population, in each of whose segments the seed is another one."""

    def __init__(
        self,
        index: int,
        start: ResumePoint,
        lives: Lives | None,
        board: MemberBoard | None = None,
    ) -> None:
        self._index = index
        self.start = start
        self._lives = lives
        self._board = board
        self._segment = 0

    def first(self) -> int:
        """Return the seed that the policy begins with."""
        seed = self()
        return policy_seed(self._index, self.start, self._lives) if seed is None else seed

    def __call__(self) -> int | None:
        """Return a seed where another segment has begun since the last call, else None."""
        if self._board is None or (segment := self._board.segment).number == self._segment:
            return None
        self._segment = segment.number
        start = dataclasses.replace(self.start, seed=segment.seed)
        return policy_seed(self._index, start, self._lives)


def policy_seed(
    index: int, start: ResumePoint, lives: Lives | None = None, stream: int = POLICY_STREAM
) -> int:
    """Return the seed of action sampling of the ``index``-th actor (inline) or policy worker, in
    its current life. ``stream``: that of policies that are trained, or of those that only act."""
    life = 0 if lives is None else lives(index)
    return row_seeds(start.seed, index, stream, 1, start.resumes, life)[0]


@dataclass(frozen=True)
class EnvMaker:
    """Makes the env vector of one ``split`` of an ``actor``. Every env row has its own seed, and
    another one after a restart of the actor. ``tasks``: those that the environments take (None:
    none)."""

    actor: int
    split: int
    config: AnyConfig
    plan: SamplerPlan
    start: ResumePoint
    lives: Lives | None = None
    tasks: TaskBoard | None = None

    def __call__(self) -> EnvVector:
        return self.with_seed(self.start.seed)

    def with_seed(self, seed: int) -> EnvVector:
        """Return the env vector that it would have in a run with this ``seed``."""
        plan, start = self.plan, self.start
        life = 0 if self.lives is None else self.lives(self.actor)
        seeds = row_seeds(seed, self.actor, self.split, plan.rows, start.resumes, life)
        place = Place(self.actor, self.split * plan.rows, plan.num_workers, plan.env_threads)
        return following(self.tasks, make_vector, self.config, plan.rows, seeds, place)


def env_makers(
    actor: int,
    config: AnyConfig,
    plan: SamplerPlan,
    start: ResumePoint,
    lives: Lives | None = None,
    tasks: TaskBoard | None = None,
) -> list[MakeEnv]:
    """Return what makes the env vectors of an actor's splits; see `EnvMaker`."""
    splits = range(plan.num_splits)
    return [EnvMaker(actor, split, config, plan, start, lives, tasks) for split in splits]


def in_threads(makers: Sequence[MakeEnv], wakeup: Wakeup) -> list[MakeEnv]:
    """Return what makes the same env vectors, each of which steps in a thread of its own and wakes
    its actor after a step."""
    return [partial(ThreadedVector, make, wakeup.set) for make in makers]


@dataclass(frozen=True)
class AgentGroup:
    """An agent group as its policies see it: the ``algorithm`` that trains them, its ``spec``, and
    the ``config`` and the ``plan`` of their models, slots and batches. The number of workers,
    splits and rows is that of the run."""

    algorithm: Algorithm
    config: Any
    plan: Any
    spec: EnvSpec

    def maker(self, seed: int) -> NetworkMaker:
        """Return what makes the network of a policy of this group."""
        return NetworkMaker(self.algorithm, self.config, self.spec, seed)


def other_agent_groups(
    algorithm: Algorithm,
    make_plan: Callable[..., Any],
    config: AnyConfig,
    plan: Any,
    spec: EnvSpec,
) -> tuple[AgentGroup, ...]:
    """Return the agent groups of ``spec`` beside the first one, for which ``plan`` was made.

    ``config`` is resolved for the first one, except for its encoder. The policies of the others
    have the same settings, but encoders for their own observations, and batches of their own,
    with minibatches about as large."""
    return tuple(_planned(algorithm, make_plan, config, plan, group) for group in spec.other_groups)


def _planned(
    algorithm: Algorithm, make_plan: Callable[..., Any], config: AnyConfig, plan: Any, spec: EnvSpec
) -> AgentGroup:
    assert not isinstance(config, StoredRunConfig), "its plan takes single-agent environments only"
    own = dataclasses.replace(
        config,
        model=resolve_encoder(config.model, spec.observations),
        num_workers=plan.num_workers,
        num_envs_per_worker=plan.num_splits * plan.rows,
        num_splits=plan.num_splits,
    )
    if isinstance(own, ReplayRunConfig):
        planned = dataclasses.replace(make_plan(own, spec, plan.device), num_seats=plan.num_seats)
        return AgentGroup(algorithm, own, planned, spec)
    given = own.minibatch_size
    own = dataclasses.replace(own, batch_size=None, minibatch_size=None)
    planned = dataclasses.replace(make_plan(own, spec, plan.device), num_seats=plan.num_seats)
    size = planned.batch_size
    unit = plan.rollout if algorithm.whole_rollouts(own) else 1
    minibatch = None if given is None else nearest_minibatch(size, given, unit)
    own = dataclasses.replace(own, batch_size=size, minibatch_size=minibatch)
    return AgentGroup(algorithm, own, planned, spec)
