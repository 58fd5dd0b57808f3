"""Two algorithms from outside of the package: that of ``examples/own_algorithm.py`` on slots, and
Q-learning with a soft maximum on the replay."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from sampleforge.algorithms.dqn.algorithm import DQN
from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.learner import DqnLearner
from sampleforge.algorithms.dqn.loss import DqnOutput
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.models.q_network import QNetwork
from sampleforge.replay.samples import importance_weights
from sampleforge.spec import ACTION
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.pairings import dqn_defaults
from sampleforge.topologies.registry import REPLAY, Pairing
from tests.support import REPO

HERE = "tests.support.outside"


def example() -> ModuleType:
    """The module of ``examples/own_algorithm.py``, which processes find by its name."""
    folder = str(REPO / "examples")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("own_algorithm")


A2C = example().A2C
Base: Any = example().A2cConfig


@dataclass(frozen=True)
class A2cConfig(Base):  # type: ignore[misc]
    """The example's, by the name of this module."""

    algo: ClassVar[str] = f"{HERE}:A2cConfig"
    pairing: ClassVar[str] = f"{HERE}:A2C"


@dataclass(frozen=True)
class SoftConfig(DqnConfig, ReplayRunConfig):
    """Q-learning whose targets have a soft maximum: tau log mean_a exp(Q / tau)."""

    algo: ClassVar[str] = f"{HERE}:SoftConfig"
    pairing: ClassVar[str] = f"{HERE}:SOFT"
    temperature: float = 0.1
    """The temperature tau, above 0."""


class SoftLearner(DqnLearner):
    """The learner of DQN with another loss."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._passes = None

    def _loss(self, batch: Any, beta: Any) -> DqnOutput:
        config: Any = self._config
        tau = config.temperature
        with torch.no_grad():
            q_next = self.target.q_values(batch.next_obs)
            after = tau * ((q_next / tau).logsumexp(1) - torch.tensor(q_next.shape[1]).log())
            targets = batch.returns + batch.discount * after
        q = self.model.q_values(batch.obs)
        taken = q.gather(1, batch.actions[ACTION].unsqueeze(1)).squeeze(1)
        weights, share = importance_weights(
            batch.scaled_probability, beta, batch.count, self._gather
        )
        loss = (weights * F.smooth_l1_loss(taken, targets, reduction="none")).mean()
        errors = (targets - taken).detach().abs()
        metrics = {
            "loss": loss.detach(),
            "td_error_max": errors.max(),
            "q_mean": taken.detach().mean(),
        }
        return DqnOutput(loss, errors, metrics, share)


def new_learner(config: SoftConfig, network: QNetwork, place: LearnerPlace) -> SoftLearner:
    return SoftLearner(network, config, place)


SOFT = Pairing(
    dataclasses.replace(DQN, new_learner=new_learner),
    REPLAY,
    dqn_defaults.resolve_defaults,
    dqn_defaults.reason,
)
