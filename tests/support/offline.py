"""Environments that keep what they gave, graphs that record it, and datasets read by Minari."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.runners.serial import SerialRunner
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.starts import ResumePoint
from sampleforge.workers.actor import END_RECORDING
from tests.support.envs import CodeEnv, MaskedEnv
from tests.support.graphs import one_policy, spec_of
from tests.support.recorded_envs import ACTIONS, SpaceEnv
from tests.support.recorded_envs import make as recorded
from tests.support.stacked_envs import stacked

SEEN = "tests.support.offline:seen"


@dataclasses.dataclass
class Played:
    """An episode as its environment has given it: the observations of reset and steps, and the
    actions, rewards and flags of the steps."""

    observations: list[Any]
    actions: list[Any] = dataclasses.field(default_factory=list)
    rewards: list[float] = dataclasses.field(default_factory=list)
    flags: list[tuple[bool, bool]] = dataclasses.field(default_factory=list)


PLAYED: list[list[Played]] = []
"""The episodes of each environment of this process, in the order in which they were made, since it
was last cleared."""


class Keeper(gym.Wrapper[Any, Any, Any, Any]):
    """Notes every episode in `PLAYED`."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.episodes: list[Played] = []
        PLAYED.append(self.episodes)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        self.episodes.append(Played([copy.deepcopy(observation)]))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        episode = self.episodes[-1]
        result = self.env.step(action)
        observation, reward, terminated, truncated, _ = result
        episode.actions.append(copy.deepcopy(action))
        episode.observations.append(copy.deepcopy(observation))
        episode.rewards.append(float(reward))
        episode.flags.append((terminated, truncated))
        return result  # type: ignore[return-value]


def seen(name: str = "code") -> gym.Env[Any, Any]:
    """An environment whose episodes are noted."""
    made: dict[str, Any] = {
        "code": CodeEnv,
        "mask in info": MaskedEnv,
        "stacked": lambda: stacked(3, "zero"),
        "stacked, reset": lambda: stacked(4, "reset"),
        "stacked, says zero": lambda: stacked(4, "reset", "zero"),
    }
    if name in made:
        env = made[name]()
    elif name in ACTIONS:
        env = SpaceEnv(ACTIONS[name])
    else:
        env = recorded(name).unwrapped
    kept = Keeper(env)
    kept.metadata = env.metadata
    return kept


def wired(config: AnyConfig) -> tuple[Graph, EnvSpec]:
    """The graph of a config, and the spec in the policy's units; nothing is started."""
    spec, chosen = spec_of(config), pairing(config)
    config = chosen.resolve_defaults(config, spec)
    plan = chosen.plan(config, spec, "cpu")
    config = dataclasses.replace(
        config,
        batch_size=plan.batch_size,
        model=resolve_encoder(config.model, spec.observations),
    )
    PLAYED.clear()  # of the environments that gave the spec
    return chosen.wire(config, plan, spec, *one_policy(ResumePoint(config.seed or 0))), spec


def record(config: AnyConfig, steps: int = 300) -> tuple[Graph, EnvSpec]:
    """Record at least so many env steps of a serial run."""
    graph, spec = wired(config)
    assert graph.recording is not None
    runner = SerialRunner(graph)
    runner.start()
    try:
        while graph.total("env_steps") < steps:
            runner.poll(0)
        runner.ask(graph.recording.node, "finish", None, 0)
    finally:
        runner.close()
    return graph, spec


def run_slowly(graph: Graph, rounds: int, every: int = 11) -> None:
    """Step the recorder in one of ``every`` rounds. It takes a rollout of each actor then."""
    assert graph.recording is not None
    workers = [node.worker for node in graph.nodes]
    recorder = graph.recording.node.worker
    for worker in workers:
        worker.start()
    try:
        for number in range(rounds):
            for worker in workers:
                if worker is not recorder or number % every == 0:
                    worker.step()
        for node in graph.having("actor"):
            node.worker.handle(END_RECORDING, None)
    finally:
        for worker in reversed(workers):
            worker.close()


class Stored(NamedTuple):
    """An episode of a dataset as Minari reads it: `minari.EpisodeData`, and its attributes."""

    episode: Any
    about: dict[str, Any]

    @property
    def row(self) -> int:
        """The row of the environment, in a run with one actor and one split."""
        return int(self.about["stream"][-1])


def stored(folder: Path) -> Iterator[Stored]:
    """The episodes of a dataset, through Minari's own interface."""
    import minari

    dataset = minari.MinariDataset(str(folder / "data"))
    about = dataset.storage.get_episode_metadata(range(dataset.total_episodes))
    for episode, attributes in zip(dataset.iterate_episodes(), about, strict=True):
        yield Stored(episode, attributes)


def leaves_of(value: Any) -> list[Any]:
    """The arrays of a nested value, in the order of its keys."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in leaves_of(value[key])]
    if isinstance(value, tuple):
        return [leaf for child in value for leaf in leaves_of(child)]
    return [np.asarray(value)]
