"""Learners of continuous control, and samples for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.algorithms.averaging import Averaging, DataParallel
from sampleforge.algorithms.experience import WHOLE, Share
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.sac.algorithm import CROSSQ, SAC
from sampleforge.algorithms.sac.crossq_learner import CrossqLearner
from sampleforge.algorithms.sac.learner import SacLearner
from sampleforge.algorithms.td3.algorithm import TD3
from sampleforge.algorithms.td3.learner import Td3Learner
from sampleforge.models.config import ModelConfig
from sampleforge.peers.group import RankGroup
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.samples import Transitions
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec
from sampleforge.topologies.builders import seeded
from sampleforge.topologies.config import CrossqConfig, SacConfig, Td3Config
from sampleforge.topologies.pairings.critics_defaults import resolve_defaults
from tests.support.rank_threads import on_ranks

SPEC = EnvSpec(
    "Code",
    {"obs": ArraySpec((3,), "float32")},
    {"action": ActionSpec("box", (2,), "float32", low=(-2.0, 0.0), high=(2.0, 5.0))},
)
CPU = torch.device("cpu")


def sac_config(**more: Any) -> SacConfig:
    """A config with resolved defaults, of small networks."""
    chosen: dict[str, Any] = {"env": "Code", "model": ModelConfig(hidden_sizes=(8, 8))}
    return resolve_defaults(SacConfig(**{**chosen, **more}), SPEC)


def sac_learner(
    config: SacConfig,
    spec: EnvSpec = SPEC,
    averaging: Averaging | None = None,
    share: Share = WHOLE,
    device: torch.device = CPU,
) -> SacLearner:
    """A learner with weights from a fixed seed."""
    learner = _learner(SAC, config, spec, averaging, share, device)
    assert isinstance(learner, SacLearner)
    return learner


def crossq_config(**more: Any) -> CrossqConfig:
    """A config with resolved defaults, of small networks."""
    chosen: dict[str, Any] = {"env": "Code", "model": ModelConfig(hidden_sizes=(8, 8))}
    return resolve_defaults(CrossqConfig(**{**chosen, **more}), SPEC)


def crossq_learner(
    config: CrossqConfig,
    spec: EnvSpec = SPEC,
    averaging: Averaging | None = None,
    share: Share = WHOLE,
    device: torch.device = CPU,
) -> CrossqLearner:
    """A learner with weights from a fixed seed."""
    learner = _learner(CROSSQ, config, spec, averaging, share, device)
    assert isinstance(learner, CrossqLearner)
    return learner


def td3_config(**more: Any) -> Td3Config:
    """A config with resolved defaults, of small networks."""
    chosen: dict[str, Any] = {"env": "Code", "model": ModelConfig(hidden_sizes=(8, 8))}
    return resolve_defaults(Td3Config(**{**chosen, **more}), SPEC)


def td3_learner(
    config: Td3Config,
    spec: EnvSpec = SPEC,
    averaging: Averaging | None = None,
    share: Share = WHOLE,
    device: torch.device = CPU,
) -> Td3Learner:
    """A learner with weights from a fixed seed."""
    learner = _learner(TD3, config, spec, averaging, share, device)
    assert isinstance(learner, Td3Learner)
    return learner


def _learner(
    algorithm: Algorithm,
    config: Any,
    spec: EnvSpec,
    averaging: Averaging | None,
    share: Share,
    device: torch.device,
) -> Any:
    with seeded(1):
        network = algorithm.new_network(config, spec)
        place = LearnerPlace(device, "fp32", 1, 2, averaging or Averaging(), None, share, spec)
        return algorithm.new_learner(config, network, place)


def sample(rows: int = 16, seed: int = 0, **columns: Any) -> ReplaySample:
    """A sample of random transitions of `SPEC`; ``columns`` replace those of that name."""
    random = np.random.default_rng(seed)
    actions = random.uniform((-2.0, 0.0), (2.0, 5.0), (rows, 2)).astype(np.float32)
    made: dict[str, Any] = {
        "obs": {"obs": torch.from_numpy(random.normal(size=(rows, 3)).astype(np.float32))},
        "actions": {"action": torch.from_numpy(actions)},
        "returns": torch.from_numpy(random.normal(size=rows).astype(np.float32)),
        "discount": torch.from_numpy(0.9 * (random.random(rows) < 0.7).astype(np.float32)),
        "next_obs": {"obs": torch.from_numpy(random.normal(size=(rows, 3)).astype(np.float32))},
        "scaled_probability": torch.from_numpy(random.uniform(0.5, 2.0, rows)),
    }
    return ReplaySample(Transitions(**{**made, **columns}), 0.4, trained=rows)


def assert_two_take_the_steps_of_one(new_learner: Callable[..., Any]) -> None:
    """Two learners that ``new_learner`` makes, of an averaging and a share, with a half of each
    sample, end with the weights of one with the whole samples."""

    def weights(averaging: Averaging, share: Share, which: Tensor) -> list[Tensor]:
        learner = new_learner(averaging=averaging, share=share)
        for batch in (sample(16, seed) for seed in range(4)):
            items = batch.items
            assert isinstance(items, Transitions)
            learner.update(replace(batch, items=items.pick(which)), 0.0)
        return [p.detach() for p in (*learner.model.parameters(), *learner.target.parameters())]

    def learn(group: RankGroup) -> list[Tensor]:
        half = torch.arange(16) // 8 == group.rank
        return weights(DataParallel(group), Share(group.rank, 2), half)

    alone = weights(Averaging(), WHOLE, torch.ones(16, dtype=torch.bool))
    for found in on_ranks(2, learn):
        for mine, theirs in zip(alone, found, strict=True):
            torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-5)
