"""Variable experience in APPO and Ape-X: each env row steps as soon as it is ready, late rollouts
are cut, every step is there once, and cut rollouts are learned from like whole ones."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from math import inf
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.experience import experience_of
from sampleforge.algorithms.ppo.loss import PpoLoss
from sampleforge.config import ConfigError
from sampleforge.data.dataset import open_dataset
from sampleforge.models.config import ModelConfig
from sampleforge.replay.exchange import ReplayExchange
from sampleforge.rollouts.batch import Batch, BatchBuilder
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import NOT_TAKEN, SlotShape, TrajectorySlots, end_rollout, length
from sampleforge.spec import ArraySpec, EnvSpec
from sampleforge.topologies.config import ApexConfig, AppoConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.split import IndependentStepping
from tests.support import stack_checking
from tests.support.apex_graphs import (
    CheckingLearnerMaker,
    apex_config,
    build_apex,
    learner_worker,
    limiter_of,
    with_learner,
)
from tests.support.envs import CodeEnv, code_reward
from tests.support.graphs import build, copy_of, resolved, rollouts_of, spec_of
from tests.support.histories import check_history, histories
from tests.support.literal_ppo import gradients_of
from tests.support.pairings import network_maker, plan_of, seeded_model

ROWS, ROLLOUT = 5, 8
UNEVEN = "tests.support.envs:UnevenEnv"
MODEL = ModelConfig(
    hidden_sizes=(8,), core_size=8, separate_critic=False, normalise_observations=False
)


def config(**kwargs: Any) -> AppoConfig:
    defaults: dict[str, Any] = {
        "env": UNEVEN,
        "device": "cpu",
        "num_workers": 1,
        "num_envs_per_worker": ROWS,
        "rollout": ROLLOUT,
        "variable_experience": True,
        "normalise_returns": False,
        "model": MODEL,
        "debug": True,
        "seed": 1,
    }
    chosen = AppoConfig(**{**defaults, **kwargs})
    return resolved(chosen, spec_of(chosen))


def cutting(graph: Graph, late: float = 0.5) -> Graph:
    """The graph, whose rollouts are cut when others have taken ``late`` as many steps as they have:
    with 0.5, before most of them are complete."""
    for node in graph.nodes:
        if isinstance(node.worker, ActorWorker):
            assert isinstance(node.worker._stepping, IndependentStepping)
            node.worker._stepping._late = late
    return graph


def lengths(batches: list[Batch]) -> list[int]:
    return [int((batch.version != NOT_TAKEN).sum(0).max()) for batch in batches]


@pytest.mark.long
@pytest.mark.parametrize(
    ("inference", "splits", "core"),
    [("inline", None, "none"), ("worker", None, "gru"), ("inline", 3, "gru")],
)
def test_every_step_is_there_once_and_from_its_own_env(
    inference: Any, splits: int | None, core: Any
) -> None:
    """Also where rollouts are cut during a step; and a recurrent state goes on with its row: one
    pass over a rollout from its stored state gives the values that were acted on."""
    chosen = config(
        inference=inference,
        num_splits=splits,
        num_envs_per_worker=6 if splits else ROWS,
        model=dataclasses.replace(MODEL, core=core),
    )
    graph = cutting(build(chosen)[0])
    batches: list[Batch] = []
    with closing(rollouts_of(graph, 2_000)) as rollouts:  # where they are cut is a matter of time
        for batch in rollouts:
            batches.append(batch)
            seen = set(lengths(batches))
            if len(batches) >= 120 and ROLLOUT in seen and len(seen) > 3:
                break
    found = histories(batches)
    assert len(found) == (6 if splits else ROWS)
    for env, steps in found.items():
        check_history(env, steps)
    assert max(lengths(batches)) == ROLLOUT and len(set(lengths(batches))) > 3
    assert {batch.steps[1] for batch in batches} == {2 if splits else 1}
    model = seeded_model(chosen.model, spec_of(chosen), seed=1)
    for batch in batches:
        with torch.no_grad():
            values = model(batch.obs, batch.state, batch.is_first).values
        torch.testing.assert_close(batch.value, values[:-1], atol=1e-4, rtol=1e-4)


@pytest.mark.long
def test_each_step_has_the_version_and_the_log_prob_of_the_weights_that_decided_it() -> None:
    """Also one that went on through the end of its rollout; weights change all the time."""
    chosen = config()
    graph = cutting(build(chosen)[0])
    weights: dict[int, dict[str, torch.Tensor]] = {}
    model = seeded_model(chosen.model, spec_of(chosen), seed=1)
    older = checked = 0
    for batch in rollouts_of(graph, 100):
        version = graph.groups[0].weights.read(model.state_dict())[1]
        weights[version] = {n: t.clone() for n, t in model.state_dict().items()}
        steps, _ = batch.steps
        for then in batch.version.unique().tolist():
            model.load_state_dict(weights[then])
            with torch.no_grad():
                output = model(batch.obs, batch.state, batch.is_first)
                obs = {n: leaf[:steps] for n, leaf in batch.obs.items()}
                expected = model.distribution(output.parameters[:steps], obs)
            same = batch.version == then
            log_prob = expected.log_prob(batch.actions)[same]
            torch.testing.assert_close(batch.log_prob[same], log_prob, atol=1e-5, rtol=0)
            checked += int(same.sum())
        assert (batch.version[1:] >= batch.version[:-1]).all()
        older += int(steps > 1 and batch.version[0, 0] < batch.version[1, 0] - 1)
        changed = {
            n: t + 0.1 * torch.randn(t.shape) if t.is_floating_point() else t
            for n, t in weights[version].items()
        }
        graph.groups[0].weights.publish(changed, version + 1)
    assert checked > 300 and older > 3


class OneSlowEnv(CodeEnv):
    """CodeEnv: a step of the first row that steps lasts as long as 150 steps of the others."""

    slow: Any = None
    steps_of_others = 0
    last_step = 0.0

    def step(self, action: Any) -> Any:
        cls = OneSlowEnv
        cls.slow = cls.slow or self
        if cls.slow is self:
            target, cls.last_step = cls.steps_of_others + 150, monotonic()
            while cls.steps_of_others < target and monotonic() < cls.last_step + 0.5:
                sleep(0.001)
        else:
            sleep(0.0005)
            cls.steps_of_others += 1
            cls.last_step = monotonic()
        return super().step(action)


@pytest.mark.long
def test_a_slow_row_is_cut_and_holds_no_batch() -> None:
    """The slow row hands over what it has; the others' rollouts are whole and do not wait."""
    chosen = config(env=f"{__name__}:OneSlowEnv")
    OneSlowEnv.slow = None
    sampled = list(rollouts_of(build(chosen)[0], 250))
    by_env: dict[int, list[int]] = {}
    for batch, steps in zip(sampled, lengths(sampled), strict=True):
        by_env.setdefault(int(batch.obs["obs"][0, 0, 0]), []).append(steps)
    for env, history in histories(sampled).items():
        check_history(env, history)
    slow = min(by_env.values(), key=len)
    assert 2 <= len(slow) < 30 and max(slow) <= 2, "cut after a step or two"
    fast = [steps for found in by_env.values() if found is not slow for steps in found]
    assert len(by_env) == ROWS and np.mean(fast) > 0.9 * ROLLOUT


@pytest.mark.long
@pytest.mark.parametrize("advantage", ["gae", "vtrace"])
def test_rows_of_different_lengths_are_learned_from_like_batches_of_their_own(
    advantage: Any,
) -> None:
    """The loss of a batch of cut and whole rollouts is the mean of the losses of each alone, where
    a cut one ends: each is bootstrapped from the observation at its own end. Rewards, which are
    codes of up to 1e5, are scaled to 1, so that rounding is far below the tolerance."""
    chosen = config(advantage=advantage, normalise_advantages=False, reward_scale=1e-5)
    graph = cutting(build(chosen)[0], late=inf)
    exchange = graph.groups[0].exchange
    assert isinstance(exchange, SlotExchange)
    whole_rollouts = list(rollouts_of(graph, 12))
    alone = [cut(batch, 1 + 3 * i % ROLLOUT) for i, batch in enumerate(whole_rollouts)]
    assert len(set(lengths(alone))) == ROLLOUT
    model = seeded_model(chosen.model, spec_of(chosen), seed=2)
    together = batch_of(exchange.slots, alone, model)
    loss = PpoLoss(chosen, chosen.gamma)

    def gradient(batch: Batch) -> tuple[torch.Tensor, float]:
        prepared = loss.prepare(model, experience_of(batch, chosen, 0))
        found, metrics, rows = gradients_of(loss, model, prepared)
        return torch.cat([metrics["loss"].float()[None], found]), rows

    whole, rows = gradient(together)
    parts = [gradient(batch) for batch in alone]
    assert rows == sum(count for _, count in parts) > 30
    mean = sum((part * count for part, count in parts), torch.zeros(1)) / rows
    torch.testing.assert_close(whole, mean, atol=1e-5, rtol=1e-4)


def cut(batch: Batch, steps: int) -> Batch:
    """The first steps of a rollout, as a batch of its own."""
    columns: dict[str, Any] = {
        name: getattr(batch, name)[:steps]
        for name in ("version", "reward", "terminated", "truncated", "valid")
    }
    return dataclasses.replace(
        batch,
        obs={n: leaf[: steps + 1] for n, leaf in batch.obs.items()},
        is_first=batch.is_first[: steps + 1],
        actions={n: leaf[:steps] for n, leaf in batch.actions.items()},
        acted={n: column[:steps] for n, column in batch.acted.items()},
        **columns,
    )


def batch_of(slots: TrajectorySlots, rollouts: list[Batch], model: Any) -> Batch:
    """One batch of rollouts, each in a slot as its actor left it: padded to its end, with the value
    of its last observation."""
    builder = BatchBuilder(slots, len(rollouts))
    for batch in rollouts:
        steps = batch.steps[0]
        columns = {
            "first": batch.is_first,
            **{f"obs/{n}": leaf for n, leaf in batch.obs.items()},
            **{f"action/{n}": leaf for n, leaf in batch.actions.items()},
            **{n: getattr(batch, n) for n in ("log_prob", "value", "version", "reward")},
            **{n: getattr(batch, n) for n in ("terminated", "truncated", "valid")},
        }
        for name, column in columns.items():
            slots.arrays[name][0, : len(column)] = column.numpy()
        slots.state[0] = batch.state.numpy()
        if steps < ROLLOUT:
            last = {n: leaf[-1] for n, leaf in batch.obs.items()}
            with torch.no_grad():
                value = model.step(last, batch.state, batch.is_first[-1]).values
            slots.arrays["value"][0, steps] = value.numpy()
            slots.arrays["log_prob"][0, steps] = slots.arrays["action/action"][0, steps] = 0
            end_rollout(slots, 0, steps)
        builder.add(0)
    return copy_of(builder.take())


@pytest.mark.long
def test_a_recording_of_cut_rollouts_has_whole_episodes(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    chosen = config(record=str(tmp_path / "data"))
    sampled = list(rollouts_of(cutting(build(chosen)[0]), 80))
    assert len(set(lengths(sampled))) > 3
    episodes = list(open_dataset(tmp_path / "data", spec_of(chosen)).episodes())
    assert len(episodes) > 10
    for episode in episodes:
        obs = episode.observations["obs"]
        env, number, *_ = obs[0]
        assert (obs[:, :2] == [env, number]).all(), "an episode is of one env"
        assert obs[:, 2].tolist() == list(range(len(obs)))
        assert obs[1:, 3].tolist() == episode.actions["action"].tolist()
        rewards = [code_reward(env, number, step) for step in range(1, len(obs))]
        assert episode.rewards.tolist() == rewards


# ---- Ape-X ----


def replayed(graph: Graph, checked: int) -> list[Any]:
    """Step all workers until the learner has checked so many transitions; return what the actors
    have handed over, in order, each like a batch."""
    exchange = graph.groups[0].exchange
    assert isinstance(exchange, ReplayExchange)
    slots, found, hand_over = exchange.slots, list[Any](), exchange.hand_over

    def kept(actor: int, slot: int) -> None:
        found.append(rollout_in(slots, slot))
        hand_over(actor, slot)

    exchange.hand_over = kept  # type: ignore[method-assign]
    workers = [node.worker for node in graph.nodes]
    deadline = monotonic() + 60
    for worker in workers:
        worker.start()
    try:
        while learner_worker(graph)._learner.checked < checked:
            if not any([worker.step() for worker in workers]):
                workers[0].wait(0.005)
            assert monotonic() < deadline
    finally:
        for worker in workers:
            worker.close()
    return found


def rollout_in(slots: TrajectorySlots, slot: int) -> Any:
    """Copies of the rollout in a slot; of stacks the newest frames."""
    steps = length(slots, slot)
    obs = {n: torch.from_numpy(leaf[slot, : steps + 1].copy()) for n, leaf in slots.obs.items()}
    for name, stacks in slots.stacks.items():
        frames = stacks.newest(slot, 0, steps + 1)
        obs[name] = torch.from_numpy(frames.copy())

    def column(array: Any, end: int = steps) -> torch.Tensor:
        return torch.from_numpy(array[slot, :end].copy())

    return SimpleNamespace(
        obs=obs,
        is_first=column(slots.first, steps + 1),
        actions={"action": column(slots.actions["action"])},
        steps=steps,
        **{n: column(getattr(slots, n)) for n in ("reward", "terminated", "truncated", "valid")},
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("inference", "stacked", "compression"),
    [("inline", False, "none"), ("inline", True, "lz4"), ("worker", True, "none")],
)
def test_every_transition_of_a_replay_comes_from_its_place(
    inference: Any, stacked: bool, compression: Any
) -> None:
    """n-step windows too, in rollouts that are cut at any step; and none is lost or twice there."""
    if compression != "none":
        pytest.importorskip("lz4")
    chosen = apex_config(
        env="tests.support.stacked_envs:stacked_uneven" if stacked else UNEVEN,
        num_workers=1,
        num_splits=None,
        variable_experience=True,
        inference=inference,
        replay_compression=compression,
        replay_compression_ratio=1.0,
    )
    graph, plan = stack_checking.checking_graph(chosen) if stacked else checking_graph(chosen)
    rollouts = replayed(cutting(graph), 1500)
    for env, steps in histories(rollouts).items():
        check_history(env, steps)
    assert len({rollout.steps for rollout in rollouts}) > 3
    counters = limiter_of(graph).replay_counters
    assert counters.inserted.sum() > 1.5 * plan.capacity, "the storage went round"
    taken = sum(int(rollout.valid.sum()) for rollout in rollouts)
    assert taken - plan.leases * plan.rollout <= counters.inserted.sum() <= taken


def checking_graph(chosen: ApexConfig) -> Any:
    graph, plan = build_apex(chosen)
    spec = spec_of(chosen)
    maker = CheckingLearnerMaker(network_maker(chosen, spec, 0), resolve_defaults(chosen, spec))
    return with_learner(graph, maker), plan


@pytest.mark.parametrize("padding", ["zero", "reset"])
def test_ending_a_rollout_early_keeps_its_stacks(padding: Any) -> None:
    leaf = ArraySpec((3, 2), "uint8", stack=padding)
    spec = EnvSpec("fake", {"obs": leaf}, stack_checking.ACTIONS)
    slots = TrajectorySlots(2, SlotShape(6, 2, spec, 0, single_frames=True))
    random, column = np.random.default_rng(0), slots.stacks["obs"]
    slots.frame_buffer[:] = [1, 0]
    for slot in (0, 1):
        column.begin(slot, random.integers(1, 99, (2, 3, 2), np.uint8))
        for t in range(1, 7):
            column.put(slot, t, random.integers(1, 99, (2, 3, 2), np.uint8))
    slots.first[0] = [[True, False]] + 3 * [[False, False]] + 3 * [[False, True]]
    other = column.newest(1, 0, 7).copy()
    before = [column.read_rows(np.array([0]), np.array([t])).clone() for t in range(5)]
    end_rollout(slots, 0, 4)
    for t, stacks in enumerate(before):
        assert torch.equal(column.read_rows(np.array([0]), np.array([t])), stacks)
    assert (column.newest(0, 4, 7) == column.newest(0, 4, 5)).all()
    assert (column.newest(1, 0, 7) == other).all(), "the frames of another slot are not touched"


# ---- settings ----


def test_each_row_is_a_split_and_sampling_goes_on_while_the_learner_trains() -> None:
    plan = plan_of(config(), spec_of(config()), "cpu")
    assert (plan.num_splits, plan.rows, plan.synchronous) == (ROWS, 1, False)
    assert not plan.actor_cores and any("independently" in reason for reason in plan.reasons)
    given = config(num_splits=2, num_envs_per_worker=6)
    assert plan_of(given, spec_of(given), "cpu").rows == 3
    fixed = config(variable_experience=False)
    assert plan_of(fixed, spec_of(fixed), "cpu").synchronous


@pytest.mark.parametrize(
    ("make", "given", "reason"),
    [
        (AppoConfig, {"serial": True}, "the order of the steps varies"),
        (ApexConfig, {"serial": True}, "the order of the steps varies"),
        (AppoConfig, {"num_policies": 2}, "would then be one of two policies"),
        (ApexConfig, {"num_policies": 2}, "would then be one of two policies"),
        (AppoConfig, {"num_learners": 2}, "differ in length"),
        (AppoConfig, {"async_rl": False}, "use ddppo --variable-experience"),
        (ApexConfig, {"model": ModelConfig(core="gru")}, "whole sequences are drawn"),
    ],
)
def test_settings_that_variable_experience_excludes_are_refused(
    make: Any, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"--variable-experience.*{reason}"):
        make(variable_experience=True, **given)


def test_an_environment_with_several_agents_is_refused() -> None:
    spec = dataclasses.replace(spec_of(config()), env_id="Two", agents=("left", "right"))
    with pytest.raises(ConfigError, match="Two has 2 agents, which step together"):
        plan_of(config(), spec, "cpu")
