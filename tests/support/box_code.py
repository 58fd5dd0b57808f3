"""CodeEnv with Box actions, and a learner of soft actor-critic that checks each transition before
it learns from it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from sampleforge.algorithms.learning import Update
from sampleforge.algorithms.sac.learner import SacLearner
from sampleforge.models.config import ModelConfig
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.samples import Transitions
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import SacConfig
from tests.support.apex_graphs import LONGEST, check_transition
from tests.support.envs import CodeEnv, episode_length
from tests.support.sac import sac_learner

BOX_CODE = "tests.support.box_code:BoxCodeEnv"


def box_config(**more: Any) -> SacConfig:
    """A small run on `BoxCodeEnv`, for checks of where everything comes from."""
    chosen: dict[str, Any] = {
        "env": BOX_CODE,
        "num_workers": 2,
        "num_envs_per_worker": 6,
        "num_splits": 2,
        "rollout": 7,
        "model": ModelConfig(hidden_sizes=(8,)),
        "debug": True,
        "seed": 1,
        "learning_starts": 200,
        "replay_capacity": 21 * 20,
        "batch_size": 16,
        "prefetch_batches": 4,
        "updates_per_env_step": 1 / 16,
    }
    return SacConfig(**{**chosen, **more})


def action_code(action: Any) -> int:
    """A number that says which action of `BoxCodeEnv` was taken, exact in float32."""
    return round(float(np.dot(np.asarray(action, np.float64), (300_000.0, 5_000.0))))


class BoxCodeEnv(CodeEnv):
    """CodeEnv whose actions are a Box; the last action is observed as `action_code`."""

    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)  # type: ignore[assignment]

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        *others, info = self._taken(action)
        return (self.observation(), *others[1:], info)

    def _taken(self, action: Any) -> Any:
        own, self.action_space = self.action_space, spaces.Discrete(1)  # type: ignore[assignment]
        try:
            result = super().step(0)
        finally:
            self.action_space = own
        self.action = action_code(action)
        return result


class CheckingSac(SacLearner):
    """Checks every transition of CodeEnv, and learns from it. ``checked`` counts them,
    ``truncated`` those whose window ends with an observation that is bootstrapped from."""

    checked = truncated = 0

    def update(self, batch: ReplaySample, progress: float) -> Update:
        items, config = batch.items, self._config
        assert isinstance(items, Transitions)
        for i in range(len(items.returns)):
            now, after = (leaves["obs"][i].numpy() for leaves in (items.obs, items.next_obs))
            code = action_code(items.actions["action"][i].numpy())
            discount = float(items.discount[i])
            check_transition(now, code, float(items.returns[i]), discount, after, config)  # type: ignore[arg-type]
            length = episode_length(int(now[0]), int(now[1]), LONGEST)
            self.truncated += discount > 0 and after[2] == length
        self.checked += len(items.returns)
        result = super().update(batch, progress)
        return result._replace(metrics={**result.metrics, "checked": float(self.checked)})


class CheckingSacMaker:
    """Makes one, in any process."""

    def __init__(self, config: SacConfig, spec: EnvSpec) -> None:
        self.config = config
        self.spec = spec

    def __call__(self) -> SacLearner:
        learner = sac_learner(self.config, self.spec)
        learner.__class__ = CheckingSac
        return learner
