"""Random network distillation: the bonus against the literal sums, what is learned from, and what
it is good for."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.averaging import Averaging
from sampleforge.algorithms.experience import (
    Experience,
    Minibatches,
    experience_of,
    minibatch_positions,
)
from sampleforge.algorithms.flat_parameters import Adam, flatten
from sampleforge.algorithms.rnd import ADAM, Novelty, NoveltyBonus
from sampleforge.api import train
from sampleforge.models.config import ModelConfig
from sampleforge.ops.running_stats import alone
from sampleforge.spec import ArraySpec
from sampleforge.topologies.builders import seeded
from sampleforge.topologies.config import AppoConfig
from tests.support.graphs import rollouts, spec_of
from tests.support.learners import config, learner_of

COEFF = 0.5


def unpaid(config: AppoConfig, count: int) -> list[Experience]:
    """Experience without rewards, so that all that is added to them shows in float32."""
    made = [experience_of(batch, config, version=0) for batch in rollouts(config, count)]
    return [
        dataclasses.replace(each, reward=torch.zeros_like(each.reward), mask=each.mask.clone())
        for each in made
    ]


def part_of(config: AppoConfig, seed: int = 3) -> tuple[Novelty, NoveltyBonus]:
    with seeded(seed):
        novelty = Novelty(config.model, spec_of(config).observations)
    optimiser = Adam(flatten(novelty), **ADAM)
    return novelty, NoveltyBonus(novelty, optimiser, config, Averaging(), alone)


def add(part: NoveltyBonus, experience: Experience, size: int = 16) -> tuple[Experience, Any]:
    drawn = minibatch_positions(
        experience, size, whole_rows=False, generator=torch.Generator().manual_seed(1)
    )
    return part.add(experience, Minibatches(list(drawn), experience, whole_rows=False))


def test_the_bonus_is_the_error_of_the_observation_reached_over_the_deviation_of_its_sums() -> None:
    """Of three batches in turn, with steps that are not valid and steps that are stale."""
    chosen = config(rnd_coeff=COEFF, rnd_learning_rate=1e-2)
    novelty, part = part_of(chosen)
    seen: list[Any] = []
    sums: list[float] = []
    for number, experience in enumerate(unpaid(chosen, 3)):
        assert not experience.mask.all()
        experience.mask[:2, 1] = False  # as if they were stale
        before = copy.deepcopy(novelty)
        rewarded, metrics = add(part, experience)
        (leaf,) = experience.obs.values()
        rollout, rows = experience.reward.shape
        places = [(t, b) for t in range(rollout) for b in range(rows)]
        counted = [(t, b) for t, b in places if experience.mask[t, b]]
        seen += [leaf[t + 1, b].double().numpy() for t, b in counted]
        mean, deviation = np.mean(seen, 0), np.sqrt(np.var(seen, 0) + 1e-8)
        error = np.empty((rollout, rows))
        for t, b in places:
            x = np.clip((leaf[t + 1, b].double().numpy() - mean) / deviation, -5.0, 5.0)
            inputs = {name: torch.tensor(x)[None].float() for name in experience.obs}
            with torch.no_grad():
                difference = before.predictor(inputs) - before.target(inputs)
            error[t, b] = float(difference.square().mean())
        usual = np.mean([error[place] for place in counted])
        for b in range(rows):
            ahead = usual / (1.0 - 0.99)
            for t in range(rollout - 1, -1, -1):
                ahead = (error[t, b] if experience.mask[t, b] else usual) + 0.99 * ahead
                if experience.mask[t, b]:
                    sums.append(ahead)
        unit = max(np.std(sums), 0.1 * np.sqrt(np.mean(np.square(sums))))
        bonus = rewarded.reward.double().numpy()
        np.testing.assert_allclose(bonus, COEFF * error / unit, rtol=2e-3, atol=1e-4)
        found = np.mean([bonus[place] for place in counted])
        assert float(metrics["rnd_reward"]) == pytest.approx(found, rel=1e-3)
        assert float(metrics["rnd_loss"]) == pytest.approx(usual, rel=0.5), "while it learns"
        assert number or float(novelty.moments[0]) == len(counted)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_the_end_of_an_episode_is_rewarded_where_its_observation_is_known(mode: str) -> None:
    """With same-step resets obs[t + 1] is of the next episode: it is neither rewarded nor learned
    from."""
    chosen = config(
        env="tests.support.envs:CountingVectorEnv",
        env_kwargs={"mode": mode, "ending": "truncate"},
        rnd_coeff=COEFF,
    )
    novelty, part = part_of(chosen)
    (experience,) = unpaid(chosen, 1)
    ends = experience.truncated & experience.mask
    assert ends.any()
    bonus = add(part, experience)[0].reward
    assert bool((bonus[experience.mask & ~ends] > 0).all())
    assert bool((bonus[ends] > 0).all()) == (mode == "next_step")
    unknown = int(ends.sum()) if mode == "same_step" else 0
    assert float(novelty.moments[0]) == int(experience.mask.sum()) - unknown
    assert novelty.normaliser is not None
    counts = [t for n, t in novelty.state_dict().items() if n.endswith("count")]
    assert [float(count) for count in counts] == [float(novelty.moments[0])]


def test_an_observation_that_the_episode_had_before_is_not_paid_for_again() -> None:
    chosen = config(rnd_coeff=COEFF)
    (experience,) = unpaid(chosen, 1)
    ((name, leaf),) = experience.obs.items()
    cells = torch.randint(0, 3, leaf.shape[:2], generator=torch.Generator().manual_seed(0))
    obs = leaf[0, 0] + cells.view(*cells.shape, *[1] * (leaf.ndim - 2))
    _, part = part_of(chosen)
    bonus = add(part, dataclasses.replace(experience, obs={name: obs}))[0].reward
    paid = 0
    for b in range(bonus.shape[1]):
        seen: set[int] = set()
        for t in range(len(bonus)):
            if experience.is_first[t, b]:
                seen = set()
            seen.add(int(cells[t, b]))
            if experience.mask[t, b]:  # not in the step that resets
                is_new = int(cells[t + 1, b]) not in seen
                assert (float(bonus[t, b]) > 0) == is_new
                paid += is_new
    assert 0 < paid < bonus.numel() / 2


def test_steps_that_do_not_count_are_not_learned_from() -> None:
    chosen = config(rnd_coeff=COEFF)
    (experience,) = unpaid(chosen, 1)
    experience.mask[:, 1:3] = False
    (name, leaf), *_ = experience.obs.items()
    other = leaf.clone()
    other[1:, 1:3] += 1e3
    states = []
    for obs in (leaf, other):
        novelty, part = part_of(chosen)
        add(part, dataclasses.replace(experience, obs={name: obs}))
        states.append(novelty.state_dict())
    for key, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][key], msg=key)


def test_what_was_seen_is_no_longer_new_and_what_was_not_is() -> None:
    """The cells of deep sea in its upper half are seen a hundred times, those below never."""
    size = 6
    chosen = config(
        env="tests.support.deep_sea:DeepSea",
        env_kwargs={"size": size},
        model=ModelConfig(hidden_sizes=(32,)),
        rnd_coeff=COEFF,
        rnd_learning_rate=1e-3,
    )
    novelty, part = part_of(chosen)
    (experience,) = unpaid(chosen, 1)
    (name,) = experience.obs
    cells = torch.eye(size * size)
    steps = experience.obs[name].shape[:2]
    target = copy.deepcopy(novelty.target.state_dict())
    first = None
    for _ in range(100):
        at = torch.randint(size * size // 2, steps, generator=torch.Generator().manual_seed(1))
        _, metrics = add(part, dataclasses.replace(experience, obs={name: cells[at]}))
        first = first or float(metrics["rnd_loss"])
    with torch.no_grad():
        errors = novelty({name: cells})
    visited = at[1:][experience.mask].unique()
    assert float(errors[visited].mean()) < 0.1 * first
    assert float(errors[size * size // 2 :].mean()) > 5 * float(errors[visited].mean())
    assert all(torch.equal(target[n], t) for n, t in novelty.target.state_dict().items())


@pytest.mark.parametrize(
    "spec",
    [ArraySpec((3, 36, 36), "uint8", low=0, high=255), ArraySpec((), "int64", (4,))],
    ids=["images", "codes"],
)
def test_other_kinds_of_observation(spec: ArraySpec) -> None:
    with seeded(1):
        novelty = Novelty(ModelConfig(cnn_features=16), {"x": spec})
        error = novelty({"x": torch.randint(4, (6, *spec.shape), dtype=getattr(torch, spec.dtype))})
    assert error.shape == (6,) and bool((error > 0).all())
    error.mean().backward()
    assert all(p.grad is not None for p in novelty.predictor.parameters())


def test_a_learner_goes_on_bit_by_bit_from_its_state() -> None:
    """Also one whose networks began with other weights."""
    chosen = config(rnd_coeff=COEFF, advantage="gae", num_epochs=2, minibatch_size=32)
    batches = list(rollouts(chosen, 3))
    whole = learner_of(chosen)
    for batch in batches[:2]:
        metrics = whole.update(batch, 0.0).metrics
    assert metrics["rnd_reward"] > 0 and metrics["rnd_loss"] > 0
    resumed = learner_of(chosen)
    resumed.load(*whole.state())
    for learner in (whole, resumed):
        learner.update(batches[2], 0.0)
    states = whole.state()[0], resumed.state()[0]
    assert any(name.startswith("rnd_optimiser/") for name in states[0])
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("coeff", [0.0, COEFF])
def test_deep_sea_is_solved_with_the_bonus_and_not_without(coeff: float, tmp_path: Any) -> None:
    """Random actions find the reward in one of 4,096 episodes; the training has 5,000."""
    result = train(
        AppoConfig(
            env="tests.support.deep_sea:DeepSea",
            env_kwargs={"size": 12},
            rnd_coeff=coeff,
            train_for_env_steps=80_000,
            num_workers=1,
            serial=True,
            quiet=True,
            seed=1,
            run_dir=str(tmp_path / "run"),
        )
    )
    assert (result.summary["return_mean"] > 0.9) == (coeff > 0)
