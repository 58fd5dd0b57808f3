"""Populations in a graph: each member has splits of its own, with the environments that it would
have alone; after a replacement experience of the old weights is told from that of the new ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.learning import Update
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.populations.callbacks import population_callbacks
from sampleforge.rollouts.batch import Batch
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.run.session import Session
from sampleforge.runners.base import Runner
from sampleforge.runners.serial import SerialRunner
from sampleforge.shared.member_board import Segment
from sampleforge.topologies.config import AnyConfig, ApexConfig, AppoConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.starts import PolicyStart, ResumePoint, seed_of_policy
from tests.support.graphs import forget, resolved, running, spec_of
from tests.support.pairings import network_maker

CODE = "tests.support.envs:CodeEnv"
LAG = 50
IDS = ("one", "two")


def config(**kwargs: Any) -> AppoConfig:
    chosen = AppoConfig(
        **{
            "env": CODE,
            "num_workers": 2,
            "num_envs_per_worker": 6,
            "num_splits": 2,
            "rollout": 7,
            "async_rl": True,
            "batch_size": 84,
            "max_policy_lag": LAG,
            "num_policies": 2,
            "pbt": True,
            "model": ModelConfig(hidden_sizes=(8,), normalise_observations=False),
            "debug": True,
            **kwargs,
        }
    )
    return resolved(chosen, spec_of(chosen))


def starts(seed: int, ids: tuple[str, ...] = IDS) -> list[PolicyStart]:
    return [
        PolicyStart(name, ResumePoint(seed_of_policy(seed, index)), forget)
        for index, name in enumerate(ids)
    ]


def wired(chosen: AnyConfig, seed: int = 1) -> Graph:
    spec, kind = spec_of(chosen), pairing(chosen)
    chosen = dataclasses.replace(kind.resolve_defaults(chosen, spec), seed=seed)
    plan = kind.plan(chosen, spec, "cpu")
    chosen = dataclasses.replace(chosen, model=resolve_encoder(chosen.model, spec.observations))
    policies = starts(seed, IDS if getattr(chosen, "pbt", False) else IDS[:1])
    return kind.wire(chosen, plan, spec, ResumePoint(seed), policies)


def marked(chosen: AppoConfig, mark: float) -> dict[str, torch.Tensor]:
    """Weights of a policy that gives every observation the value ``mark``."""
    model = dataclasses.replace(
        chosen, model=resolve_encoder(chosen.model, spec_of(chosen).observations)
    )
    tensors = network_maker(model, spec_of(chosen), 1)().state_dict()
    for tensor in tensors.values():
        tensor.zero_()
    tensors["value_bias"].fill_(mark)
    tensors["value_scale"].fill_(1.0)
    return tensors


class Replaced:
    """The test in the place of the learners: takes all rollouts of member 0, whose weights it
    replaces, and looks for steps of one copy that are taken for steps of the other."""

    OLD, NEW = 100, 100 + LAG + 1

    def __init__(self, chosen: AppoConfig, graph: Graph) -> None:
        self.chosen, self.graph = chosen, graph
        self.first_envs: set[int] = set()
        self.later_envs: set[int] = set()
        self.steps = {self.OLD: 0, self.NEW: 0}
        self.dropped = 0
        for mark, group in enumerate(graph.groups, 1):
            group.weights.publish(marked(chosen, mark), self.OLD)

    def replace(self) -> None:
        """What learner 0 does when it applies a change."""
        group = self.graph.groups[0]
        assert group.member is not None
        group.weights.publish(marked(self.chosen, 7.0), self.NEW)
        group.member.board.begin_segment(Segment(1, 12345))

    def take(self) -> None:
        for index, group in enumerate(self.graph.groups):
            exchange = group.exchange
            assert isinstance(exchange, SlotExchange)
            while (slot := exchange.take_ready()) is not None:
                if index == 0:
                    self._rollout(exchange.slots, slot)
                exchange.give_back(slot)

    def _rollout(self, slots: TrajectorySlots, slot: int) -> None:
        value, version = slots.extras["value"][slot], slots.version[slot]
        assert ((value == 1.0) == (version == self.OLD)).all()
        assert ((value == 7.0) == (version == self.NEW)).all(), "as by the ordinary staleness rule"
        envs = slots.obs["obs"][slot, :, :, 0].astype(int)  # one observation more than steps
        for t, row in np.argwhere(slots.valid[slot]).tolist():
            env, at = int(envs[t, row]), int(version[t, row])
            self.steps[at] += 1
            if at == self.OLD:
                assert env not in self.later_envs, "old weights in the environments of the copy"
                self.first_envs.add(env)
            elif env not in self.first_envs:
                self.later_envs.add(env)
        # The step that makes the environments anew is no experience, and ends their episodes.
        anew = envs[1:] != envs[:-1]
        assert not slots.valid[slot][anew].any() and slots.truncated[slot][anew].all()
        self.dropped += int(anew.sum())


def without_learners(graph: Graph) -> Graph:
    nodes = tuple(node for node in graph.nodes if node.role != "learner")
    return dataclasses.replace(graph, nodes=nodes)


def run_until(runner: Runner, replaced: Replaced, state: Callable[[], bool]) -> None:
    """Take rollouts until ``state()``: how many that needs depends on when each actor begins."""
    deadline = monotonic() + 60.0
    while not state():
        runner.poll(0.01)
        replaced.take()
        replaced.graph.episodes.take()
        assert monotonic() < deadline


def check_replacement(runner: Runner, replaced: Replaced) -> None:
    member, steps = replaced.graph.groups[0].member, replaced.steps
    assert member is not None
    board, first, later = member.board, replaced.first_envs, replaced.later_envs
    run_until(runner, replaced, lambda: steps[Replaced.OLD] > 200 and len(first) == 12)
    assert board.has_restarted
    replaced.replace()
    if isinstance(runner, SerialRunner):  # actors that are processes may be as fast as this one
        assert not board.has_restarted
    run_until(runner, replaced, lambda: steps[Replaced.NEW] > 200 and len(later) == 12)
    run_until(runner, replaced, lambda: board.has_restarted and replaced.dropped > 0)
    assert len(first) == len(later) == 12
    assert board.sampled >= sum(steps.values())


@pytest.mark.long
@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_no_step_of_old_weights_is_taken_for_one_of_the_copy_in_serial(inference: str) -> None:
    chosen = config(inference=inference)
    graph = without_learners(wired(chosen))
    runner = SerialRunner(graph)
    runner.start()
    try:
        check_replacement(runner, Replaced(chosen, graph))
    finally:
        runner.close()


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_no_step_of_old_weights_is_taken_for_one_of_the_copy_in_processes(
    inference: str, tmp_path: Path
) -> None:
    chosen = config(inference=inference)
    graph = without_learners(wired(chosen))
    replaced = Replaced(chosen, graph)
    with running(graph, tmp_path) as runner:
        check_replacement(runner, replaced)


@pytest.mark.long
@pytest.mark.parametrize("async_rl", [True, False])
def test_a_learner_is_given_no_batch_whose_counted_steps_have_mixed_weights(
    async_rl: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a whole run: of the steps that are learned from, each is of the copy that learns."""
    first_of: dict[tuple[int, int], int] = {}
    """RolloutLearner and segment -> the first policy version of that copy."""
    learned: list[int] = []
    stale: list[int] = []
    update = RolloutLearner.update

    def checked(self: RolloutLearner, batch: Batch, progress: float) -> Update:
        segment = self.tag.get("segment", [0])[0]
        first_of.setdefault((id(self), segment), self.version)
        first = first_of[id(self), segment]
        counted = batch.valid & (self.version - batch.version <= LAG)
        assert (batch.version[counted] >= first).all(), "a step of the weights before the copy"
        learned.append(int(counted.sum()))
        stale.append(int((batch.valid & ~counted).sum()))
        updated = update(self, batch, progress)
        assert updated.metrics["stale_steps"] == stale[-1]
        return updated

    monkeypatch.setattr(RolloutLearner, "update", checked)
    sizes: dict[str, Any] = {"num_envs_per_worker": 4, "num_splits": 2, "rollout": 16}
    sizes |= {"batch_size": 96 if async_rl else 64, "max_policy_lag": LAG, "num_policies": 3}
    rounds: dict[str, Any] = {"pbt_variant": "truncation", "pbt_start": 600, "pbt_period": 400}
    ends: dict[str, Any] = {"run_dir": str(tmp_path), "train_for_env_steps": 9000}
    rates = {"learning-rate": "1e-5..1e-1"}
    chosen = AppoConfig(
        env="CartPole-v1",
        **{**sizes, **rounds, **ends, "async_rl": async_rl, "serial": True, "seed": 2},
        pbt=True,
        pbt_initial=rates,  # type: ignore[arg-type]
    )
    with Session(chosen, population_callbacks(chosen)) as session:
        for _ in session.reports():
            pass
    assert len({segment for _, segment in first_of}) >= 2, "there were copies"
    assert sum(learned) > 5000
    if async_rl:
        assert sum(stale) > 0, "some experience was in flight"


def test_a_member_has_the_environments_of_a_run_with_that_member_alone() -> None:
    """The same seeds in the same order, whatever the size of the population."""
    population = wired(config(num_splits=1))
    assert [len(node.envs) for node in population.having("actor")] == [2, 2]
    for member in (0, 1):
        seed = seed_of_policy(1, member)
        alone = wired(config(num_splits=1, num_policies=1, pbt=False), seed)
        for one, many in zip(alone.having("actor"), population.having("actor"), strict=True):
            assert first_observations(many.envs[member]()) == first_observations(one.envs[0]())


def first_observations(envs: Any) -> list[float]:
    obs = {"obs": np.zeros((envs.num_rows, 4), np.float32)}
    envs.reset(obs)
    envs.close()
    return [float(number) for number in obs["obs"].ravel()]


def test_the_members_of_apex_share_no_ladder_of_epsilons() -> None:
    sizes: dict[str, Any] = {"num_workers": 2, "num_envs_per_worker": 4, "num_splits": 2}
    sizes |= {"num_policies": 2, "replay_capacity": 4000, "learning_starts": 100}
    chosen = ApexConfig(env="CartPole-v1", pbt=True, **sizes)
    graph = wired(chosen)
    ladders = []
    for member, group in enumerate(graph.groups):
        assert group.exploration is not None
        assert {split % 2 for _, split, _ in group.exploration.epsilon} == {member}
        ladders.append(sorted(group.exploration.epsilon.values()))
    assert ladders[0] == ladders[1] and len(ladders[0]) == 8


@pytest.mark.long
def test_populations_of_multi_agent_environments_are_refused(tmp_path: Path) -> None:
    several: dict[str, Any] = {"num_policies": 2, "pbt": True, "num_envs_per_worker": 2}
    env = "tests.support.multi_agent:CodeParallelEnv"
    chosen = AppoConfig(env=env, run_dir=str(tmp_path), serial=True, **several)
    with pytest.raises(ConfigError, match=r"--pbt: .*CodeParallelEnv has \d agents"):
        Session(chosen, population_callbacks(chosen)).open()
