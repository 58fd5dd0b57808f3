"""Rollouts of other lengths than were asked for: whole, continued where they ended, and worth what
they are."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.averaging import DataParallel
from sampleforge.algorithms.experience import Experience, experience_of, minibatch_positions
from sampleforge.algorithms.ppo.loss import PpoLoss
from sampleforge.algorithms.return_scale import sampled_returns
from sampleforge.peers.group import RankGroup
from sampleforge.rollouts.batch import Batch, BatchBuilder
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import NOT_TAKEN, end_rollout
from sampleforge.runners.serial import SerialRunner
from sampleforge.topologies.config import AppoConfig
from sampleforge.workers.actor import ActorWorker
from tests.support import rank_learners
from tests.support.graphs import build, copy_of, spec_of
from tests.support.literal_ppo import gradients_of, parts_of
from tests.support.pairings import seeded_model
from tests.support.rank_threads import on_ranks
from tests.support.short_rollouts import ROLLOUT, config


class Endings:
    """Says at random, but repeatably, that a rollout ends."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.ended = 0

    def __call__(self, t: int) -> bool:
        ends = t >= 2 and bool(self.random.random() < 0.3)
        self.ended += ends
        return ends


def short_rollouts(chosen: AppoConfig, count: int, *, alone: bool = False) -> list[Batch]:
    """Each as if it lay beside a complete one, or ``alone``: a batch ends with its longest
    rollout."""
    graph, _ = build(chosen)
    actor = graph.nodes[0].worker
    assert isinstance(actor, ActorWorker)
    actor._stepping._ends_early = Endings()
    actor.start()
    exchange = graph.groups[0].exchange
    assert isinstance(exchange, SlotExchange)
    builder, found = BatchBuilder(exchange.slots, 1), list[Batch]()
    try:
        while len(found) < count:
            actor.step()
            while (slot := exchange.take_ready()) is not None:
                builder.add(slot)
                builder._longest = builder._longest if alone else ROLLOUT
                found.append(copy_of(builder.take()))
                exchange.give_back(slot)
    finally:
        actor.close()
    return found


def taken(batch: Batch) -> int:
    """How many steps a rollout has."""
    steps = (batch.version != NOT_TAKEN).sum(0)
    assert (steps == steps[0]).all()
    return int(steps[0])


def test_every_step_is_there_once_and_the_next_rollout_goes_on() -> None:
    batches = short_rollouts(config(), 60)
    lengths = [taken(b) for b in batches]
    assert min(lengths) == 2 and max(lengths) == ROLLOUT and len(set(lengths)) > 4
    last: dict[int, torch.Tensor] = {}
    for batch, steps in zip(batches, lengths, strict=True):
        obs = batch.obs["obs"]
        assert not batch.valid[steps:].any() and not batch.reward[steps:].any()
        assert (obs[steps:] == obs[steps]).all()
        assert all(torch.isfinite(x).all() for x in (obs, batch.value, batch.log_prob))
        for row, env in enumerate(obs[0, :, 0].long().tolist()):
            if env in last:
                assert torch.equal(last[env], obs[0, row])
            last[env] = obs[steps, row]


def test_a_batch_ends_with_its_longest_rollout() -> None:
    """Two slots of other lengths: nothing after them is in the batch, and the next one is whole."""
    graph, _ = build(config())
    slots = graph.groups[0].exchange.slots
    for column in slots.columns().values():
        column.copy_(torch.randint(0, 2, column.shape))
    whole = BatchBuilder(slots, 2)
    cut = BatchBuilder(slots, 2)
    for slot in (0, 1):
        whole.add(slot)
    complete = copy_of(whole.take())
    assert complete.steps == (ROLLOUT, 6)
    end_rollout(slots, 0, 3)
    end_rollout(slots, 1, 5)
    for slot in (0, 1):
        cut.add(slot)
    batch = cut.take()
    assert batch.steps == (5, 6) and len(batch.obs["obs"]) == len(batch.is_first) == 6
    taken = (batch.version != NOT_TAKEN)[:, [0, 3]].sum(0)
    assert taken.tolist() == [3, 5]
    for field in ("log_prob", "version", "is_first"):
        ours, theirs = getattr(batch, field), getattr(complete, field)
        assert torch.equal(ours[:3], theirs[:3]) and torch.equal(ours[:5, 3:], theirs[:5, 3:])
    assert torch.equal(batch.obs["obs"][:6, 3:], complete.obs["obs"][:6, 3:])
    assert torch.equal(batch.state, complete.state)
    slots.version[:2] = 1
    for slot in (0, 1):
        cut.add(slot)
    assert cut.take().steps == (ROLLOUT, 6)


def test_returns_of_a_short_batch_end_with_the_value_that_was_recorded() -> None:
    """Of the observation after its last step, as beside a complete rollout."""
    chosen, lengths = config(), set()
    for whole, alone in zip(
        short_rollouts(chosen, 20), short_rollouts(chosen, 20, alone=True), strict=True
    ):
        steps = taken(alone)
        lengths.add(steps)
        assert alone.steps[0] == steps and (alone.last_value is None) == (steps == ROLLOUT)
        expected = sampled_returns(experience_of(whole, chosen, 0), 0.9)
        found = sampled_returns(experience_of(alone, chosen, 0), 0.9, alone.last_value)
        assert torch.equal(found, expected[:steps])
    assert len(lengths) > 3


@pytest.mark.parametrize("whole_rows", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 6, ROLLOUT])
def test_short_batches_have_as_many_minibatches_as_nominal_ones(
    steps: int, whole_rows: bool
) -> None:
    """Of a batch that was to have 6 steps: every step is in one of the three, none is empty, and
    the generator has moved as far as any other rank's. (Of too few, some twice.)"""
    chosen = config()
    batch = next(b for b in short_rollouts(chosen, 20) if taken(b) == ROLLOUT)
    experience = experience_of(shortened(batch, steps), chosen, 0)
    generator = torch.Generator().manual_seed(1)

    def drawn(of: Experience, size: int, by: torch.Generator, rows: bool) -> list[Experience]:
        found = minibatch_positions(of, size, whole_rows=rows, generator=by, due=6 * 3)
        return parts_of(of, found, whole_rows=rows)

    parts = drawn(experience, 6, generator, whole_rows)
    assert len(parts) == 3 and all(part.reward.numel() == steps for part in parts)
    rewards = torch.cat([part.reward.flatten() for part in parts])
    assert torch.equal(rewards.sort().values, batch.reward[:steps].flatten().sort().values)
    other = torch.Generator().manual_seed(1)
    short = experience_of(shortened(batch, 2), chosen, 0)
    assert len(drawn(short, 6, other, whole_rows)) == 3
    assert torch.equal(generator.get_state(), other.get_state())
    many = drawn(short, 1, other, False)
    assert len(many) == 18 and all(part.reward.numel() == 1 for part in many)


def shortened(batch: Batch, steps: int) -> Batch:
    """A batch of the steps that were taken, and nothing else."""
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        column = getattr(batch, field.name)
        stop = steps + 1 if field.name in ("obs", "is_first") else steps
        if isinstance(column, dict):
            columns[field.name] = {name: leaf[:stop] for name, leaf in column.items()}
        else:
            timeless = column is None or field.name == "state"
            columns[field.name] = column if timeless else column[:stop]
    return Batch(**columns)


@pytest.mark.long
@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("advantage", ["gae", "vtrace"])
def test_a_short_rollout_has_the_gradient_of_its_steps_alone(advantage: str, core: str) -> None:
    """The loss, its gradient and the advantages are those of a batch that is only so long."""
    # Sampled values are 0 before the first update if returns are normalised, and this model's not.
    # CodeEnv's rewards are codes, whose squares would leave single precision no digits.
    more = {"normalise_returns": False, "reward_scale": 1e-4}
    chosen = config(core, advantage=advantage, **more)
    compared = 0
    for batch in short_rollouts(chosen, 20):
        steps, gradients = taken(batch), []
        if steps == ROLLOUT:
            continue
        for given in (batch, shortened(batch, steps)):
            model = seeded_model(chosen.model, spec_of(chosen), seed=1)
            loss = PpoLoss(chosen, chosen.gamma)
            experience = loss.prepare(model, experience_of(given, chosen, 0))
            gradients.append(gradients_of(loss, model, experience)[0])
        torch.testing.assert_close(gradients[0], gradients[1], atol=1e-4, rtol=1e-4)
        compared += 1
    assert compared > 5


@pytest.mark.long
@pytest.mark.parametrize("core", ["none", "gru"])
def test_learning_from_short_rollouts_stays_on_policy_and_counts_observations_once(
    core: str,
) -> None:
    """The ratio is 1: the recurrent state did not take the step that was only asked about."""
    graph, _ = build(config(core, learning_rate=1e-2))
    actor = graph.nodes[0].worker
    assert isinstance(actor, ActorWorker)
    actor._stepping._ends_early = endings = Endings()
    runner = SerialRunner(graph)
    runner.start()
    try:
        for _ in range(4):
            before = graph.groups[0].weights.published
            while graph.groups[0].weights.published == before:
                runner.poll(0)
            assert (
                runner.ask(graph.groups[0].learner, "metrics", None, 0)["ratio_deviation_first"]
                < 1e-5
            )
        model = seeded_model(config(core).model, spec_of(config()), seed=1)
        graph.groups[0].weights.read(model.state_dict())
        counters = graph.counters
        assert endings.ended > 4
        state = model.state_dict()
        seen = state[next(n for n in state if n.endswith("count"))]
        steps = counters.total("split_steps") * 3  # rows of a split
        assert (
            seen
            <= steps
            < graph.groups[0].exchange.slots.shape.env_steps * counters.total("rollouts")
        )
    finally:
        runner.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("advantage", "core"), [("gae", "none"), ("vtrace", "none"), ("vtrace", "gru")]
)
def test_ranks_with_rollouts_of_other_lengths_learn_what_one_with_all_of_them_learns(
    advantage: str, core: str
) -> None:
    """20 updates. The rows of one rank end after 3 to 7 steps, those of the other are complete; a
    third of them was due."""
    model = rank_learners.model_of(core)
    chosen = rank_learners.config(advantage=advantage, model=model)
    whole, cut, complete = [], [], []
    for number, batch in enumerate(rank_learners.batches(core)):
        batch, steps = copy_of(batch), 3 + number % 5
        batch.version[steps:, :4] = NOT_TAKEN
        for flags in (batch.valid, batch.terminated, batch.truncated):
            flags[steps:, :4] = False
        batch.obs["obs"][steps + 1 :, :4] = batch.obs["obs"][steps, :4]
        batch.is_first[steps + 1 :, :4] = batch.is_first[steps, :4]
        batch.reward[steps:, :4] = 0.0
        whole.append(batch)
        part = rank_learners.rows(batch, 0, 4)
        # The bootstrap of GAE is the learner's value after the batch's last step; before it, the
        # sampler's, which these old rollouts have of other weights.
        cut.append(shortened(part, steps) if advantage == "vtrace" else part)
        complete.append(rank_learners.rows(batch, 4, 8))
    state, _ = rank_learners.learned(rank_learners.learner_of(chosen), whole)

    def work(group: RankGroup) -> rank_learners.Learned:
        learner = rank_learners.learner_of(chosen, DataParallel(group), batch_size=4 * 5)
        return rank_learners.learned(learner, (cut, complete)[group.rank])

    found = on_ranks(2, work)
    assert torch.equal(*(tensors["rng/minibatches"] for tensors, _ in found))
    del state["rng/minibatches"]
    for tensors, _ in found:
        for name, expected in state.items():
            torch.testing.assert_close(tensors[name], expected, atol=1e-5, rtol=1e-5)
