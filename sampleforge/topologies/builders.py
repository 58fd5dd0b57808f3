"""Builders of models, learners, policies and env vectors, which worker processes call."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from sampleforge.algorithms.acting import Acting, ActingPlace, NewSeed
from sampleforge.algorithms.algorithm import Algorithm, LearnerPlace
from sampleforge.algorithms.averaging import Averaging, Local
from sampleforge.algorithms.config import LearnerConfig
from sampleforge.algorithms.experience import WHOLE, Share
from sampleforge.algorithms.flat_parameters import FlatParameters
from sampleforge.algorithms.learning import Learner, Tensors
from sampleforge.env.seeding import POLICY_STREAM, row_seeds
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.replay.snapshot import ReplayFolder
from sampleforge.runtime.torch_defaults import usual_torch
from sampleforge.shared.counters import Progress
from sampleforge.shared.member_board import MemberBoard
from sampleforge.shared.weights import SharedWeights
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import OPPONENT, PolicyRoles
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.workers.learner import Save
from sampleforge.workers.learner_change import LearnerChange

NewModel = Callable[[], ActorCritic]
NewActing = Callable[[], Acting]


class Resume(Protocol):
    """The checkpoint from which a run resumes. It can be sent to other processes."""

    def weights(self, model: torch.nn.Module) -> int:
        """Load the weights into ``model``; return their policy version."""

    def learner(self, learner: Learner) -> None:
        """Load the whole state into ``learner``."""

    def plain(self) -> dict[str, Any]:
        """Return the plain values of the learner's state."""


class RestartCounts(Protocol):
    """Counts the restarts of workers: `RestartBudget`, `GroupEpoch`."""

    def life(self, worker: int) -> int:
        """Return the number of restarts of a worker so far."""


@dataclass(frozen=True)
class ResumePoint:
    """The point at which a run begins: its seed, the totals of earlier runs of the folder, their
    checkpoint (``resume``), and the folder in which replays are saved."""

    seed: int
    resumes: int = 0
    env_steps: int = 0
    wall_s: float = 0.0
    resume: Resume | None = None
    replays: ReplayFolder | None = None


@dataclass(frozen=True)
class PolicyStart:
    """The point at which one policy of a run begins. ``id``: of its group; ``start``: with the
    policy's own seed and checkpoint; ``save`` writes a checkpoint, in the learner's process.
    ``hyperparameters``: those in which a new policy differs from the config. ``schedule``: their
    changes during the run (None: there is no schedule). ``env_steps``: the policy's own in earlier
    runs of the folder. ``group``: the index of the agent group that it plays."""

    id: str
    start: ResumePoint
    save: Save
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    schedule: tuple[LearnerChange, ...] | None = None
    env_steps: int = 0
    group: int = 0


@dataclass(frozen=True)
class FrozenStart:
    """A policy that acts in a run but is not trained. ``start``: with its seed and the checkpoint
    that it acts from, if there is one; ``snapshots``: the capacity of its pool. ``follows``: the id
    of the trained policy whose newest weights the pool offers, too (None: only snapshots).
    ``group``: the index of the agent group that it plays."""

    id: str
    start: ResumePoint
    snapshots: int = 1
    follows: str | None = None
    group: int = 0


def frozen_starts(
    roles: PolicyRoles, spec: EnvSpec, start: Callable[[int, str], ResumePoint]
) -> list[FrozenStart]:
    """Return the starts of the frozen policies of a run. ``start(index, weights)`` returns where
    one begins; ``index``: its place among all policies of the run; ``weights``: the run folder of
    its weights."""
    starts = []
    for index, (name, weights) in enumerate(roles.frozen.items(), len(roles.trained)):
        group, own = roles.agent_group(name, spec), start(index, weights)
        if name == OPPONENT:
            starts.append(FrozenStart(name, own, roles.pool, roles.trained[0], group))
        else:
            starts.append(FrozenStart(name, own, group=group))
    return starts


def seed_of_policy(seed: int, index: int) -> int:
    """Return the seed of the ``index``-th policy of a run. The first one has the run's seed."""
    if index == 0:
        return seed
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint32)[0] >> 1)


_SEEDING = threading.Lock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Return a context in which torch's global generator begins with ``seed``; afterwards it goes
    on as before. One thread at a time is inside: the sessions of two threads may begin together."""
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True)
class NetworkMaker:
    """Makes the network of a policy with its initial weights, the same for the same ``seed``."""

    algorithm: Algorithm
    config: Any
    spec: EnvSpec
    seed: int

    def __call__(self) -> Any:
        with seeded(self.seed), usual_torch():
            return self.algorithm.new_network(self.config, self.spec)


def make_learner(
    maker: NetworkMaker,
    plan: Any,
    start: ResumePoint,
    averaging: Averaging | None = None,
    *,
    varies: bool = False,
    share: Share = WHOLE,
    device: str | None = None,
) -> Any:
    """Return the learner of the network that ``maker`` makes, with its initial state, or that of
    the checkpoint. ``varies``: the number of env steps of a batch varies. ``share``: the part of
    each batch that this learner has, if there are several; ``device``: this learner's (default:
    the plan's)."""
    config = maker.config
    if isinstance(config, LearnerConfig):
        config = dataclasses.replace(config, max_policy_lag=plan.lag.limit)
    # The seed of noise is the one after those of all actors and policy workers.
    after = plan.num_workers + plan.num_policy_workers if isinstance(plan, SamplerPlan) else 0
    place = LearnerPlace(
        maker.spec,
        torch.device(device or plan.device),
        plan.precision,
        start.seed,
        policy_seed(after, start),
        averaging or Local(),
        plan.batch_size if varies else None,
        share,
    )
    network = maker()
    with seeded(start.seed + 1), usual_torch():  # what the learner alone has is drawn apart
        learner = maker.algorithm.new_learner(config, network, place)
    if start.resume is not None:
        start.resume.learner(learner)
    return learner


def new_state(maker: NetworkMaker, plan: Any, start: ResumePoint) -> Tensors:
    """Return the tensors of the state of a new learner: those of any later state are as large."""
    start = dataclasses.replace(start, resume=None)
    tensors: Tensors = make_learner(maker, plan, start, device="cpu").state()[0]
    return tensors


class _Measuring(Local):
    """Counts the bytes of the gradients that a learner would exchange with others."""

    nbytes = 0

    def follow(self, flat: FlatParameters) -> None:
        self.nbytes += sum(chunk.gradient.nbytes for chunk in flat.chunks)


def gradient_bytes(maker: NetworkMaker, plan: Any, start: ResumePoint) -> int:
    """Return the bytes of the gradients of all networks that a learner trains."""
    measuring = _Measuring()
    make_learner(maker, plan, dataclasses.replace(start, resume=None), measuring, device="cpu")
    return measuring.nbytes


def initial_weights(new_model: Callable[[], torch.nn.Module], start: ResumePoint) -> SharedWeights:
    """Return shared weights in which those of the model, or of the checkpoint, are published
    already, so that no worker waits for the learner's process."""
    model = new_model()
    version = 0 if start.resume is None else start.resume.weights(model)
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
        acting = maker.algorithm.new_acting(maker.config, maker(), self.weights, place)
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
    sizes: tuple[int, ...] = ()
    if getattr(network.config, "compile", False):
        served = plan.num_workers if plan.inference == "worker" else 1
        shared = plan.inference == "worker" or plan.variable
        many = shared and served * plan.num_streams > 1
        sizes = (plan.rows, 2 * plan.rows) if many else (plan.rows,)
    place = partial(
        ActingPlace,
        precision=plan.acting_precision,
        num_rows=plan.agent_rows,
        recorded=plan.records,
        ladder=ladder,
        progress=progress,
    )
    return ActingMaker(network, weights, seeds, device or acting_device(plan), place, sizes)


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
        lives: RestartCounts | None,
        board: MemberBoard | None = None,
    ) -> None:
        self._index = index
        self._start = start
        self._lives = lives
        self._board = board
        self._segment = 0

    def first(self) -> int:
        """Return the seed that the policy begins with."""
        seed = self()
        return policy_seed(self._index, self._start, self._lives) if seed is None else seed

    def __call__(self) -> int | None:
        """Return a seed where another segment has begun since the last call, else None."""
        if self._board is None or (segment := self._board.segment).number == self._segment:
            return None
        self._segment = segment.number
        start = dataclasses.replace(self._start, seed=segment.seed)
        return policy_seed(self._index, start, self._lives)


def policy_seed(index: int, start: ResumePoint, lives: RestartCounts | None = None) -> int:
    """Return the seed of action sampling of the ``index``-th actor (inline) or policy worker, in
    its current life."""
    life = 0 if lives is None else lives.life(index)
    return row_seeds(start.seed, index, POLICY_STREAM, 1, start.resumes, life)[0]
