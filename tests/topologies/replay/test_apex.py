"""Ape-X as a whole: every transition comes from its place, the ladder, limits, learning, resume."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.dqn.algorithm import DQN
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.api import load_policy, train
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.rollouts.slots import Owner, length
from sampleforge.run.screen.messages import memory_line
from sampleforge.runners.base import WorkerDied
from sampleforge.runtime.machine import Machine, assumed
from sampleforge.topologies.config import ApexConfig
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from sampleforge.topologies.replay.ladder import (
    exploration_thirds,
    ladder_index,
    ladder_of,
    of_rows,
)
from sampleforge.topologies.replay.plan import ReplayPlan
from tests.support.apex_graphs import (
    CheckingLearnerMaker,
    apex_config,
    build_apex,
    learner_worker,
    limiter_of,
    serial_rounds,
    with_learner,
)
from tests.support.graphs import running, spec_of, survive_kills
from tests.support.pairings import network_maker, plan_of
from tests.support.variants import slow

COUNTING = "tests.support.envs:CountingVectorEnv"


def checking_graph(config: ApexConfig):  # type: ignore[no-untyped-def]
    graph, plan = build_apex(config)
    spec = spec_of(config)
    maker = CheckingLearnerMaker(network_maker(config, spec, 0), resolve_defaults(config, spec))
    return with_learner(graph, maker), plan


def planned(config: ApexConfig) -> ReplayPlan:
    spec = spec_of(config)
    return plan_of(resolve_defaults(config, spec), spec, "cpu")


@pytest.mark.long
@pytest.mark.parametrize(
    ("inference", "shards", "n_step", "alpha"),
    [("inline", 1, 3, 0.6), ("worker", 1, 1, 0.6), ("inline", 2, 3, 0.0), ("worker", 3, 5, 1.0)],
)
def test_every_transition_comes_from_its_place(
    inference: str, shards: int, n_step: int, alpha: float
) -> None:
    """Through many turns of a small replay: nothing crosses an episode, no ignored action, no
    truncation taken for an end, no row of another life of a slot."""
    chosen = apex_config(
        inference=inference, num_replay_shards=shards, n_step=n_step, priority_alpha=alpha
    )
    graph, plan = checking_graph(chosen)
    limiter = limiter_of(graph)
    for _ in serial_rounds(graph, 300):
        assert abs(limiter.balance) <= plan.tolerance or not limiter.replay_counters.learning[0]
    assert learner_worker(graph)._learner.checked > 1000
    assert limiter.replay_counters.inserted.sum() > 2 * plan.capacity, "the storage went round"
    samples = limiter.replay_counters.sampled[0] / limiter.replay_counters.inserted_since_start
    assert samples == pytest.approx(1.0, rel=0.5)


@pytest.mark.long
@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_learning_begins_with_the_steps_so_far_of_long_rollouts(inference: str) -> None:
    """Each split hands one rollout over early, whose transitions are right, and whole ones later.
    In a serial run all are whole."""
    more: dict[str, Any] = {"inference": inference, "rollout": 50, "replay_capacity": 6000}
    graph, plan = checking_graph(apex_config(**more))
    whole, _ = build_apex(apex_config(**more, serial=True))
    begun = [0.0, 0.0]
    for number, each in enumerate((graph, whole)):
        for _ in serial_rounds(each, 130):
            if not begun[number] and each.counters.total("updates"):
                begun[number] = each.counters.total("env_steps")
    assert 200 <= begun[0] < 300 < begun[1]
    assert learner_worker(graph)._learner.checked > 200
    for each, splits in ((graph, plan.num_workers * plan.num_splits), (whole, 0)):
        slots = each.groups[0].exchange.slots
        stored = [slot for slot in range(slots.count) if slots.owner[slot] == Owner.STORED]
        assert len(stored) > sum(length(slots, slot) < 50 for slot in stored) == splits


@pytest.mark.long
@pytest.mark.parametrize("inference", ["inline", "worker"])
@pytest.mark.parametrize(
    "kwargs", [{"mode": "same_step"}, {"mode": "same_step", "stacked": True}, {"mode": "disabled"}]
)
def test_truncated_transitions_of_same_step_environments_are_kept(
    inference: str, kwargs: dict[str, Any]
) -> None:
    """With the final observation, which ``obs`` does not have there, at the end of their window."""
    chosen = apex_config(env=COUNTING, env_kwargs=kwargs, inference=inference)
    graph, plan = checking_graph(chosen)
    for _ in serial_rounds(graph, 200):
        pass
    worker = learner_worker(graph)
    slots = graph.groups[0].exchange.slots
    replay_counters = limiter_of(graph).replay_counters
    assert replay_counters.inserted.sum() > 2 * plan.capacity, "the storage went round"
    stored = [slot for slot in range(slots.count) if slots.owner[slot] == Owner.STORED]
    assert slots.truncated[stored].any()
    assert (slots.extras["steps"][stored] > 0).all(), "every step is drawn"
    assert worker._learner.truncated > 100


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("shards", [1, 2])
def test_no_wrong_transition_with_real_processes(shards: int, tmp_path: Path) -> None:
    """As fast as they can, on a replay of a few slots that is overwritten all the time."""
    chosen = apex_config(num_replay_shards=shards, samples_per_insert=None, prefetch_batches=16)
    graph, plan = checking_graph(chosen)
    with running(graph, tmp_path) as runner:
        replay_counters = limiter_of(graph).replay_counters
        deadline = monotonic() + 100
        while (
            replay_counters.stale_updates.sum() < 100
            or graph.counters.total("trained_steps") < 5000
            or replay_counters.inserted.sum() <= 5 * plan.capacity
        ):
            runner.poll(0.05)
            assert monotonic() < deadline, (replay_counters.stale_updates, replay_counters.inserted)


@pytest.mark.long
@pytest.mark.parametrize("shards", [slow(1), 2])
def test_no_actor_and_no_split_starves_when_slots_are_scarce(shards: int) -> None:
    """A slow learner: leases come one at a time. Every row plays on all the same."""
    chosen = apex_config(samples_per_insert=30.0, num_splits=3, num_replay_shards=shards)
    graph, _ = build_apex(chosen)
    ended = {key: 0 for key in graph.groups[0].exploration.third}
    for _ in serial_rounds(graph, 2500):
        for episode in graph.episodes.take():
            ended[episode.actor, episode.split, episode.row] += 1
    assert graph.counters.total("updates") > 500
    assert min(ended.values()) > 0.5 * np.mean(list(ended.values()))


@pytest.mark.parametrize("counter", ["env_steps", "trained_steps"])
def test_the_clock_begins_with_the_first_step_or_what_is_learned_before(counter: str) -> None:
    """A resumed learner goes on with its replay before actors may add to it: `train_for_seconds`
    and the rates of the reports count that time."""
    graph, _ = build_apex(apex_config())
    ticker, clock = graph.new_ticker(), graph.progress.clock
    ticker.look()
    assert clock.seconds == 0.0
    graph.counters.row(graph.nodes[0].counter_row)[counter] += 1
    ticker.look()
    assert clock.seconds > 0.0


def test_the_ladder_is_spread_over_actors_and_counts_rows() -> None:
    chosen = apex_config(num_workers=3, num_envs_per_worker=4)
    plan = planned(chosen)
    epsilons = of_rows(ladder_of(DQN, chosen, plan), plan)
    literal = [0.4 ** (1 + 7 * i / 11) for i in range(12)]
    assert sorted(epsilons.tolist(), reverse=True) == pytest.approx(literal)
    assert ladder_index(plan, 1, 1, 0) == 7 and epsilons[1 * 4 + 1 * 2 + 0].item() == pytest.approx(
        literal[7]
    )
    for actor in range(3):
        of_actor = epsilons[4 * actor : 4 * actor + 4]
        assert of_actor.max() > 0.1 and of_actor.min() < 0.02, "every actor has both kinds"
    thirds = exploration_thirds(plan)
    greediest = {key for key, third in thirds.items() if third == 0}
    assert len(greediest) == 4
    assert {ladder_index(plan, *key) for key in greediest} == {8, 9, 10, 11}


def test_total_capacity_is_the_flag_for_any_number_of_shards() -> None:
    for shards in (1, 2, 3, 7):
        chosen = apex_config(num_replay_shards=shards, replay_capacity=21 * 20)
        plan = planned(chosen)
        assert plan.capacity == chosen.replay_capacity
        assert len(plan.stored_slots) == shards


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replay_capacity": 30, "learning_starts": 1, "num_replay_shards": 2}, "each of 2 shards"),
        ({"samples_per_insert_tolerance": 5.0}, "is less than"),
        ({"replay_capacity": 10**12}, "lower --replay-capacity"),
    ],
)
def test_plans_that_cannot_run_are_refused_with_numbers(
    change: dict[str, Any], message: str
) -> None:
    chosen = apex_config(**change)
    with pytest.raises(ConfigError, match=message):
        planned(chosen)


def test_an_unset_capacity_is_what_fits_into_memory() -> None:
    chosen = apex_config(replay_capacity=None, learning_starts=20_000)
    with assumed(Machine(2, 0, memory=10**12)):
        usual = planned(chosen)
    assert 0.99 * chosen.usual_capacity < usual.capacity <= chosen.usual_capacity
    assert not usual.fitted
    with assumed(Machine(2, 0, memory=2 * 10**6)):
        plan = planned(chosen)
        assert plan.fitted and 1000 < plan.capacity < 100_000
        assert 10**6 < plan.shared_bytes <= 0.9 * 2 * 10**6
        assert plan.learning_starts == plan.capacity // 2
        text = memory_line(chosen, dataclasses.replace(plan, slot_bytes=10**10))
        assert text is not None and f"holds {plan.capacity:,} transitions, as many as fit" in text
        with pytest.raises(ConfigError, match=r"transitions needs .*leave it out for as many"):
            planned(apex_config(replay_capacity=plan.capacity * 3))
    with assumed(Machine(2, 0, memory=1000)), pytest.raises(ConfigError, match="does not give"):
        planned(chosen)


def test_configs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="--learning-starts 500: the replay holds only"):
        apex_config(learning_starts=500)
    with pytest.raises(ConfigError, match="--batch-size 500: a minibatch has more transitions"):
        planned(apex_config(batch_size=500))
    with pytest.raises(ConfigError, match="--burn-in 50: a sequence shares only 40 steps"):
        apex_config(model=ModelConfig(core="gru"), burn_in=50)
    with pytest.raises(ConfigError, match="--sequence-overlap 40: a sequence has only 40"):
        apex_config(model=ModelConfig(core="gru"), sequence_length=40)
    with pytest.raises(ConfigError, match="--burn-in 20: without a recurrent core"):
        apex_config(burn_in=20)
    with pytest.raises(ConfigError, match=r"--priority-beta-final 1\.0: beta moves to it"):
        apex_config(priority_beta_final=1.0)
    with pytest.raises(ConfigError, match="Q-values are learned of one Discrete action"):
        build_apex(apex_config(env="tests.support.envs:MixedActionEnv"))


@pytest.mark.long
def test_action_masks_hold_in_acting_and_in_targets() -> None:
    """MaskedEnv itself asserts that no masked action is taken."""
    chosen = apex_config(
        env="tests.support.envs:MaskedEnv", env_kwargs={"where": "obs"}, epsilon_base=1.0
    )
    graph, _ = build_apex(chosen)
    for _ in serial_rounds(graph, 200):
        pass
    assert graph.counters.total("updates") > 20


# ---- learning ----


def cartpole(tmp_path: Path, **kwargs: Any) -> ApexConfig:
    defaults: dict[str, Any] = {
        "env": "CartPole-v1",
        "run_dir": str(tmp_path / "run"),
        "seed": 1,
        "num_workers": 1,
        "num_envs_per_worker": 8,
        "num_splits": 1,
        "rollout": 10,
        "model": ModelConfig(
            hidden_sizes=(64, 64), activation="relu", normalise_observations=False
        ),
        "optimiser": "adam",
        "learning_rate": 1e-3,
        "optimiser_eps": 1e-6,
        "batch_size": 64,
        "target_update_interval": 100,
        "learning_starts": 500,
        "replay_capacity": 20_000,
        "samples_per_insert": 8.0,
        "prefetch_batches": 2,
        "quiet": True,
    }
    return ApexConfig(**{**defaults, **kwargs})


@pytest.mark.long
def test_serial_runs_of_one_seed_are_bit_identical(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        chosen = cartpole(tmp_path / name, serial=True, train_for_env_steps=1500)
        run_dir = train(chosen).run_dir
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
        found.append([json.loads(line) for line in lines][-1])
    for key in ("loss", "return_mean_all", "q_mean", "replay_priority_sum", "updates", "grad_norm"):
        assert found[0][key] == found[1][key], key


@pytest.mark.long
def test_a_resumed_run_goes_on_and_refills_first(tmp_path: Path) -> None:
    first = train(cartpole(tmp_path, serial=True, train_for_env_steps=2000))
    updates = first.summary["updates"]
    assert updates > 50
    policy = load_policy(first.run_dir)
    assert policy.act(np.zeros(4, np.float32))[0] in (0, 1)
    again = train(cartpole(tmp_path, serial=True, train_for_env_steps=2400))
    assert again.summary["updates"] == updates, "nothing is learned from an empty replay"
    log = (first.run_dir / "log.txt").read_text()
    assert "resumed with an empty replay: 500 transitions are collected" in log
    third = train(cartpole(tmp_path, serial=True, train_for_env_steps=4500))
    assert third.summary["updates"] > updates + 50


def test_learner_state_survives_a_checkpoint_exactly() -> None:
    graph, _ = build_apex(apex_config(target_update_interval=7))
    for _ in serial_rounds(graph, 150):
        pass
    learner = learner_worker(graph)._learner
    tensors, plain = learner.state()
    assert learner.version > 10
    config = apex_config(target_update_interval=7)
    from sampleforge.algorithms.dqn.learner import DqnLearner

    other = DqnLearner(
        network_maker(config, spec_of(config), 9)(),
        resolve_defaults(config, spec_of(config)),
        LearnerPlace(torch.device("cpu")),
    )
    other.load(tensors, plain)
    again, plain_again = other.state()
    assert plain == plain_again
    for name, tensor in tensors.items():
        assert torch.equal(again[name], tensor), name
    assert any(name.startswith("target/") for name in tensors)


@pytest.mark.multiprocess(timeout=110)
def test_cartpole_improves_with_real_processes(tmp_path: Path) -> None:
    """Random: 22 of 500."""
    best = 0.0
    chosen = cartpole(tmp_path, train_for_env_steps=60_000, report_interval=0.5)
    from sampleforge.api import Trainer

    with Trainer(chosen) as trainer:
        for report in trainer:
            best = max(best, report.get("return_mean", 0.0))
            if best > 100.0:
                break
    assert best > 100.0


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("victim", ["actor 0", "replay 0", "learner"])
def test_a_killed_worker_ends_the_run_with_its_name(victim: str, tmp_path: Path) -> None:
    import os
    import signal

    graph, _ = build_apex(apex_config(max_worker_restarts=0))
    with running(graph, tmp_path) as runner:
        deadline = monotonic() + 100
        while graph.counters.total("updates") < 5:
            runner.poll(0.05)
            assert monotonic() < deadline
        os.kill(runner.pids()[victim], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=f"{victim} was ended by signal SIGKILL"):
            while monotonic() < deadline:
                runner.poll(0.05)


@pytest.mark.multiprocess(timeout=60)
def test_no_transition_is_wrong_after_actors_were_killed(tmp_path: Path) -> None:
    """Each is checked against the environment's own rule; debug poisons what was dropped."""
    config = apex_config(max_worker_restarts=4)
    config = resolve_defaults(config, spec_of(config))
    graph, _ = build_apex(config)
    maker = network_maker(config, spec_of(config), 1)
    with_learner(graph, CheckingLearnerMaker(maker, config))
    survive_kills(graph, tmp_path, [f"actor {killed % 2}" for killed in range(4)])
