"""An Ape-X graph whose learner checks every frame of every stack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sampleforge.algorithms.learning import Update
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.spec import ActionSpec
from sampleforge.topologies.config import ApexConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from sampleforge.topologies.replay.plan import ReplayPlan
from tests.support.apex_graphs import (
    CheckingLearner,
    CheckingLearnerMaker,
    build_apex,
    with_learner,
)
from tests.support.graphs import spec_of
from tests.support.pairings import network_maker

Array = np.ndarray[Any, Any]
ACTIONS = {"action": ActionSpec("discrete", (), "int64", (4,))}


class StackCheckingLearner(CheckingLearner):
    """Checks all frames of every stack, then the transitions by their newest frames."""

    def update(self, sample: ReplaySample, progress: float) -> Update:  # type: ignore[override]
        batch = sample.items
        newest: dict[str, Any] = {}
        for which in ("obs", "next_obs"):
            stacks = getattr(batch, which)["obs"].numpy()
            for i, stack in enumerate(stacks):
                if which == "next_obs" and not batch.discount[i]:
                    continue  # of no account; a same-step environment's is of the next episode
                check_stack(stack, str(self.config.env_kwargs.get("padding", "zero")))
            newest[which] = {"obs": torch.from_numpy(stacks[:, -1].copy())}
        assert (batch.obs["obs"][:, -1] == newest["obs"]["obs"]).all()
        return super().update(replace(sample, items=replace(batch, **newest)), progress)


def check_stack(stack: Array, padding: str) -> None:
    """CodeEnv's frames are [env id, episode, step, last action]."""
    env, episode, step, _ = stack[-1]
    for age, frame in enumerate(stack[::-1]):
        if age <= step:
            assert frame[:3].tolist() == [env, episode, step - age], stack
        elif padding == "zero":
            assert not frame.any(), stack
        else:
            assert frame.tolist() == [env, episode, 0, 0], stack


class StackCheckingLearnerMaker(CheckingLearnerMaker):
    def __call__(self) -> StackCheckingLearner:
        return StackCheckingLearner(self.new_network(), self.config)


def checking_graph(config: ApexConfig) -> tuple[Graph, ReplayPlan]:
    graph, plan = build_apex(config)
    spec = spec_of(config)
    maker = StackCheckingLearnerMaker(
        network_maker(config, spec, 0), resolve_defaults(config, spec)
    )
    return with_learner(graph, maker), plan


STACKED = "tests.support.stacked_envs:stacked"
