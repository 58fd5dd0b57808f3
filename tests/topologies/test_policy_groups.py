"""Several policy groups in one graph: every row of every slot reaches the learner of its own group
exactly once, written by its own policy; statistics, checkpoints and reports are those of each."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from sampleforge.config import ConfigError
from sampleforge.evaluation import evaluate
from sampleforge.loaded_policy import load_policy
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import Owner, TrajectorySlots
from sampleforge.run.folder.checkpoint import CheckpointStore
from sampleforge.run.session import Session
from sampleforge.runners.base import Runner, RunnerContext
from sampleforge.runners.processes import ProcessRunner
from sampleforge.runners.serial import SerialRunner
from sampleforge.shared.records import EpisodeRecord
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.config import AnyConfig, ApexConfig, AppoConfig, DdppoConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.mapping import choose_mapping
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.starts import PolicyStart, ResumePoint, seed_of_policy
from sampleforge.workers.inference import Inference
from sampleforge.workers.policy_mapping import (
    FixedPerStream,
    RandomPerRollout,
    RoundRobin,
    StreamId,
)
from sampleforge.workers.stream import PolicyPort, Stream, lease
from tests.support.envs import code_reward
from tests.support.graphs import forget, resolved, spec_of
from tests.support.pairings import network_maker, plan_of, wire_of
from tests.support.slots import some_slots

CODE = "tests.support.envs:CodeEnv"
IDS = ("one", "two")


def config(**kwargs: Any) -> AppoConfig:
    model = ModelConfig(hidden_sizes=(8,), normalise_observations=False)
    chosen = AppoConfig(
        **{
            "env": CODE,
            "num_workers": 2,
            "num_envs_per_worker": 6,
            "num_splits": 2,
            "rollout": 7,
            "async_rl": True,
            "batch_size": 84,
            "model": model,
            "debug": True,
            **kwargs,
        }
    )
    return resolved(chosen, spec_of(chosen))


def starts(seed: int, ids: Sequence[str] = IDS) -> list[PolicyStart]:
    seeds = [seed_of_policy(seed, index) for index in range(len(ids))]
    own = zip(ids, seeds, strict=True)
    return [PolicyStart(name, ResumePoint(policy_seed), forget) for name, policy_seed in own]


def marked_graph(chosen: AppoConfig, seed: int = 1) -> Graph:
    """A graph of two groups, whose policies write the index of their group + 1 as the value of
    every observation, with policy versions from 100 (200) on."""
    spec = spec_of(chosen)
    plan = plan_of(chosen, spec, "cpu")
    chosen = dataclasses.replace(chosen, model=resolve_encoder(chosen.model, spec.observations))
    graph = wire_of(chosen, plan, spec, ResumePoint(seed), starts(seed))
    for mark, group in enumerate(graph.groups, 1):
        tensors = network_maker(chosen, spec, seed)().state_dict()
        for tensor in tensors.values():
            tensor.zero_()
        tensors["value_bias"].fill_(mark)
        tensors["value_scale"].fill_(1.0)
        group.weights.publish(tensors, 100 * mark)
    return graph


class Taken:
    """What the test took in the place of the learners: the rows of all rollouts, by env, and what
    is wrong with any of them right away."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rollouts = Counter[int]()
        self.steps: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """env -> (episode, step) of each observation that was acted on, in any order."""
        self.ended: Counter[tuple[int, float, int]] = Counter()
        """(policy, return, length) of the episodes that ended in a slot of the policy."""
        self.policies: dict[tuple[int, ...], set[int]] = defaultdict(set)
        """The rows of a stream, by their envs -> the policies whose slots they filled."""

    def take(self) -> None:
        """Take all that is ready for each learner."""
        for policy, group in enumerate(self.graph.groups):
            exchange = group.exchange
            assert isinstance(exchange, SlotExchange)
            while (slot := exchange.take_ready()) is not None:
                self._rollout(policy, exchange.slots, slot)
                exchange.give_back(slot)

    def _rollout(self, policy: int, slots: TrajectorySlots, slot: int) -> None:
        self.rollouts[policy] += 1
        assert (slots.extras["value"][slot] == policy + 1).all(), "written by another policy"
        assert (slots.version[slot] == 100 * (policy + 1)).all()
        obs = slots.obs["obs"][slot]
        envs = obs[0, :, 0].astype(int)
        assert (obs[:, :, 0] == envs).all(), "a row holds one env only"
        self.policies[tuple(envs.tolist())].add(policy)
        for row, env in enumerate(envs.tolist()):
            self.steps[env] += [(int(e), int(s)) for _, e, s, _ in obs[:-1, row]]
            for t in range(slots.shape.rollout):
                self._step(policy, slots, slot, t, row)

    def _step(self, policy: int, slots: TrajectorySlots, slot: int, t: int, row: int) -> None:
        env, episode, step, _ = slots.obs["obs"][slot, t, row].astype(int).tolist()
        _, _, after, action = slots.obs["obs"][slot, t + 1, row].astype(int).tolist()
        if not slots.valid[slot, t, row]:
            assert after == 0, "the step that resets"
            return
        assert after == step + 1 and action == slots.actions["action"][slot, t, row]
        assert slots.reward[slot, t, row] == code_reward(env, episode, after)
        if slots.terminated[slot, t, row] or slots.truncated[slot, t, row]:
            rewards = [code_reward(env, episode, k) for k in range(1, after + 1)]
            self.ended[policy, float(sum(rewards)), after] += 1

    def check(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Every step of every env up to some step was taken, by whichever group, exactly once; and
        of the episodes that ended there each counts for the policy that acted."""
        self.take()
        for env, steps in self.steps.items():
            ordered = sorted(steps)
            assert len(set(ordered)) == len(ordered), f"a step of env {env} came twice"
            assert ordered[0] == (0, 0)
            for (episode, step), after in pairwise(ordered):
                assert after in ((episode, step + 1), (episode + 1, 0)), f"env {env} lost a step"
        told = Counter((e.policy, e.ret, e.length) for e in episodes)
        assert not self.ended - told, "an episode of a slot was not reported for its policy"
        assert {e.policy for e in episodes} == {0, 1}

    def check_all_streams_had_both_policies(self) -> None:
        assert all(policies == {0, 1} for policies in self.policies.values()), self.policies


def without_learners(graph: Graph) -> Graph:
    learners = {group.learner.name for group in graph.groups}
    nodes = tuple(node for node in graph.nodes if node.name not in learners)
    return dataclasses.replace(graph, nodes=nodes)


def run_until(
    graph: Graph, runner: Runner, taken: Taken, rollouts: int, timeout: float = 40.0
) -> list[EpisodeRecord]:
    """Run until each actor has written so many more rollouts; returns the finished episodes."""
    actors = [node.counter_row for node in graph.having("actor")]
    goal = graph.counters.column("rollouts")[actors] + rollouts
    deadline, episodes = monotonic() + timeout, []
    while (graph.counters.column("rollouts")[actors] < goal).any():
        runner.poll(0.01)
        taken.take()
        episodes += graph.episodes.take()
        assert monotonic() < deadline, taken.rollouts
    return episodes


def process_runner(graph: Graph, folder: Path) -> ProcessRunner:
    (folder / "scratch").mkdir()
    return ProcessRunner(graph, RunnerContext(30.0, folder / "scratch"))


SERVED = [("inline", 1), ("worker", 1), ("worker", 2)]


@pytest.mark.long
@pytest.mark.parametrize(("inference", "policy_workers"), SERVED)
def test_every_row_reaches_its_own_learner_exactly_once_in_serial(
    inference: str, policy_workers: int
) -> None:
    served_by = {"num_policy_workers": policy_workers} if inference == "worker" else {}
    graph = without_learners(marked_graph(config(inference=inference, **served_by)))
    assert len(graph.having("policy")) == (2 * policy_workers if inference == "worker" else 0)
    runner, taken = SerialRunner(graph), Taken(graph)
    runner.start()
    try:
        episodes = run_until(graph, runner, taken, 60)
    finally:
        runner.close()
    taken.check([*episodes, *graph.episodes.take()])
    taken.check_all_streams_had_both_policies()
    assert len(taken.steps) == 12


@pytest.mark.multiprocess(timeout=90)
@pytest.mark.parametrize(("inference", "policy_workers"), SERVED)
def test_every_row_reaches_its_own_learner_exactly_once_in_processes(
    inference: str, policy_workers: int, tmp_path: Path
) -> None:
    served_by = {"num_policy_workers": policy_workers} if inference == "worker" else {}
    graph = without_learners(marked_graph(config(inference=inference, **served_by)))
    runner, taken = process_runner(graph, tmp_path), Taken(graph)
    runner.start()
    try:
        episodes = run_until(graph, runner, taken, 200)
    finally:
        runner.close()
    taken.check([*episodes, *graph.episodes.take()])
    taken.check_all_streams_had_both_policies()
    assert len(taken.steps) == 12


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_nothing_is_lost_or_comes_twice_when_an_actor_is_killed(
    inference: str, tmp_path: Path
) -> None:
    """Its successor takes over the slots that it had of both groups."""
    graph = without_learners(marked_graph(config(inference=inference)))
    runner, taken = process_runner(graph, tmp_path), Taken(graph)
    runner.start()
    try:
        episodes = run_until(graph, runner, taken, 20)
        for life in (1, 2, 3):
            psutil.Process(runner.pids()["actor 0"]).kill()
            episodes += run_until(graph, runner, taken, 60)
            assert graph.counters.total("restarts") == life
    finally:
        runner.close()
    taken.check([*episodes, *graph.episodes.take()])
    assert len(taken.steps) == 12 + 3 * 6, "each life has other envs"
    written = [(group.exchange.slots.owner == Owner.WRITING).sum() for group in graph.groups]
    assert sum(written) <= 4, "a slot per stream at most: no dead actor has kept one"
    for group in graph.groups:
        exchange = group.exchange
        assert isinstance(exchange, SlotExchange)
        exchange.take_over(0)
        exchange.take_over(1)
        taken.take()
        free = [exchange.num_free(actor) for actor in (0, 1)]
        assert sum(free) == exchange.slots.count, "every slot is free again, or can be written"


@pytest.mark.long
def test_recurrent_state_is_carried_within_a_policy_and_zero_for_a_new_one() -> None:
    core = ModelConfig(hidden_sizes=(8,), core="gru", core_size=5, normalise_observations=False)
    chosen = config(model=core, num_workers=1)
    spec = spec_of(chosen)
    plan = plan_of(chosen, spec, "cpu")
    chosen = dataclasses.replace(chosen, model=resolve_encoder(chosen.model, spec.observations))
    graph = wire_of(chosen, plan, spec, ResumePoint(1), starts(1))
    models = []
    for group in graph.groups:
        models.append(network_maker(chosen, spec, 1)())
        group.weights.read(models[-1].state_dict())
    runner = SerialRunner(without_learners(graph))
    runner.start()
    before: dict[int, int] = {}
    seen: Counter[bool] = Counter()
    try:
        while min(seen[True], seen[False]) < 30:
            runner.poll(0)
            for policy, group in enumerate(graph.groups):
                exchange: Any = group.exchange
                while (slot := exchange.take_ready()) is not None:
                    slots = exchange.slots
                    env = int(slots.obs["obs"][slot, 0, 0, 0])
                    changed = before.get(env) != policy
                    before[env] = policy
                    seen[changed] += 1
                    state = torch.from_numpy(slots.state[slot])
                    assert bool((state == 0).all()) == changed
                    obs = {"obs": torch.from_numpy(slots.obs["obs"][slot])}
                    with torch.no_grad():
                        output = models[policy](obs, state, torch.from_numpy(slots.first[slot]))
                    value = torch.from_numpy(slots.extras["value"][slot])
                    torch.testing.assert_close(value, output.values[:-1], atol=1e-5, rtol=1e-4)
                    exchange.give_back(slot)
    finally:
        runner.close()


# ---- slots for all streams of a split, or for none; mappings ----


class NoInference:
    """In the place of an inference that is never asked."""

    def __init__(self, rows: int, state_size: int) -> None:
        self.state = np.ones((1, rows, state_size), np.float32)
        self.final_obs: dict[str, Any] = {}


def port(policy: int, slots: TrajectorySlots) -> PolicyPort:
    shape = slots.shape
    inference: Any = NoInference(shape.rows, shape.state_size)
    checked: Inference = inference
    return PolicyPort(policy, SlotExchange(slots, [Wakeup()], [Wakeup()]), checked)


def test_slots_are_leased_for_all_streams_or_for_none() -> None:
    one, two = (port(policy, some_slots(2, debug=True)) for policy in (0, 1))
    assert sorted(lease([one, one], 0) or []) == [0, 1]
    assert lease([two, one], 0) is None, "one has no slot left"
    assert two.exchange.num_free(0) == 2, "so none of the other is taken"
    assert lease([two, two, two], 0) is None
    assert len(lease([two, two], 0) or []) == 2


@pytest.mark.parametrize(
    "mapping", [RandomPerRollout(3, seed=5), RoundRobin(3), FixedPerStream(3, shift=2)]
)
def test_mappings_repeat_themselves_and_give_every_policy_the_same_share(mapping: Any) -> None:
    streams = [StreamId(actor, split, 0) for actor in range(6) for split in range(2)]
    picked = [[mapping(stream, rollout) for rollout in range(60)] for stream in streams]
    assert picked == [[mapping(stream, rollout) for rollout in range(60)] for stream in streams]
    shares = np.bincount(np.concatenate(picked), minlength=3) / (60 * len(streams))
    np.testing.assert_allclose(shares, 1 / 3, atol=0.05)
    if isinstance(mapping, RandomPerRollout):
        assert len({tuple(each) for each in picked}) == len(streams), "each stream has its own"
    if isinstance(mapping, FixedPerStream):
        assert all(len(set(each)) == 1 for each in picked)


def test_more_policies_than_streams_of_overlapping_sequences_are_refused() -> None:
    plan = plan_of(config(num_workers=1), spec_of(config()), "cpu")
    chosen = choose_mapping(2, plan, 1, synchronous=False, overlapping=True)
    assert isinstance(chosen, FixedPerStream)
    with pytest.raises(ConfigError, match=r"3 policies .* 1 workers x 2 splits = 2; raise"):
        choose_mapping(3, plan, 1, synchronous=False, overlapping=True)


def test_ddppo_refuses_several_policies() -> None:
    chosen = DdppoConfig(env=CODE, num_ranks=1, num_envs_per_worker=4)
    with pytest.raises(ConfigError, match="ddppo trains one policy, but 2 are asked for"):
        wired(chosen)


def wired(chosen: AnyConfig, seed: int = 1) -> Graph:
    """The graph of two groups as a session makes it."""
    spec, kind = spec_of(chosen), pairing(chosen)
    chosen = dataclasses.replace(kind.resolve_defaults(chosen, spec), seed=seed)
    plan = kind.plan(chosen, spec, "cpu")
    chosen = dataclasses.replace(chosen, model=resolve_encoder(chosen.model, spec.observations))
    return kind.wire(chosen, plan, spec, ResumePoint(seed), starts(seed))


def test_the_figure_and_the_workers_are_named_by_group() -> None:
    graph = wired(config(inference="worker", evaluate_interval=1000))
    assert [node.name for node in graph.nodes] == [
        *("actor 0", "actor 1"),
        *("one/policy 0", "one/learner", "one/evaluator"),
        *("two/policy 0", "two/learner", "two/evaluator"),
    ]
    assert [node.counter_row for node in graph.nodes] == list(range(8))
    figure = graph.describe()
    assert "two/learner --> 1 two/policy workers: weights" in figure
    assert figure.count("finished episodes") == 1 and "2 policies" in figure


# ---- learning ----

CARTPOLE: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_workers": 2,
    "num_envs_per_worker": 4,
    "rollout": 16,
    "report_interval": 0.2,
}
APPO = AppoConfig(**CARTPOLE, batch_size=128)
APEX = ApexConfig(
    **CARTPOLE, learning_starts=200, replay_capacity=4000, batch_size=16, samples_per_insert=0.5
)
GRU = ModelConfig(hidden_sizes=(16,), core="gru", core_size=8)
LEARNING: dict[str, AnyConfig] = {
    "appo-synchronous": APPO,
    "appo-asynchronous": dataclasses.replace(APPO, async_rl=True),
    "appo-two-splits": dataclasses.replace(APPO, num_splits=2, async_rl=False),
    "appo-policy-workers": dataclasses.replace(APPO, async_rl=True, inference="worker"),
    "appo-gru": dataclasses.replace(APPO, model=GRU),
    "apex": APEX,
    "r2d2": dataclasses.replace(APEX, model=GRU),
}


def session(chosen: AnyConfig, folder: Path, **more: Any) -> Session:
    chosen = dataclasses.replace(chosen, run_dir=str(folder), seed=7, **more)
    return Session(chosen, policies=IDS)


def weights(running: Session) -> list[torch.Tensor]:
    """The published weights of each group, flat."""
    found = []
    for group in running.graph.groups:
        tensors = running.run_plan.new_model(group.id).state_dict()
        group.weights.read(tensors)
        found.append(torch.cat([tensor.flatten().double() for tensor in tensors.values()]))
    return found


def train(running: Session, updates: int) -> Iterator[dict[str, float]]:
    """Train until each policy has made so many updates, and finished ten episodes."""
    for report in running.reports():
        yield report
        if all(report[f"{n}/updates"] >= updates and report[f"{n}/episodes"] >= 10 for n in IDS):
            running.stop()


def check_learned(running: Session, updates: int) -> dict[str, Any]:
    """Train two policies; their weights move, apart from each other. Returns the last known
    value of each metric."""
    with running:
        before = weights(running)
        assert not torch.equal(*before), "other initial weights"
        known: dict[str, float] = {}
        for report in train(running, updates):
            known |= report
        after = weights(running)
    for then, now in zip(before, after, strict=True):
        assert not torch.equal(then, now)
    assert not torch.equal(*after)
    return known


def latest(folder: Path, name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    found = CheckpointStore(folder / "checkpoints" / name, 1).load(log=print)
    assert found is not None
    return found[0].tensors, found[0].state


@pytest.mark.long
@pytest.mark.parametrize("name", LEARNING)
def test_two_policies_learn_in_one_serial_run(name: str, tmp_path: Path) -> None:
    """Each has weights, statistics and checkpoints of its own."""
    running = session(LEARNING[name], tmp_path, serial=True)
    report = check_learned(running, 6)
    statistics = running.statistics.policies
    assert sum(policy.episodes for policy in statistics) == running.statistics.episodes
    assert report["episodes"] == report["one/episodes"] + report["two/episodes"]
    assert {"one/loss", "two/loss", "one/return_mean", "two/return_mean"} <= set(report)
    assert "loss" not in report and report["return_mean"] > 0
    model_of = {}
    for each in IDS:
        tensors, state = latest(tmp_path, each)
        model_of[each] = torch.cat([t.flatten() for n, t in tensors.items() if "model/" in n])
        own = state["statistics"]
        assert own["episodes"] == next(p for p in statistics if p.id == each).episodes
        assert own["updates"] == state["learner"]["version"] >= 6
    assert not torch.equal(model_of["one"], model_of["two"])
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert list(summary["policies"]) == list(IDS)
    assert summary["episodes"] == sum(each["episodes"] for each in summary["policies"].values())
    assert not list((tmp_path / "checkpoints").glob("*.safetensors"))


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("name", ["appo-synchronous", "appo-policy-workers", "apex"])
def test_two_policies_learn_in_processes_although_an_actor_is_killed(
    name: str, tmp_path: Path
) -> None:
    running = session(LEARNING[name], tmp_path)
    with running:
        before, goal = weights(running), 0.0
        for report in running.reports():
            fewest = min(report["one/updates"], report["two/updates"])
            if not goal and fewest > 3:
                psutil.Process(running.runner.pids()["actor 1"]).kill()
                goal = fewest + 20
            if goal and report["restarts"] and fewest > goal:
                running.stop()
        after = weights(running)
    assert report["restarts"] == 1
    assert all(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert latest(tmp_path, "one")[1]["env_steps"] > 0 < latest(tmp_path, "two")[1]["env_steps"]


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("chosen", [APPO, APEX])
def test_each_of_two_policies_may_have_several_learners(chosen: AnyConfig, tmp_path: Path) -> None:
    running = session(chosen, tmp_path, num_learners=2)
    check_learned(running, 20)
    names = [node.name for node in running.graph.having("learner")]
    assert names == [f"{name}/learner {index}" for name in IDS for index in (0, 1)]


@pytest.mark.long
def test_a_run_of_two_policies_goes_on_from_the_checkpoint_of_each(tmp_path: Path) -> None:
    check_learned(session(APPO, tmp_path, serial=True), 4)
    stored = {name: latest(tmp_path, name)[1]["statistics"] for name in IDS}
    again = session(APPO, tmp_path, serial=True, resume="must")
    with again:
        for policy in again.statistics.policies:
            assert policy.episodes == stored[policy.id]["episodes"]
            assert policy.updates == stored[policy.id]["updates"]
            assert list(policy.returns) == stored[policy.id]["returns"]
        versions = [group.weights.published for group in again.graph.groups]
        assert versions == [1, 1]
        for group in again.graph.groups:
            tensors = again.run_plan.new_model(group.id).state_dict()
            _, version = group.weights.read(tensors)
            kept = latest(tmp_path, group.id)[0]
            assert version == stored[group.id]["updates"]
            assert all(torch.equal(kept[f"model/{name}"], t) for name, t in tensors.items())
        again.stop()


@pytest.mark.long
def test_a_policy_is_loaded_and_evaluated_by_its_id(tmp_path: Path) -> None:
    check_learned(session(APPO, tmp_path, serial=True), 2)
    obs = np.array([0.1, -0.2, 0.3, 0.1], np.float32)
    loaded = {name: load_policy(tmp_path, policy=name) for name in IDS}
    for name, policy in loaded.items():
        assert policy.act(obs)[0] in (0, 1)
        kept = latest(tmp_path, name)[0]
        tensors = policy.model.state_dict()
        assert all(torch.equal(kept[f"model/{n}"], tensor) for n, tensor in tensors.items())
    assert evaluate(tmp_path, episodes=2, policy="two")["episodes"] == 2
    for wrong in (None, "three"):
        with pytest.raises(ConfigError, match="has the policies one, two; say which of them"):
            load_policy(tmp_path, policy=wrong)


@pytest.mark.long
def test_checkpoints_of_other_policies_are_refused(tmp_path: Path) -> None:
    check_learned(session(APPO, tmp_path, serial=True), 2)
    alone = dataclasses.replace(APPO, run_dir=str(tmp_path), seed=7, serial=True)
    with pytest.raises(ConfigError, match="are of other policies than policy; give another"):
        Session(alone).open()


@pytest.mark.long
def test_each_policy_is_evaluated_and_reported_apart(tmp_path: Path) -> None:
    found: dict[str, list[float]] = defaultdict(list)
    running = session(APPO, tmp_path, serial=True, evaluate_interval=500, evaluate_episodes=2)
    with running:
        for report in running.reports():
            for name in IDS:
                if f"{name}/eval_return_mean" in report:
                    found[name].append(report[f"{name}/eval_return_mean"])
            if all(found[name] for name in IDS) and "return_mean" in report:
                running.stop()
    tags = b"".join(path.read_bytes() for path in (tmp_path / "tb").iterdir())
    for tag in (b"one/eval/return_mean", b"two/losses/entropy", b"rollout/return_mean"):
        assert tag in tags


@pytest.mark.parametrize("ids", [("a", "a"), ("a", "../b"), ("",)])
def test_policy_ids_name_folders(ids: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="policy ids must differ"):
        Session(APPO, policies=ids)


def test_a_stream_of_overlapping_sequences_refuses_another_policy() -> None:
    graph = wired(LEARNING["r2d2"])
    ports = [port(i, group.exchange.slots) for i, group in enumerate(graph.groups)]
    envs = graph.nodes[0].envs[0]()
    try:
        stream = Stream(StreamId(0, 0, 0), 0, envs)
        stream.begin(ports[0], 0, 0)
        stream.begin(ports[0], 1, 0)
        with pytest.raises(ValueError, match="its sequences overlap"):
            stream.begin(ports[1], 0, 0)
    finally:
        envs.close()
