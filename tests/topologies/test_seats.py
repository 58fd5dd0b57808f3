"""Several agents in an environment: each agent of a split is a stream of its own, and every row
reaches the learner of the policy that acted, exactly once; frozen policies fill no slot."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.api import train
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.run.callback import Callback
from sampleforge.runners.base import Runner, RunnerContext
from sampleforge.runners.processes import ProcessRunner
from sampleforge.runners.serial import SerialRunner
from sampleforge.shared.records import NO_SNAPSHOT, EpisodeRecord, games
from sampleforge.shared.snapshots import LATEST
from sampleforge.topologies.config import AppoConfig
from sampleforge.topologies.graph import Graph
from sampleforge.workers.policy_mapping import RandomPerRollout, RoundRobin, StreamId
from tests.support.graphs import resolved, spec_of
from tests.support.seat_rows import SeatRows, marked_graph, without_learners

CODE = "tests.support.multi_agent:CodeParallelEnv"


def config(env_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> AppoConfig:
    chosen = AppoConfig(
        **{
            "env": CODE,
            "env_kwargs": env_kwargs or {},
            "num_workers": 2,
            "num_envs_per_worker": 4,
            "num_splits": 2,
            "rollout": 5,
            "async_rl": True,
            "batch_size": 40,
            "model": ModelConfig(hidden_sizes=(8,), normalise_observations=False),
            "debug": True,
            "decorrelate": False,
            **kwargs,
        }
    )
    return resolved(chosen, spec_of(chosen))


def run_until(
    graph: Graph, runner: Runner, rows: SeatRows | Discarded, rollouts: int, timeout: float = 60.0
) -> list[EpisodeRecord]:
    """Run until each actor has taken so many more rollouts; return the finished episodes."""
    actors = [node.counter_row for node in graph.having("actor")]
    goal = graph.counters.column("rollouts")[actors] + rollouts
    deadline, episodes = monotonic() + timeout, []
    while (graph.counters.column("rollouts")[actors] < goal).any():
        runner.poll(0.01)
        rows.take()
        episodes += graph.episodes.take()
        assert monotonic() < deadline, rows.rollouts
    return episodes


def run_serially(graph: Graph, rows: SeatRows | Discarded, rollouts: int) -> list[EpisodeRecord]:
    runner = SerialRunner(graph)
    runner.start()
    try:
        episodes = run_until(graph, runner, rows, rollouts)
    finally:
        runner.close()
    return [*episodes, *graph.episodes.take()]


@pytest.mark.long
@pytest.mark.parametrize("inference", ["inline", "worker"])
@pytest.mark.parametrize("policies", [1, 2, 4, 8])
def test_every_row_of_every_agent_reaches_the_learner_of_its_policy_exactly_once(
    policies: int, inference: str
) -> None:
    chosen = config({"agents": 3}, num_policies=policies, inference=inference)
    graph = without_learners(marked_graph(chosen))
    assert len(graph.groups) == policies
    rows = SeatRows(graph, [{0, 1, 2}] * policies)
    episodes = run_serially(graph, rows, 20 * policies)
    rows.check(episodes)
    assert len(rows.steps) == 3 * 8, "every agent of every env"
    steps = sum(slots for slots in rows.rollouts.values()) * 5 * 2
    assert graph.total("env_steps") <= steps + 2 * 2 * 3 * 2 * 5, "each agent's steps count"


@pytest.mark.long
@pytest.mark.parametrize("policies", [2, 4])
def test_agents_with_other_spaces_have_policies_of_their_own(policies: int) -> None:
    chosen = config({"agents": 2, "scouts": 1}, num_policies=policies)
    graph = without_learners(marked_graph(chosen))
    of_groups = [{0, 1}, {2}]
    rows = SeatRows(graph, [of_groups[index % 2] for index in range(policies)])
    rows.check(run_serially(graph, rows, 40))
    assert len(rows.steps) == 3 * 8
    shapes = {group.exchange.slots.obs["obs"].shape[-1] for group in graph.groups}
    assert shapes == {5, 7}


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_every_row_reaches_its_own_learner_in_processes(inference: str, tmp_path: Path) -> None:
    chosen = config({"agents": 2, "scouts": 1}, num_policies=4, inference=inference)
    graph = without_learners(marked_graph(chosen))
    (tmp_path / "scratch").mkdir()
    context = RunnerContext(30.0, tmp_path / "scratch")
    runner, rows = ProcessRunner(graph, context), SeatRows(graph, [{0, 1}, {2}] * 2)
    runner.start()
    try:
        episodes = run_until(graph, runner, rows, 100)
    finally:
        runner.close()
    rows.check([*episodes, *graph.episodes.take()])


def test_the_memory_of_slots_is_linear_in_the_number_of_policies() -> None:
    nbytes = {}
    for policies in (1, 2, 4, 8):
        graph = marked_graph(config(num_policies=policies))
        slots = [group.exchange.slots for group in graph.groups]
        nbytes[policies] = sum(each.shape.nbytes(each.count) for each in slots)
        if policies > 1:
            (note,) = (note for note in graph.notes if note.startswith("slots of all policies"))
            assert note.startswith(f"slots of all policies: {policies} x ")
    assert nbytes == {policies: policies * nbytes[1] for policies in (1, 2, 4, 8)}


def test_a_group_of_agents_without_a_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no policy plays scout_0; .*--num-policies 2"):
        marked_graph(config({"agents": 2, "scouts": 1}))


# ---- frozen policies ----


@pytest.mark.long
def test_frozen_policies_play_seats_and_fill_no_slot() -> None:
    chosen = config({"length": 6}, num_policies=2, policies_to_train=("policy_0",))
    graph = without_learners(marked_graph(chosen))
    assert [group.id for group in graph.groups] == ["policy_0"]
    assert [group.id for group in graph.frozen] == ["policy_1"]
    rows = SeatRows(graph, [{0, 1}])
    episodes = run_serially(graph, rows, 60)
    rows.check(episodes, every_step=False)
    assert {episode.seat for episode in episodes} == {0, 1}, "the seats take turns"
    assert {episode.opponent for episode in episodes} == {0, NO_SNAPSHOT}
    played = sum(len(steps) for steps in rows.steps.values())
    assert played == rows.rollouts[0] * 5 * 2


@pytest.mark.long
def test_opponents_are_drawn_for_each_episode_and_play_all_of_it() -> None:
    """Snapshot 10 + i always takes action i, and each agent is paid its action."""
    env = "tests.support.multi_agent:PaidByAction"
    chosen = config({"length": 4}, env=env, opponent_pool=3, num_workers=1, num_splits=1)
    graph = without_learners(marked_graph(chosen))
    (frozen,) = graph.frozen
    assert frozen.id == "opponent" and frozen.pool.snapshot(3) == LATEST
    for entry in range(3):
        frozen.pool.put(entry, always(entry, frozen.new_model()), 10 + entry)
    frozen.pool.set_probabilities([0.25, 0.25, 0.5, 0.0])
    episodes = run_serially(graph, Discarded(graph), 200)
    whole = [episode for episode in episodes if episode.opponent != NO_SNAPSHOT]
    assert len(whole) > 0.7 * len(episodes)
    shares = [np.mean([episode.opponent == 10 + entry for episode in whole]) for entry in range(3)]
    np.testing.assert_allclose(shares, [0.25, 0.25, 0.5], atol=0.12)
    for episode in whole:
        assert episode.opponent_ret == 4 * (episode.opponent - 10)


OF_SEVERAL = [
    pytest.param({"agents": 3}, "inline", id="three-agents"),
    pytest.param({"agents": 4}, "worker", id="four-agents"),
    pytest.param({"agents": 3, "late": 2}, "inline", id="one-joins-late"),
    pytest.param({"agents": 4, "shorter": 1}, "inline", id="some-leave-early"),
]


def three_snapshots(env_kwargs: dict[str, Any], **more: Any) -> Graph:
    """A graph whose snapshot 10 + i always takes action i, for which agents are paid, each another
    amount."""
    env = "tests.support.multi_agent:PaidByActionAndSeat"
    chosen = config({"length": 6, **env_kwargs}, env=env, opponent_pool=3, num_workers=1, **more)
    graph = without_learners(marked_graph(chosen))
    (frozen,) = graph.frozen
    for entry in range(3):
        frozen.pool.put(entry, always(entry, frozen.new_model()), 10 + entry)
    frozen.pool.set_probabilities([0.25, 0.25, 0.5, 0.0])
    return graph


def check_whole_games(episodes: list[EpisodeRecord], env_kwargs: dict[str, Any]) -> None:
    """Check the mean return of the opponents, which the actions of one snapshot give only if it
    has played all seats but that of the agent that learns, all the time."""
    agents = env_kwargs["agents"]
    lengths = [6 - env_kwargs.get("shorter", 0) * seat for seat in range(agents)]
    lengths[1] -= env_kwargs.get("late", 0)
    whole = [episode for episode in episodes if episode.opponent != NO_SNAPSHOT]
    assert len(whole) > 0.5 * len(episodes)
    shares = [np.mean([episode.opponent == 10 + entry for episode in whole]) for entry in range(3)]
    np.testing.assert_allclose(shares, [0.25, 0.25, 0.5], atol=0.12)
    assert {episode.seat for episode in whole} == set(range(agents))
    for episode in whole:
        others = [lengths[seat] * (seat + 1) for seat in range(agents) if seat != episode.seat]
        paid = (episode.opponent - 10) * sum(others) / len(others)
        assert episode.opponent_ret == pytest.approx(paid), episode


@pytest.mark.long
@pytest.mark.parametrize(("env_kwargs", "inference"), OF_SEVERAL)
def test_one_opponent_plays_all_other_agents_of_a_game(
    env_kwargs: dict[str, Any], inference: str
) -> None:
    graph = three_snapshots(env_kwargs, inference=inference)
    check_whole_games(run_serially(graph, Discarded(graph), 500), env_kwargs)


@pytest.mark.multiprocess(timeout=120)
def test_one_opponent_plays_all_other_agents_of_a_game_in_processes(tmp_path: Path) -> None:
    graph = three_snapshots({"agents": 3})
    (tmp_path / "scratch").mkdir()
    runner = ProcessRunner(graph, RunnerContext(30.0, tmp_path / "scratch"))
    runner.start()
    try:
        episodes = run_until(graph, runner, Discarded(graph), 300)
    finally:
        runner.close()
    check_whole_games([*episodes, *graph.episodes.take()], {"agents": 3})


@pytest.mark.long
def test_a_snapshot_that_is_replaced_plays_its_episodes_to_the_end() -> None:
    env = "tests.support.multi_agent:PaidByAction"
    chosen = config({"length": 30}, env=env, opponent_pool=1, num_workers=1, num_splits=1)
    graph = without_learners(marked_graph(chosen))
    (frozen,) = graph.frozen
    frozen.pool.put(0, always(1, frozen.new_model()), 1)
    frozen.pool.set_probabilities([1.0, 0.0])
    rows, runner = Discarded(graph), SerialRunner(graph)
    runner.start()
    episodes: list[EpisodeRecord] = []
    try:
        for snapshot in range(2, 12):
            episodes += run_until(graph, runner, rows, 3)
            frozen.pool.put(0, always(snapshot % 3, frozen.new_model()), snapshot)
        episodes += run_until(graph, runner, rows, 12)
    finally:
        runner.close()
    whole = [episode for episode in episodes if episode.opponent != NO_SNAPSHOT]
    assert len({episode.opponent for episode in whole}) >= 2
    for episode in whole:
        assert episode.opponent_ret == 30 * (episode.opponent % 3)


def test_the_newest_weights_are_an_opponent_too() -> None:
    env = "tests.support.multi_agent:PaidByAction"
    chosen = config({"length": 4}, env=env, opponent_pool=1, num_workers=1, num_splits=1)
    graph = without_learners(marked_graph(chosen))
    tensors = always(2, graph.frozen[0].new_model())
    graph.groups[0].weights.publish(tensors, 300)
    episodes = run_serially(graph, Discarded(graph), 30)
    whole = [episode for episode in episodes if episode.opponent != NO_SNAPSHOT]
    assert {episode.opponent for episode in whole} == {LATEST}
    assert {episode.opponent_ret for episode in whole} == {8.0}


def test_a_pool_refuses_probabilities_that_cannot_be_drawn() -> None:
    (frozen,) = marked_graph(config(opponent_pool=2)).frozen
    for wrong in ([0.5, 0.0, 0.4], [1.0, 0.0], [-0.5, 0.5, 1.0]):
        with pytest.raises(ValueError, match="probabilities with a sum of 1"):
            frozen.pool.set_probabilities(wrong)
    with pytest.raises(ValueError, match=r"entries \[1\] have a probability, but no weights"):
        frozen.pool.set_probabilities([0.0, 0.5, 0.5])


def always(action: int, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights of an actor-critic that always takes ``action``."""
    tensors = model.state_dict()
    for tensor in tensors.values():
        tensor.zero_()
    tensors["policy_bias"][action] = 50.0
    return tensors


class Discarded:
    """Takes what is ready for each learner, and gives it back."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rollouts = 0

    def take(self) -> None:
        for group in self.graph.groups:
            exchange = group.exchange
            assert isinstance(exchange, SlotExchange)
            while (slot := exchange.take_ready()) is not None:
                exchange.give_back(slot)
                self.rollouts += 1


def test_frozen_policies_need_a_seat_that_no_trained_policy_plays() -> None:
    with pytest.raises(ConfigError, match="no seat is left for a frozen one"):
        marked_graph(config({"agents": 1}, opponent_pool=2))


def synchronous(agents: int, folder: Path, **more: Any) -> AppoConfig:
    """A run with 2 actors of 2 splits of 2 rows, whose rollouts have 5 steps."""
    return AppoConfig(
        **{
            "env": CODE,
            "env_kwargs": {"agents": agents},
            "async_rl": False,
            "num_workers": 2,
            "num_envs_per_worker": 4,
            "num_splits": 2,
            "rollout": 5,
            "minibatch_size": 20,
            "num_epochs": 1,
            "model": ModelConfig(hidden_sizes=(8,), normalise_observations=False),
            "run_dir": str(folder / "run"),
            "serial": True,
            "quiet": True,
            "train_for_env_steps": 2000,
            **more,
        }
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [
        {"opponent_pool": 2},
        {"num_policies": 2, "policies_to_train": ("policy_0",)},
        {"num_policies": 3, "policies_to_train": ("policy_0", "policy_1")},
    ],
)
def test_a_batch_needs_rollouts_of_the_agents_that_learn_only(
    more: dict[str, Any], tmp_path: Path
) -> None:
    """One of three agents learns, so that 4 splits give 40 env steps."""
    if "opponent_pool" in more:
        pytest.importorskip("openskill")
    summary = train(synchronous(3, tmp_path, batch_size=40, **more)).summary
    policies = list(summary.get("policies", {"policy": summary}).values())
    updates = [of_policy["updates"] for of_policy in policies]
    steps = 2000 / len(policies) / 20  # gradient steps, with one minibatch of 20 env steps each
    assert updates == pytest.approx([steps] * len(policies), rel=0.25)
    with pytest.raises(ConfigError, match=r"not a multiple of 40 = 2 rows x 5 steps x 4 splits"):
        train(synchronous(3, tmp_path / "other", batch_size=60, **more))


def test_each_group_of_agents_counts_those_that_learn() -> None:
    """Of the first group one agent, because its second policy is frozen; of the second both."""
    trained = ("policy_0", "policy_1", "policy_3")
    kwargs = {"agents": 2, "scouts": 2}
    chosen = config(
        kwargs, num_policies=4, policies_to_train=trained, async_rl=False, batch_size=40
    )
    graph = marked_graph(chosen)
    slots = {group.id: group.exchange.slots.count for group in graph.groups if group.exchange}
    assert slots["policy_0"] == 4 and slots["policy_1"] == slots["policy_3"]
    assert slots["policy_1"] % 8 == 0, "2 actors x 2 splits x 2 agents"


# ---- policy mappings ----


def by_seat(seat: StreamId, rollout: int) -> str:
    return "policy_1" if seat.agent == "a_1" else "policy_0"


def unknown(seat: StreamId, rollout: int) -> str:
    return "policy_7"


def never_the_second(seat: StreamId, rollout: int) -> str:
    return "policy_0"


def test_a_mapping_of_the_user_picks_the_policy_of_each_seat() -> None:
    name = f"{__name__}:by_seat"
    graph = without_learners(marked_graph(config(num_policies=2, policy_mapping=name)))
    rows = SeatRows(graph, [{0}, {1}])
    rows.check(run_serially(graph, rows, 30))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("unknown", "returned 'policy_7' .* one of the policies policy_0, policy_1"),
        ("never_the_second", "never picks policy_1 in the first 100 rollouts"),
        ("missing", "has no function 'missing'"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused_before_the_run(function: str, message: str) -> None:
    chosen = config(num_policies=2, policy_mapping=f"{__name__}:{function}")
    with pytest.raises(ConfigError, match=message):
        marked_graph(chosen)


def test_a_mapping_of_the_user_needs_asynchronous_sampling() -> None:
    chosen = config(
        num_policies=2, policy_mapping=f"{__name__}:by_seat", async_rl=False, batch_size=80
    )
    with pytest.raises(ConfigError, match="needs --async-rl"):
        marked_graph(chosen)


def seats_in(mapping: Any, seats: int, rollout: int) -> list[int]:
    return [mapping(StreamId(0, 0, seat), rollout) for seat in range(seats)]


@pytest.mark.parametrize("policies", [2, 3, 4])
@pytest.mark.parametrize("seats", [2, 3, 4, 5])
def test_policies_that_take_turns_have_equal_shares_and_meet_each_other(
    policies: int, seats: int
) -> None:
    mapping = RoundRobin(policies)
    met = set()
    for block in range(policies):
        rollouts = range(block * policies, (block + 1) * policies)
        of_seats = [seats_in(mapping, seats, rollout) for rollout in rollouts]
        for picked in zip(*of_seats, strict=True):
            assert sorted(picked) == list(range(policies)), "each seat has each policy once"
        met |= {pair for each in of_seats for pair in permutations(each, 2)}
    assert met >= set(permutations(range(policies), 2))


def test_where_one_seat_learns_policies_take_turns_whichever_it_is() -> None:
    mapping = RoundRobin(3, apart=False)
    assert [seats_in(mapping, 2, rollout) for rollout in range(4)] == [
        [0, 0],
        [1, 1],
        [2, 2],
        [0, 0],
    ]


class GamesOfPolicies(Callback):
    """Keeps the policies that played each game."""

    def __init__(self) -> None:
        self.records: list[EpisodeRecord] = []

    def on_episode_record(self, session: Any, record: EpisodeRecord) -> None:
        self.records.append(record)

    @property
    def found(self) -> list[set[int]]:
        return [{record.policy for record in game} for game in games(self.records)]


@pytest.mark.long
@pytest.mark.parametrize(("agents", "policies"), [(2, 2), (3, 2), (2, 3)])
def test_policies_that_learn_in_turn_with_sampling_play_each_other(
    agents: int, policies: int, tmp_path: Path
) -> None:
    """In a synchronous run, where every batch waits for its share of every actor."""
    more = {"batch_size": 40 * agents, "minibatch_size": 10 * agents, "train_for_env_steps": 4000}
    played = GamesOfPolicies()
    chosen = synchronous(agents, tmp_path, num_policies=policies, **more)
    summary = train(chosen, callbacks=[played]).summary
    updates = [of_policy["updates"] for of_policy in summary["policies"].values()]
    assert sum(len(game) > 1 for game in played.found) > 0.5 * len(played.found) > 50
    assert 10 * (max(updates) - min(updates)) < min(updates), "a batch, at most"


def test_random_draws_give_each_policy_one_of_as_many_successive_rollouts() -> None:
    mapping = RandomPerRollout(4, seed=3)
    picked = [mapping(StreamId(0, 0, 1), rollout) for rollout in range(40)]
    assert all(sorted(picked[i : i + 4]) == [0, 1, 2, 3] for i in range(0, 40, 4))
    assert len({tuple(picked[i : i + 4]) for i in range(0, 40, 4)}) > 3
