"""Hyperparameters that change during the training, and travel with the learner's state."""

from __future__ import annotations

import pytest
import torch

from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.config import ConfigError
from tests.support.learners import config, learner_of, one_batch


def weights(learner: RolloutLearner) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in learner.model.state_dict().values()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


CONFIG = config()


def test_a_changed_value_counts_from_the_next_update_on() -> None:
    """As in a learner that has had it from the beginning."""
    batch = one_batch(CONFIG)
    changed, fresh = learner_of(CONFIG), learner_of(config(clip_ratio=0.01, exploration_coeff=0.5))
    changed.change({"clip_ratio": 0.01, "exploration_coeff": 0.5})
    assert changed.update(batch, 0.0).metrics["loss"] == fresh.update(batch, 0.0).metrics["loss"]
    assert same(weights(changed), weights(fresh))
    other = learner_of(CONFIG)
    other.update(batch, 0.0)
    assert not same(weights(other), weights(fresh))


def test_the_state_carries_them_to_another_learner() -> None:
    batch = one_batch(CONFIG)
    donor, heir = learner_of(CONFIG), learner_of(CONFIG)
    donor.change({"learning_rate": 3e-3, "gamma": 0.9, "max_grad_norm": 0.1})
    donor.update(batch, 0.0)
    heir.load(*donor.state())
    assert heir.hyperparameters() == donor.hyperparameters()
    assert heir.hyperparameters()["gamma"] == 0.9
    donor.update(batch, 0.0)
    heir.update(batch, 0.0)
    assert same(weights(donor), weights(heir))


def test_what_cannot_change_and_what_is_out_of_range_is_refused() -> None:
    learner = learner_of(CONFIG)
    with pytest.raises(ValueError, match=r"^rollout cannot change .*clip_ratio.*learning_rate"):
        learner.change({"rollout": 5})
    with pytest.raises(ConfigError, match="learning-rate -1"):
        learner.change({"learning_rate": -1.0})
