"""N ranks with B rows each learn what one rank with N * B rows learns."""

from __future__ import annotations

import copy
import dataclasses
from itertools import pairwise

import pytest
import torch

from sampleforge.algorithms.averaging import BUCKET_BYTES, Averaging, DataParallel, GradientBuckets
from sampleforge.algorithms.experience import Experience, Minibatches, experience_of
from sampleforge.algorithms.flat_parameters import FlatParameters, flatten
from sampleforge.algorithms.losses import Loss, SumOfLosses
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.ops.running_stats import Gather
from sampleforge.peers.group import RankGroup
from sampleforge.rollouts.batch import Batch
from sampleforge.topologies.config import AppoConfig
from tests.support.graphs import rollouts
from tests.support.rank_learners import (
    Learned,
    batches,
    config,
    learned,
    learner_of,
    model_of,
    rows,
)
from tests.support.rank_threads import on_ranks

LEFT_TO_RANKS = ("own_trained_steps",)


def over_ranks(config: AppoConfig, shares: list[list[Batch]], way: str = "memory") -> list[Learned]:
    def work(group: RankGroup) -> Learned:
        return learned(learner_of(config, DataParallel(group)), shares[group.rank])

    return on_ranks(len(shares), work, way)


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {"advantage": "vtrace"},
        {"advantage": "gae", "lr_schedule": "kl_adaptive", "kl_coeff": 0.1},
        {"advantage": "gae", "core": "gru", "lr_schedule": "linear", "max_grad_norm": 0.5},
        {"advantage": "vtrace", "core": "lstm", "exploration": "symmetric_kl"},
        {"advantage": "gae", "rnd_coeff": 0.5},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
@pytest.mark.parametrize("cuts", [(0, 4, 8), (0, 1, 3, 8)], ids=["equal", "unequal"])
def test_n_ranks_learn_what_one_rank_with_all_their_rows_learns(
    cuts: tuple[int, ...], settings: dict[str, object]
) -> None:
    """Weights, optimiser, running statistics, learning rate and metrics: after 20 updates."""
    settings = dict(settings)
    core = settings.pop("core", "none")
    chosen = config(model=model_of(core), train_for_env_steps=1, **settings)
    whole = batches(str(core))
    shares = [[rows(b, i, j) for b in whole] for i, j in pairwise(cuts)]
    valid = [{int(part.valid.sum()) for part in parts} for parts in zip(*shares, strict=True)]
    assert any(len(counts) > 1 for counts in valid), "ranks must differ in rows that count"
    state, metrics = learned(learner_of(chosen), whole)
    del state["rng/minibatches"]  # a permutation of more rows takes more of it
    found = over_ranks(chosen, shares)
    for tensors, said in found:
        for name, expected in state.items():
            torch.testing.assert_close(
                tensors[name], expected, atol=1e-5, rtol=1e-5, msg=f"{name}: {{}}".format
            )
            assert torch.equal(tensors[name], found[0][0][name]), f"{name} differs between ranks"
        for name, value in metrics.items():
            if name not in LEFT_TO_RANKS:
                assert said[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    assert sum(said["own_trained_steps"] for _, said in found) == metrics["own_trained_steps"]
    normaliser = next(n for n in state if n.endswith("count"))
    assert state[normaliser] == sum(int(batch.valid.sum()) for batch in whole)


@pytest.mark.long
def test_ranks_learn_the_same_through_shared_memory_and_through_gloo() -> None:
    """But for the order of two ranks' sums, which is one for two."""
    chosen, shares = config(), [[rows(b, i, i + 4) for b in batches("none")] for i in (0, 4)]
    for (memory, _), (gloo, _) in zip(
        over_ranks(chosen, shares), over_ranks(chosen, shares, "gloo"), strict=True
    ):
        for name, tensor in memory.items():
            assert torch.equal(tensor, gloo[name]), name


@pytest.mark.long
def test_a_rank_without_valid_rows_takes_part_in_the_averaging() -> None:
    chosen = config()
    whole = [dataclasses.replace(b, valid=b.valid.clone()) for b in batches("none")]
    for batch in whole:
        batch.valid[:, 4:] = False
    state, _ = learned(learner_of(chosen), whole)
    for tensors, _ in over_ranks(chosen, [[rows(b, i, i + 4) for b in whole] for i in (0, 4)]):
        for name, expected in state.items():
            torch.testing.assert_close(tensors[name], expected, atol=1e-5, rtol=1e-5)


def test_a_gradient_that_is_not_finite_on_one_rank_makes_all_ranks_skip_the_step() -> None:
    chosen = config()
    spoiled = dataclasses.replace(batches("none")[0], reward=batches("none")[0].reward.clone())
    spoiled.reward[2, spoiled.valid[2].nonzero()[-1]] = float("nan")

    def work(group: RankGroup) -> tuple[bool, float, float]:
        learner = learner_of(chosen, DataParallel(group))
        part = slice(4 * group.rank, 4 * group.rank + 4)
        learner.update(rows(batches("none")[1], part.start, part.stop), 0.0)
        before = learner.state()[0]
        skipped = learner.update(rows(spoiled, part.start, part.stop), 0.0).metrics["skipped_steps"]
        after = learner.state()[0]
        kept = all(torch.equal(before[n], after[n]) for n in before if n.startswith("model/"))
        later = learner.update(rows(batches("none")[1], part.start, part.stop), 0.0).metrics
        return kept, skipped, later["skipped_steps"]

    assert on_ranks(2, work) == [(True, 2.0, 0.0)] * 2


def test_the_loss_of_other_parameters_sends_no_gradient_that_it_reaches() -> None:
    """Not even where it reaches them on one rank alone, so that messages would not match."""

    def work(group: RankGroup) -> list[list[float]]:
        x, y, z = (torch.ones(3, requires_grad=True) for _ in range(3))
        through = GradientBuckets(FlatParameters([x, y]), group.all_reduce, bucket_bytes=12)
        trained = GradientBuckets(FlatParameters([z]), group.all_reduce, bucket_bytes=12)
        found = []
        for buckets, loss in (
            (trained, lambda: (z * x * y if group.rank else z).sum()),
            (through, lambda: (x + 3 * y).sum()),
        ):
            buckets.clear()
            loss().backward()
            buckets.finish()
            found.append([float(p.grad[0]) for p in (x, y, z) if p.grad is not None])
        return found

    for found in on_ranks(2, work):
        assert found[0][2] == 2.0
        assert found[1] == [2.0, 6.0, 2.0]


def test_a_parameter_without_gradient_on_one_rank_is_averaged_with_zeros() -> None:
    """And messages go out in one order, whatever the order in which gradients arrive."""

    def work(group: RankGroup) -> list[list[float]]:
        x, y, z = (torch.ones(3, requires_grad=True) for _ in range(3))
        buckets = GradientBuckets(FlatParameters([x, y, z]), group.all_reduce, bucket_bytes=12)
        for _ in range(2):
            buckets.clear()
            loss = (x.sum() + 2 * z.sum()) if group.rank else (y * x).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            buckets.finish()
        return [p.grad.tolist() for p in (x, y, z) if p.grad is not None]

    for found in on_ranks(2, work):
        assert found == [[2.0] * 3, [1.0] * 3, [2.0] * 3]


class Scaled(Loss):
    """A multiple of the mean of the model's squared outputs, by autograd."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(
        self, model: torch.nn.Module, experience: Experience, gather: Gather
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self._factor * model(experience.obs["obs"]).square().mean(), {}


def test_several_buckets_of_a_sum_of_losses_are_sent_with_the_gradients_of_all_its_terms() -> None:
    """Each term is a backward pass of its own."""
    part = experience_of(rows(batches("none")[0], 0, 4), config(), version=0)
    size = part.obs["obs"].shape[-1]
    models = [torch.nn.Sequential(torch.nn.Linear(size, 1024), torch.nn.Linear(1024, 2048))]
    models += [copy.deepcopy(models[0]) for _ in range(2)]

    def gradient(model: torch.nn.Module, averaging: Averaging, loss: Loss) -> torch.Tensor:
        flat = flatten(model)
        averaging.follow(flat)
        minibatches = Minibatches([None], part, whole_rows=True)
        losses = loss.of_minibatches(model, part, minibatches, None, "fp32", averaging.all_gather)
        averaging.clear(flat, losses.terms)
        losses.differentiate(0)
        averaging.finish(flat)
        return flat.chunks[0].gradient

    alone = gradient(models.pop(), Averaging(), Scaled(4.0))
    assert alone.nbytes > 2 * BUCKET_BYTES
    both = SumOfLosses(Scaled(1.0), Scaled(3.0))

    def work(group: RankGroup) -> torch.Tensor:
        return gradient(models[group.rank], DataParallel(group), both)

    for found in on_ranks(2, work, room=1 << 25):
        torch.testing.assert_close(found, alone, atol=1e-3, rtol=1e-3)  # they have the same rows


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_predictor_of_new_observations_takes_as_many_steps_on_any_number_of_ranks(
    ranks: int,
) -> None:
    """Of 256 env steps over all ranks each, so that its bonus fades as fast."""
    chosen = config(rnd_coeff=0.5, rollout=64, train_for_env_steps=1)
    (whole,) = rollouts(chosen, 1)
    each = 8 // ranks

    def steps(learner: RolloutLearner, batch: Batch) -> float:
        learner.update(batch, 0.0)
        return float(learner.state()[0]["rnd_optimiser/0/step"])

    def work(group: RankGroup) -> float:
        part = rows(whole, group.rank * each, (group.rank + 1) * each)
        return steps(learner_of(chosen, DataParallel(group)), part)

    assert on_ranks(ranks, work) == [steps(learner_of(chosen), whole)] * ranks == [2.0] * ranks
