"""Ape-X learns from datasets: every transition was recorded, and sources have their shares."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml

from sampleforge.algorithms.learning import Update
from sampleforge.api import train
from sampleforge.config import ConfigError
from sampleforge.data.dataset import open_dataset
from sampleforge.data.episode_vector import EpisodeVector, ShuffleBuffer
from sampleforge.env.adapter import env_spec
from sampleforge.models.config import ModelConfig
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.rollouts.slots import Owner
from sampleforge.spec import EnvSpaces, rescaled
from sampleforge.topologies.config import ApexConfig, AppoConfig
from sampleforge.topologies.datasets import check_datasets
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from sampleforge.topologies.recorder import check_recording
from sampleforge.topologies.replay.plan import ReplayPlan
from sampleforge.workers import recorder
from tests.support.apex_graphs import (
    CODE,
    apex_config,
    build_apex,
    learner_worker,
    serial_rounds,
    with_learner,
)
from tests.support.env_vectors import buffers
from tests.support.graphs import spec_of
from tests.support.offline import SEEN, record, wired
from tests.support.pairings import network_maker
from tests.support.recorded import recorded as recorded_episodes
from tests.support.recorded import write_dataset
from tests.support.stack_checking import STACKED, StackCheckingLearner, StackCheckingLearnerMaker

AGENTS = "tests.support.multi_agent:CodeParallelEnv"
COUNTING = "tests.support.stacked_envs:StackedVectorEnv"


def recorded(folder: Path, steps: int = 500, **more: Any) -> Path:
    """A dataset of a short serial run."""
    small: dict[str, Any] = {"num_envs_per_worker": 5, "num_splits": 1, "seed": 1, "rollout": 7}
    config = AppoConfig(**{**small, "env": STACKED, **more}, serial=True, record=str(folder))
    record(config, steps)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that no test changes."""
    return recorded(tmp_path_factory.mktemp("recorded") / "data")


class Learner(StackCheckingLearner):
    """Under same-step autoreset the observation after a termination is the first one of whatever
    episode comes next; the learner of the base class knows that from the number of the episode,
    which is higher where an environment is stepped."""

    def update(self, sample: ReplaySample, progress: float) -> Update:  # type: ignore[override]
        batch = sample.items
        if self.config.env_kwargs.get("mode") == "same_step":
            ended = batch.discount == 0
            batch.next_obs["obs"][ended, :, 1] = batch.obs["obs"][ended, :, 1] + 1
        return super().update(sample, progress)


class LearnerMaker(StackCheckingLearnerMaker):
    def __call__(self) -> StackCheckingLearner:
        return Learner(self.new_network(), self.config)


def checking_graph(config: ApexConfig) -> tuple[Graph, ReplayPlan]:
    """A graph whose learner checks every frame of every transition."""
    graph, plan = build_apex(config)
    spec = spec_of(config)
    maker = LearnerMaker(network_maker(config, spec, 0), resolve_defaults(config, spec))
    return with_learner(graph, maker), plan


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "unfinished"),
    [
        ({"env": STACKED, "env_kwargs": {"padding": "zero"}}, 1 << 20),
        ({"env": STACKED, "env_kwargs": {"padding": "reset"}}, 300),
        ({"env": COUNTING, "env_kwargs": {"mode": "same_step"}}, 1 << 20),
        ({"env": COUNTING, "env_kwargs": {"mode": "next_step"}}, 300),
    ],
)
def test_every_transition_from_data_alone_was_recorded(
    change: dict[str, Any], unfinished: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from episodes in several parts: their stacks are rebuilt, and no window crosses."""
    monkeypatch.setattr(recorder, "UNFINISHED_BYTES", unfinished)
    folder = recorded(tmp_path / "data", **change)
    parts = [each for each in open_dataset(folder).episodes() if not each.begins]
    assert bool(parts) == (unfinished < 1 << 20)
    config = apex_config(**change, input=(str(folder),), num_replay_shards=2)
    graph, plan = checking_graph(config)
    assert not graph.having("actor") and plan.envs == 0
    for _ in serial_rounds(graph, 150):
        pass
    learner = learner_worker(graph)._learner
    assert learner.checked > 500 and learner.truncated > 0
    assert graph.total("env_steps") > 500, "the dataset is read again and again"
    assert not graph.episodes.take(), "its returns are not those of the policy"


@pytest.mark.long
def test_a_run_from_data_alone_is_evaluated_in_the_environment(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "data", env=CODE)
    small: dict[str, Any] = {"serial": True, "quiet": True, "train_for_env_steps": 3000}
    more: dict[str, Any] = {"evaluate_interval": 1000, "evaluate_episodes": 2}
    config = apex_config(
        input=(str(folder),), run_dir=str(tmp_path / "run"), report_interval=0.5, **small, **more
    )
    result = train(config)
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    assert reports[-1]["dataset_steps"] == reports[-1]["env_steps"] >= 3000
    assert not any("return_mean" in report for report in reports), "it has played no episode"
    assert any(report.get("eval_return_mean", 0.0) > 0 for report in reports)
    stored = yaml.safe_load((result.run_dir / "config.yaml").read_text())
    assert stored["input"] == [str(folder)] and stored["num_workers"] == config.num_workers
    again = train(dataclasses.replace(config, train_for_env_steps=4000))
    assert again.summary["env_steps"] >= 4000


@pytest.mark.long
@pytest.mark.parametrize("live", [(), ("live",)])
def test_episodes_of_several_agents_are_learned_from(live: tuple[str, ...], tmp_path: Path) -> None:
    """Each agent's were recorded by itself, and are played by themselves."""
    game: dict[str, Any] = {"env": AGENTS, "env_kwargs": {"agents": 3, "late": 2, "shorter": 1}}
    folder = recorded(tmp_path / "data", **game)
    seen = {int(each.observations["obs"][0, 4]) for each in open_dataset(folder).episodes()}
    assert seen == {0, 1, 2}, "the agents"
    graph, _ = build_apex(apex_config(**game, num_splits=1, input=(*live, str(folder))))
    for _ in serial_rounds(graph, 60):
        pass
    (row,) = (node.counter_row for node in graph.having("dataset"))
    assert graph.counters.column("env_steps")[row] > 200
    assert graph.total("updates") > 0


@pytest.mark.long
def test_sources_fill_the_replay_in_the_proportion_of_their_weights(data: Path) -> None:
    config = apex_config(
        env=STACKED, input=("live=1", f"{data}=3"), num_splits=1, samples_per_insert=None
    )
    graph, _ = checking_graph(config)
    for _ in serial_rounds(graph, 300):
        pass
    steps = graph.counters.column("env_steps")
    rows = {role: [n.counter_row for n in graph.having(role)] for role in ("actor", "dataset")}
    live, data = (steps[rows[role]].sum() for role in ("actor", "dataset"))
    assert live > 200 and data / live == pytest.approx(3, rel=0.15)
    assert learner_worker(graph)._learner.checked > 1000


@pytest.mark.long
def test_sequences_with_recurrent_states_are_learned_from_data(data: Path) -> None:
    config = apex_config(
        env=STACKED,
        input=(str(data),),
        model=ModelConfig(hidden_sizes=(8,), normalise_observations=False, core="gru"),
        **{"sequence_length": 6, "sequence_overlap": 2, "burn_in": 2, "learning_starts": 60},
    )
    graph, _ = build_apex(config)
    for _ in serial_rounds(graph, 120):
        pass
    assert graph.total("updates") > 10
    slots = graph.groups[0].exchange.slots
    stored = slots.owner == Owner.STORED
    assert slots.sequence_usable[stored].all() and (slots.sequence_error[stored] > 0).all()
    assert np.abs(slots.states[stored]).max() > 0, "those of the policy that learns"


@pytest.mark.long
def test_each_pass_reads_every_episode_once_in_another_order(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "data", env=SEEN, env_kwargs={"name": "code"})
    dataset = open_dataset(folder)

    def passes(seed: int) -> list[list[bytes]]:
        buffer = ShuffleBuffer(dataset, 60, [seed])
        return [
            [buffer.next().observations["obs"].tobytes() for _ in range(dataset.num_episodes)]
            for _ in range(2)
        ]

    first, second = passes(1)
    assert sorted(first) == sorted(second) and first != second
    whole = [each.observations["obs"].tobytes() for each in dataset.episodes()]
    assert sorted(first) == sorted(whole) and first != whole
    assert passes(1) == [first, second] and passes(2) != [first, second]


@pytest.mark.long
def test_a_dataset_of_other_spaces_is_refused_with_both(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        build_apex(apex_config(env=SEEN, input=(str(data),)))
    assert "expected float32 [4], found float32 [4, 4]" in str(error.value)
    with pytest.raises(ConfigError, match="no dataset of Minari"):
        build_apex(apex_config(input=(str(tmp_path),)))
    with pytest.raises(ConfigError, match="no such folder"):
        build_apex(apex_config(input=(f"{tmp_path}/none",)))
    with pytest.raises(ConfigError, match=r"holds a dataset of .* with other spaces"):
        wired(AppoConfig(env=SEEN, record=str(data)))


def test_a_dataset_that_is_given_twice_by_two_names_is_refused(data: Path) -> None:
    twice = (f"{data}=0.5", f"{data / 'data'}=0.5")
    with pytest.raises(ConfigError, match=r"data is the same dataset as .* sum of their weights"):
        build_apex(apex_config(env=STACKED, input=twice))


def test_data_of_another_action_repeat_are_warned_of(tmp_path: Path) -> None:
    """Another limit of episodes changes nothing that is learned."""
    config = ApexConfig(env="CartPole-v1", input=(str(tmp_path),))
    spec = spec_of(config)
    given = recorded_episodes([5])
    for each in given:
        each.observations["obs"] = np.zeros((6, 4), np.float32)
        each.actions["action"][:] = 0
    recorded = dataclasses.replace(spec, frame_skip=4, max_episode_steps=7)
    write_dataset(tmp_path, recorded, given)
    (said,) = check_datasets(config, spec)
    assert "was taken for 4 env frames, and one of this run is for 1" in said
    assert check_datasets(config, dataclasses.replace(recorded, max_episode_steps=8)) == []


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ({"opponent_pool": 2}, True),
        ({"num_policies": 2, "policies_to_train": ("policy_1",)}, True),
        ({"num_policies": 2}, False),
        ({}, False),
    ],
)
def test_recordings_of_agents_that_learn_in_turn_are_warned_of(
    more: dict[str, Any], warned: bool, tmp_path: Path
) -> None:
    config = AppoConfig(env=AGENTS, record=str(tmp_path / "data"), **more)
    said = check_datasets(config, spec_of(config))
    assert ["8 rollouts at a time (--rollout)" in text for text in said] == [True] * warned
    alone = AppoConfig(env=STACKED, record=str(tmp_path / "data"))
    core = ModelConfig(core="gru")
    sequences = ApexConfig(env=AGENTS, record=str(tmp_path / "data"), opponent_pool=2, model=core)
    for each in (alone, sequences):  # of whose overlapping sequences one agent learns for good
        assert check_datasets(each, spec_of(each)) == []


@pytest.mark.long
def test_a_run_whose_dataset_cannot_be_used_gets_no_folder(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    refused: dict[str, dict[str, Any]] = {
        "no such folder": {"input": ("nowhere",)},
        "does not fit": {"env": SEEN, "input": (str(data),)},
        "with other spaces": {"env": SEEN, "record": str(data)},
    }
    for why, how in refused.items():
        with pytest.raises(ConfigError, match=why):
            train(apex_config(run_dir=str(run), serial=True, quiet=True, **how))
        assert not run.exists()


@pytest.mark.long
def test_a_dataset_makes_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minari makes the one that the metadata name if they have no spaces: that could run code."""
    folder = recorded(tmp_path / "data")
    monkeypatch.setattr(gym, "make", lambda *_, **__: pytest.fail("an environment was made"))
    path = folder / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    spec = dataclasses.replace(gym.spec("CartPole-v1"), entry_point="tests.support.offline:seen")
    path.write_text(json.dumps({**metadata, "env_spec": spec.to_json()}))
    assert open_dataset(folder).num_episodes > 10
    del metadata["observation_space"]
    path.write_text(json.dumps({**metadata, "env_spec": spec.to_json()}))
    with pytest.raises(ConfigError, match="makes no environment"):
        open_dataset(folder)


def test_a_dataset_from_elsewhere_is_read_by_its_spaces(tmp_path: Path) -> None:
    """Written by Minari itself, without what SampleForge adds."""
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    (tmp_path / "data").mkdir()
    observations = np.arange(20, dtype=np.float32).reshape(5, 4)
    storage = MinariStorage.new(
        tmp_path / "data",
        observation_space=gym.spaces.Box(-100, 100, (4,), np.float32),
        action_space=gym.spaces.Discrete(3, start=2),
    )
    ends = np.array([False, False, False, True])
    storage.update_episodes(
        [
            EpisodeBuffer(
                observations=observations,
                actions=np.array([2, 3, 4, 2]),
                rewards=np.ones(4),
                terminations=ends,
                truncations=~ends & False,
                infos={},
            )
        ]
    )
    (episode,) = open_dataset(tmp_path).episodes()
    assert episode.actions["action"].tolist() == [0, 1, 2, 0] and episode.ends
    assert episode.observations["obs"].tobytes() == observations.tobytes()
    assert episode.log_probs is None and episode.begins


def minari_dataset(folder: Path, observations: gym.spaces.Space[Any], given: Any) -> EnvSpaces:
    """Write an episode of one step, from elsewhere; return the spaces."""
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    (folder / "data").mkdir()
    actions = gym.spaces.Discrete(2)
    spaces = {"observation_space": observations, "action_space": actions}
    storage = MinariStorage.new(folder / "data", **spaces)
    columns = "rewards", "terminations", "truncations"
    one = {"observations": given, "actions": np.array([1])}
    storage.update_episodes([EpisodeBuffer(**one, **{name: np.ones(1) for name in columns})])
    return EnvSpaces(observations, actions)


def test_categories_that_begin_elsewhere_are_other_observations(tmp_path: Path) -> None:
    """The same number would stand for another value."""
    spaces = minari_dataset(tmp_path, gym.spaces.Discrete(3, start=5), np.array([5, 7]))
    (episode,) = open_dataset(tmp_path, env_spec("E", spaces)).episodes()
    assert episode.observations["obs"].tolist() == [0, 2]
    other = env_spec("E", EnvSpaces(gym.spaces.Discrete(3), spaces.action))
    with pytest.raises(ConfigError, match=r"'obs': expected .* of 3 values, found .* from 5 on;"):
        open_dataset(tmp_path, other)


def test_pixels_of_another_largest_value_are_other_observations(tmp_path: Path) -> None:
    """Pixels are divided by the largest value of the environment: others would be nearly black."""
    bright = np.ones((2, 36, 36), np.float32)
    spaces = minari_dataset(tmp_path, gym.spaces.Box(0, 1, (36, 36)), bright)
    (episode,) = open_dataset(tmp_path, env_spec("E", spaces)).episodes()
    assert episode.observations["obs"].max() == 1
    other = env_spec("E", EnvSpaces(gym.spaces.Box(0, 255, (36, 36)), spaces.action))
    with pytest.raises(ConfigError, match=r"up to 255, found float32 .* of pixels up to 1;"):
        open_dataset(tmp_path, other)
    unbounded = EnvSpaces(gym.spaces.Box(-np.inf, np.inf, (36, 36)), spaces.action)
    assert open_dataset(tmp_path, env_spec("E", unbounded)).spec.observations["obs"].high == np.inf


def test_an_episode_without_steps_is_not_played() -> None:
    episodes = recorded_episodes([2, 0, 3])

    def chosen(order: list[int]) -> Any:
        return iter([episodes[i] for i in order])

    dataset: Any = SimpleNamespace(source="d", num_steps=5, num_episodes=3, episodes=chosen)
    buffer = ShuffleBuffer(dataset, 60, [0])
    assert sorted(len(buffer.next()) for _ in range(4)) == [2, 2, 3, 3]
    empty: Any = SimpleNamespace(source="d", num_steps=0)
    with pytest.raises(ConfigError, match="d: the dataset has no env steps"):
        ShuffleBuffer(empty, 60, [0])


def test_an_element_of_an_action_that_is_fixed_is_zero_in_the_units_of_the_policy(
    tmp_path: Path,
) -> None:
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    (tmp_path / "data").mkdir()
    low, high = np.array([-2, 3], np.float32), np.array([2, 3], np.float32)
    storage = MinariStorage.new(
        tmp_path / "data",
        observation_space=gym.spaces.Box(-1, 1, (1,), np.float32),
        action_space=gym.spaces.Box(low, high),
    )
    ends = np.array([False, True])
    broken_off = np.array([[0], [0], [np.inf]], np.float32)
    storage.update_episodes(
        [
            EpisodeBuffer(
                observations=broken_off,
                actions=np.array([[1, 3], [-2, 3]], np.float32),
                rewards=np.ones(2),
                terminations=ends,
                truncations=ends & False,
                infos={},
            )
        ]
    )
    spaces = EnvSpaces(storage.observation_space, storage.action_space)
    spec = env_spec("fixed", spaces)
    spec = dataclasses.replace(spec, actions={"action": rescaled(spec.actions["action"])})
    (episode,) = open_dataset(tmp_path, spec).episodes()
    assert episode.actions["action"].tolist() == [[0.5, 0], [-1, 0]]
    assert episode.observations["obs"].tolist() == [[0], [0], [0]], "its end terminated"


def test_a_replay_is_given_the_actions_that_the_environment_took() -> None:
    """Not those that the policy drew, of which what lies beyond the bounds has led to nothing."""
    spaces = EnvSpaces(gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Box(-1.0, 1.0, (2,)))
    spec = env_spec("bounded", spaces)
    (drawn,) = recorded_episodes([3], spec.actions)
    actions = np.array([[3, 0.5], [-0.25, -4], [1, -1]], np.float32)
    drawn = dataclasses.replace(drawn, actions={"action": actions})
    dataset: Any = SimpleNamespace(
        source="d", num_steps=3, num_episodes=1, episodes=lambda order: iter([drawn])
    )
    vector = EpisodeVector(spec, 1, ShuffleBuffer(dataset, 1, [0]))
    step = buffers(spec, 1)
    vector.reset(step.obs)
    taken = []
    for _ in range(3):
        taken.append(vector.actions["action"][0].tolist())
        vector.send({})
        vector.recv(step)
    assert taken == [[1, 0.5], [-0.25, -1], [1, -1]]
    assert actions.max() == 3, "estimates need what the policy drew"


def test_a_run_does_not_record_into_the_dataset_that_it_reads(data: Path) -> None:
    config = ApexConfig(
        env=STACKED, input=("live=0.5", f"{data}=0.5"), record=str(data / ".." / data.name)
    )
    before = (data / "data" / "metadata.json").read_bytes()
    with pytest.raises(ConfigError, match="--input reads the same dataset"):
        check_recording(config, spec_of(config))
    assert (data / "data" / "metadata.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"input": ("live", "live")}, "twice"),
        ({"input": ("a=0",)}, "above 0"),
        ({"input": ("a=x",)}, "above 0"),
        ({"shuffle_buffer": 5}, "names no dataset"),
        ({"input": ("a",), "record": "b"}, "nothing is sampled"),
        ({"input": ("a",), "num_policies": 2}, "one policy"),
        ({"record_max_gb": 1.0}, "nothing is recorded"),
    ],
)
def test_settings_without_a_meaning_are_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ApexConfig(env="CartPole-v1", **change)


def test_weights_are_the_last_part_of_a_source() -> None:
    config = ApexConfig(env="CartPole-v1", input=("live=1", "runs/a=b/data=3"))
    assert [tuple(source) for source in config.sources] == [("live", 0.25), ("runs/a=b/data", 0.75)]
    assert ApexConfig(env="CartPole-v1").is_live
