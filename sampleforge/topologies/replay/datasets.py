"""The datasets from which an Ape-X run learns: checked, and wired as actors that fill slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

from sampleforge.algorithms.acting import ActingPlace
from sampleforge.data.dataset import open_dataset
from sampleforge.data.episode_vector import EpisodeVector, ShuffleBuffer
from sampleforge.env.place import DATASET_STREAM
from sampleforge.env.vector import Array, EnvVector
from sampleforge.replay.exchange import ReplayExchange
from sampleforge.replay.limiter import Shares
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.counters import RestartBudget
from sampleforge.topologies.builders import ActingMaker, PolicySeeds
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.datasets import findable, open_datasets
from sampleforge.topologies.graph import GraphBuilder
from sampleforge.topologies.group_wiring import GroupWiring
from sampleforge.topologies.placement import placement_beside
from sampleforge.topologies.replay.plan import ReplayPlan
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.topologies.sampler_plan import choose_precision
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.inference import LocalInference
from sampleforge.workers.stream import PolicyPort


class DatasetRows:
    """The env vector of an actor that plays a dataset, and where its inference finds the vector.
    ``folder``: of the dataset; ``shuffle``: env steps of the shuffle buffer, whose order has
    another ``seed`` in each of the ``lives`` of the ``actor``; ``clip_observations``: as in
    `open_dataset`."""

    def __init__(
        self,
        folder: str,
        slots: TrajectorySlots,
        shuffle: int,
        seed: Sequence[int],
        lives: RestartBudget,
        actor: int,
        *,
        clip_observations: bool,
    ) -> None:
        self._folder = folder
        self.slots = slots
        self._shuffle = shuffle
        self._seed = seed
        self._lives = lives
        self._actor = actor
        self._clip_observations = clip_observations
        self._vector: EpisodeVector | None = None

    def actions(self) -> dict[str, Array]:
        """Return the actions of the next step, leaf -> [rows, ...]."""
        assert self._vector is not None, "the actor makes it before it asks for actions"
        return self._vector.actions

    def make(self) -> EnvVector:
        """Open the dataset and return the env vector. It has one seat, also where the environment
        has several agents: each of their episodes was recorded by itself."""
        shape = self.slots.shape
        clip = self._clip_observations
        spec = dataclasses.replace(shape.spec, agents=())
        dataset = open_dataset(self._folder, spec, clip_observations=clip)
        buffer = ShuffleBuffer(dataset, self._shuffle, [*self._seed, self._lives.life(self._actor)])
        self._vector = EpisodeVector(spec, shape.rows, buffer)
        return self._vector


ACTS_ON = "cpu"
"""The device on which the actions of datasets are valued, that of the run's learner or not."""


def shares_of(config: ReplayRunConfig, plan: ReplayPlan) -> Shares | None:
    """Return the shares of the sources in the experience; None if there is one source. The actors
    of the environment come first, then one for each dataset."""
    if len(config.sources) == 1:
        return None
    live = [source.weight for source in config.sources if source not in config.datasets]
    source_of = [0] * plan.num_workers + [len(live) + i for i in range(len(config.datasets))]
    weights = [*live, *(source.weight for source in config.datasets)]
    return Shares(tuple(source_of), tuple(weights))


def add_dataset_actors(graph: GraphBuilder, group: GroupWiring[ReplayExchange]) -> None:
    """Add an actor for each dataset, which fills the slots of the replay of the only policy. Raises
    ConfigError as `open_datasets`."""
    config, exchange, start = group.config, group.exchange, group.policy.start
    channels = group.actors
    spec, lives = exchange.slots.shape.spec, channels.restart_budget
    precision, _ = choose_precision(config, ACTS_ON, config.model.has_pixels(spec.observations))
    for number, dataset in enumerate(open_datasets(config, spec)):
        index = group.plan.num_workers + number
        seed = [start.seed, DATASET_STREAM, number, start.resumes]
        folder, shuffle = findable(dataset.source), config.shuffle_buffer
        clip = config.clip_observations
        rows = DatasetRows(
            folder, exchange.slots, shuffle, seed, lives, index, clip_observations=clip
        )
        place = partial(ActingPlace, precision=precision, given=rows.actions)
        seeds = PolicySeeds(index, start, lives.life)
        acting = ActingMaker(group.new_model, group.weights, seeds, ACTS_ON, place)
        port = PolicyPort(0, exchange, LocalInference(acting, exchange.slots, 1, index))
        post = graph.post(channels.wakeups[index])
        worker = ActorWorker(index, [rows.make], [port], channels.episodes, post)
        worker.name = f"dataset {number}"
        placement = placement_beside(group.plan, niceness=config.worker_niceness)
        graph.add("dataset", worker, post, placement, RestartAlone(lives, index))
