"""Variable experience rollout: each env row steps as soon as it is ready, every step is there once,
an env row with more steps counts for no more, and ranks stay in step."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.averaging import DataParallel
from sampleforge.algorithms.experience import (
    env_share,
    experience_of,
    minibatch_indices,
    minibatch_positions,
)
from sampleforge.algorithms.ppo.loss import PpoLoss
from sampleforge.api import train
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.peers.group import RankGroup
from sampleforge.rollouts.batch import Batch, BatchBuilder
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import NOT_TAKEN, PER_ROLLOUT
from sampleforge.run.callback import Callback
from sampleforge.run.reports.metrics import read_metrics
from sampleforge.topologies.config import DdppoConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.pairings import ppo_defaults
from sampleforge.topologies.sampler_plan import Plan
from sampleforge.topologies.starts import ResumePoint
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.hooks import LearnerUpdate
from sampleforge.workers.rank import RankWorker
from sampleforge.workers.split import SteppingInRounds
from tests.support.envs import code_reward
from tests.support.graphs import copy_of, one_policy, resolved, spec_of
from tests.support.literal_ppo import gradients_of, parts_of
from tests.support.pairings import plan_of, seeded_model, wire_of
from tests.support.rank_learners import learner_of
from tests.support.rank_runs import rank_process, training, wait_for_restarts, wait_for_updates
from tests.support.rank_threads import on_ranks

ROWS, ROLLOUT = 5, 8
MODEL = ModelConfig(hidden_sizes=(8,), core_size=8, separate_critic=False)


def config(core: Any = "none", **kwargs: Any) -> DdppoConfig:
    defaults: dict[str, Any] = {
        "env": "tests.support.envs:UnevenEnv",
        "device": "cpu",
        "num_ranks": 1,
        "num_envs_per_worker": ROWS,
        "rollout": ROLLOUT,
        "variable_experience": True,
        "num_epochs": 2,
        "learning_rate": 1e-2,
        "quiet": True,
        "debug": True,
        "seed": 1,
        "model": dataclasses.replace(MODEL, core=core),
    }
    chosen = DdppoConfig(**{**defaults, **kwargs})
    return resolved(chosen, spec_of(chosen))


def planned(chosen: DdppoConfig) -> Plan:
    return plan_of(chosen, spec_of(chosen), "cpu")


def wired(chosen: DdppoConfig) -> tuple[Graph, ActorWorker, SlotExchange]:
    """One rank, nothing started."""
    graph = wire_of(chosen, planned(chosen), spec_of(chosen), *one_policy(ResumePoint(1)))
    rank = graph.nodes[0].worker
    assert isinstance(rank, RankWorker)
    assert isinstance(graph.groups[0].exchange, SlotExchange)
    return graph, rank._actor, graph.groups[0].exchange


def rounds(chosen: DdppoConfig, count: int, between: Any = lambda graph: None) -> Iterator[Batch]:
    """The batches of so many rounds; ``between`` two of them something may happen to the graph."""
    graph, actor, exchange = wired(chosen)
    actor.start()
    builder = BatchBuilder(exchange.slots, exchange.slots.count)
    try:
        for _ in range(count):
            held, complete = [], False
            while not complete:
                if not actor.step():
                    actor.wait(0.05)
                while not complete and (slot := exchange.take_ready()) is not None:
                    held.append(slot)
                    complete = builder.add(slot)
            assert actor.idle and exchange.take_ready() is None
            batch = copy_of(builder.take())
            between(graph)
            for slot in held:
                exchange.give_back(slot)
            yield batch
    finally:
        actor.close()


def taken(batch: Batch) -> torch.Tensor:
    """How many steps each column has."""
    steps = batch.version != NOT_TAKEN
    assert not (~steps[:-1] & steps[1:]).any(), "a column has steps after its end"
    return steps.sum(0)


def moved(graph: Graph) -> None:
    """An update: other weights, and a newer version."""
    state = seeded_model(config().model, spec_of(config()), seed=1).state_dict()
    version = graph.groups[0].weights.read(state)[1]
    noise = {
        n: t + 0.3 * torch.randn(t.shape) if t.is_floating_point() else t for n, t in state.items()
    }
    graph.groups[0].weights.publish(noise, version + 1)


def streams(batches: list[Batch]) -> dict[int, list[tuple[Batch, int, int]]]:
    """Of each env row: (batch, column, steps), in order."""
    found: dict[int, list[tuple[Batch, int, int]]] = {}
    for batch in batches:
        assert batch.env_row is not None
        for column, (row, steps) in enumerate(
            zip(batch.env_row.tolist(), taken(batch).tolist(), strict=True)
        ):
            found.setdefault(row, []).append((batch, column, steps))
    return found


@pytest.mark.long
@pytest.mark.parametrize("splits", [None, 3], ids=["single rows", "two rows each"])
def test_every_step_is_there_once_and_from_its_own_env(splits: int | None) -> None:
    """The observation after a step names its env, episode, step and action."""
    rows = 6 if splits else ROWS
    chosen = config(num_envs_per_worker=rows, num_splits=splits)
    batches = list(rounds(chosen, 25, moved))
    assert [int(taken(batch).sum()) for batch in batches] == [rows * ROLLOUT] * 25
    found = streams(batches)
    assert sorted(found) == list(range(rows))
    envs, given, carried = set(), set(), 0
    for stream in found.values():
        last, env = None, stream[0][0].obs["obs"][0, stream[0][1], 0].item()
        envs.add(env)
        for batch, column, steps in stream:
            obs, action = batch.obs["obs"][:, column], batch.actions["action"][:, column]
            assert last is None or torch.equal(obs[0], last)
            assert (obs[:, 0] == env).all()
            for t in range(steps):
                _, episode, step, done = obs[t + 1].tolist()
                if batch.valid[t, column]:
                    assert done == action[t] and step == obs[t, 2] + 1
                    assert batch.reward[t, column] == code_reward(env, episode, step)
                else:
                    assert step == 0 and episode == obs[t, 1] + 1
            carried += int(steps > 0 and batch.version[0, column] < batch.version.max())
            last = obs[steps]
            given.add(steps)
    assert len(envs) == rows
    assert len(given) > 4, "rows have given different numbers of steps"
    assert carried > 10, "steps that went on through an update count in the next round"


def test_a_fast_row_also_samples_in_short_rounds() -> None:
    """None waits for others at the beginning of a round, which is over with its first step."""

    def count_backwards(graph: Graph) -> None:
        rank = graph.nodes[0].worker
        assert isinstance(rank, RankWorker)
        rank._actor._stepping._ends_early = lambda taken: taken > 0
        for split in rank._actor._splits:
            split.stream.rollouts = 100 - split.index

    for batch in rounds(config(), 8, count_backwards):
        assert batch.env_row is not None
        assert batch.env_row.unique().tolist() == list(range(ROWS))


def log_probs(state: dict[str, torch.Tensor], core: str, batch: Batch) -> torch.Tensor:
    """Of the batch's actions [T, B], by the weights ``state``."""
    model = seeded_model(config(core).model, spec_of(config()), seed=1)
    model.load_state_dict(state)
    model.eval()
    with torch.no_grad():
        output = model(batch.obs, batch.state, batch.is_first)
        parameters = output.parameters[: batch.steps[0]]
        return model.distribution(parameters, batch.obs).log_prob(batch.actions)


@pytest.mark.long
@pytest.mark.parametrize("core", ["none", "gru"])
def test_the_ratio_is_one_under_the_weights_that_a_step_was_decided_with(core: str) -> None:
    """That is, the newest; but for steps that were under way, which begin a rollout."""
    weights: dict[int, dict[str, torch.Tensor]] = {}
    model = seeded_model(config(core).model, spec_of(config()), seed=1)

    def remember(graph: Graph) -> None:
        version = graph.groups[0].weights.read(model.state_dict())[1]
        weights[version] = {n: t.clone() for n, t in model.state_dict().items()}
        graph.groups[0].weights.publish(
            {
                n: t + 0.3 * torch.randn(t.shape) if t.is_floating_point() else t
                for n, t in weights[version].items()
            },
            version + 1,
        )

    older = 0
    for number, batch in enumerate(rounds(config(core), 15, remember)):
        steps, newest = batch.version != NOT_TAKEN, batch.version == number
        ratio = (log_probs(weights[number], core, batch) - batch.log_prob)[newest].exp()
        torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-5, rtol=0)
        under_way = steps & ~newest
        assert not under_way[1:].any()
        for column in under_way[0].nonzero().flatten().tolist():
            then = log_probs(weights[int(batch.version[0, column])], core, batch)
            assert abs(then[0, column] - batch.log_prob[0, column]) < 1e-5
            older += 1
    assert older > 5


class Endings:
    """Says at random, but repeatably, that a round ends."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def __call__(self, taken: int) -> bool:
        return taken >= ROWS and bool(self.random.random() < 0.03)


@pytest.mark.long
@pytest.mark.parametrize("whole_rows", [False, True])
def test_every_batch_makes_the_same_number_of_minibatches(
    whole_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut short or not, however many slots it has; and each step that was taken is in one."""
    real = SteppingInRounds.start

    def start(stepping: SteppingInRounds, splits: Any) -> None:
        stepping._ends_early = Endings()
        real(stepping, splits)

    monkeypatch.setattr(SteppingInRounds, "start", start)
    chosen, generator, sizes = config(), torch.Generator().manual_seed(1), set()
    for batch in rounds(chosen, 20):
        marked = experience_of(batch, chosen, 0)
        drawn = minibatch_positions(
            marked, ROLLOUT, whole_rows=whole_rows, generator=generator, due=ROWS * ROLLOUT
        )
        found = parts_of(marked, drawn, whole_rows=whole_rows)
        assert len(found) == ROWS
        each = [int((part.share > 0).sum()) for part in found if part.share is not None]
        assert sum(each) == int(taken(batch).sum())
        assert whole_rows or max(each) - min(each) <= 1
        sizes.add(sum(each))
    assert len(sizes) > 3 and max(sizes) <= ROWS * ROLLOUT


def test_an_env_counts_for_at_most_an_equal_share() -> None:
    """T = 4. Env row 0 gave 6 steps in two columns, 1 gave 2, 2 none: 8 / 3 each."""
    steps = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0]]).bool()
    share = env_share(steps, torch.tensor([0, 0, 1, 2]))
    assert torch.equal(share > 0, steps)
    assert share[0].tolist() == pytest.approx([8 / 18, 8 / 18, 1.0, 0.0])
    assert share.sum(0).tolist() == pytest.approx([4 * 8 / 18, 2 * 8 / 18, 2.0, 0.0])
    generator = torch.Generator()
    positions = torch.cat(minibatch_indices(share > 0, 3, whole_rows=False, generator=generator))
    assert sorted(positions.tolist()) == steps.flatten().nonzero().flatten().tolist()
    complete = env_share(torch.ones(4, 3).bool(), torch.tensor([0, 0, 2]))  # row 1 gave none
    assert complete[0].tolist() == pytest.approx([4 / 8, 4 / 8, 1.0])
    few = minibatch_indices(share[:1, 3:] > 0, 3, whole_rows=False, generator=torch.Generator())
    assert len(few) == 3 and all(len(part) <= 1 for part in few)


def columns(batch: Batch, index: torch.Tensor, env_row: torch.Tensor) -> Batch:
    """Some columns, as if they were of these env rows."""

    def pick(name: str, column: Any) -> Any:
        if isinstance(column, dict):
            return {leaf: pick(leaf, x) for leaf, x in column.items()}
        if column is None:
            return None
        return column[index] if name in PER_ROLLOUT else column[:, index]

    chosen = {name: pick(name, column) for name, column in vars(batch).items()}
    return Batch(**{**chosen, "env_row": env_row})


def emptied(batch: Batch, column: int) -> Batch:
    """As if the env of the column had given nothing."""
    batch.version[:, column] = NOT_TAKEN
    batch.valid[:, column] = False
    return batch


@pytest.mark.parametrize("advantage", ["gae", "vtrace"])
def test_duplicated_steps_of_an_env_count_as_much_as_single_ones(advantage: str) -> None:
    """Loss, gradient and metrics, with normalised advantages. A third env gave nothing."""
    chosen = config(advantage=advantage)
    batches = ((batch, (taken(batch) == ROLLOUT).nonzero()) for batch in rounds(chosen, 50))
    batch, full = next((batch, full[:2, 0]) for batch, full in batches if len(full) >= 2)
    once = emptied(columns(batch, full[[0, 1, 0]], torch.tensor([0, 1, 2])), 2)
    twice = emptied(columns(batch, full[[0, 1, 0, 0]], torch.tensor([0, 1, 0, 2])), 3)
    found = []
    for given in (once, twice):
        model = seeded_model(chosen.model, spec_of(chosen), seed=2)
        loss = PpoLoss(chosen, chosen.gamma)
        prepared = loss.prepare(model, experience_of(given, chosen, 0))
        gradient, metrics, _ = gradients_of(loss, model, prepared)
        figures = [metric.double().flatten() for metric in metrics.values()]
        found.append(torch.cat((gradient.double(), *figures)))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("advantage", "core"), [("gae", "none"), ("vtrace", "gru")])
def test_two_ranks_learn_what_one_with_all_their_env_rows_learns(advantage: str, core: str) -> None:
    whole: dict[str, Any] = {
        "normalise_returns": True,
        "minibatch_size": None,
    }  # whatever number of steps it has
    chosen = dataclasses.replace(config(core, advantage=advantage, learning_rate=1e-3), **whole)
    batches = list(rounds(chosen, 6))
    alone = learner_of(chosen)  # type: ignore[arg-type]
    for batch in batches:
        alone.update(batch, 0.0)

    def of_rank(rank: int, batch: Batch) -> Batch:
        assert batch.env_row is not None
        index = ((batch.env_row < 2) == (rank == 0)).nonzero().flatten()
        return columns(batch, index, batch.env_row[index] - 2 * rank)

    def work(group: RankGroup) -> dict[str, torch.Tensor]:
        learner = learner_of(chosen, DataParallel(group))  # type: ignore[arg-type]
        for batch in batches:
            learner.update(of_rank(group.rank, batch), 0.0)
        return learner.state()[0]

    expected = alone.state()[0]
    del expected["rng/minibatches"]
    for found in on_ranks(2, work):
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-5, msg=name)


def test_invalid_settings_of_variable_experience_are_refused() -> None:
    with pytest.raises(ConfigError, match="with variable experience the order of the steps varies"):
        config(serial=True)
    with pytest.raises(ConfigError, match=r"7 does not divide the batch of 40 .* nearest: 8"):
        planned(config(minibatch_size=7))
    with pytest.raises(ConfigError, match=r"25 gradient steps \(5 epochs x 5 .*-lag 50"):
        planned(config(minibatch_size=ROLLOUT, num_epochs=5, max_policy_lag=24))
    plan = planned(config(num_envs_per_worker=None))
    envs = ppo_defaults.ROWS
    assert (plan.num_splits, plan.rows, plan.slots) == (envs, 1, 2 * envs)


class Steps(Callback):
    """Writes the version after each update of rank 0, and its minibatches without a step, to a
    file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_learner_update(self, update: LearnerUpdate) -> None:
        if update.learner == 0:
            with self.path.open("a") as file:
                file.write(f"{update.version} {update.metrics['empty_minibatches']:.0f}\n")


@pytest.mark.multiprocess(timeout=120)
def test_ranks_of_uneven_envs_train_with_equal_weights(tmp_path: Path) -> None:
    """--debug compares checksums after every update and fills freed slots with NaN."""
    chosen = config(
        "gru",
        num_ranks=3,
        num_epochs=2,
        minibatch_size=ROLLOUT,
        train_for_env_steps=1500,
        report_interval=1,
        run_dir=str(tmp_path / "run"),
    )
    summary = train(chosen, [Steps(tmp_path / "steps")]).summary
    assert summary["status"] == "finished" and summary["env_steps"] >= 1500
    before = 0
    for line in (tmp_path / "steps").read_text().splitlines():
        version, empty = map(int, line.split())
        assert version - before + empty == 2 * ROWS, "each minibatch makes a step if it has a row"
        before = version
    assert summary["updates"] == before > 0
    reports = read_metrics(tmp_path / "run" / "metrics.jsonl")
    last = [report for report in reports if "policy_lag_mean" in report][-1]
    assert last["skipped_steps"] == 0
    assert 0 < last["policy_lag_mean"] < 2 * ROWS, "only steps that were under way are older"


@pytest.mark.multiprocess(timeout=120)
def test_a_killed_rank_is_replaced(start_cli: Any, tmp_path: Path) -> None:
    """And all go on: --debug compares their weights after every update."""
    run = training(start_cli, tmp_path, "--variable-experience")
    os.kill(rank_process(run.pid, 1), signal.SIGKILL)
    wait_for_restarts(run, tmp_path, 1)
    wait_for_updates(run, tmp_path, 10)
    run.terminate()
    _, shown = run.communicate(timeout=20)
    assert run.returncode == 143 and "it is restarted (1 of 3 times)" in shown


@pytest.mark.multiprocess(timeout=120)
def test_a_row_that_hangs_is_noticed_though_the_others_go_on(run_cli: Any, tmp_path: Path) -> None:
    flags = (
        "train ddppo --env tests.support.envs:HangingEnv --num-ranks 1 --device cpu "
        "--env-kwargs where=step after=30 alone=True --env-timeout 8 --max-rank-restarts 0 "
        "--num-envs-per-worker 3 --rollout 8 --variable-experience --run-dir run"
    )
    done = run_cli(*flags.split())
    assert done.returncode == 1
    assert "rank 0 has been in one step for" in done.stderr, done.stderr
    assert "in hang" in done.stderr, done.stderr
