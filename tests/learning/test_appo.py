"""Whole trainings, short ones: what is learned here cannot be learned with a part of the algorithm
broken. Thresholds are far from what random and what trained policies reach; both are said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sampleforge.api import Trainer
from tests.support.learning import config, learn
from tests.support.variants import slow

pytestmark = pytest.mark.long


@pytest.mark.parametrize("core", ["none", "gru", slow("lstm")])
def test_only_a_recurrent_core_remembers(core: str) -> None:
    """1 is perfect; 0 is chance, and the best without memory. The recurrent ones need 30-60
    thousand steps. Five steps lie between cue and question, and rollouts of 24 begin anywhere: the
    state must pass from rollout to rollout, and not from episode to episode."""
    maze = config(
        "tests.support.envs:MemoryTMaze",
        {"core": core, "core_size": 32, "hidden_sizes": (32,), "normalise_observations": False},
        num_envs_per_worker=64,
        rollout=24,
        learning_rate=1e-2,
        normalise_returns=False,
        exploration_coeff=0.01,
    )
    found = learn(maze, 60_000 if core == "none" else 150_000, until=0.95)
    assert abs(found) < 0.4 if core == "none" else found > 0.9, f"mean return {found}"


@pytest.mark.parametrize("where", ["info", "obs"])
def test_masked_actions_are_learned_around(where: str) -> None:
    """Random: 3.2 of 7. The environment asserts that no masked action is taken."""
    masked = config("tests.support.envs:MaskedEnv", env_kwargs={"where": where})
    assert learn(masked, 60_000, until=5.5) > 5.5


@pytest.mark.parametrize("advantage", ["vtrace", "gae"])
def test_all_action_kinds_improve_together(advantage: str) -> None:
    """Random: 1.0 of 6, a quarter for each of the four parts. More than 3.2 needs more than two
    perfect parts."""
    mixed = config(
        "tests.support.envs:MixedActionEnv",
        {"cnn_features": 8},
        advantage=advantage,
        num_envs_per_worker=16,
        batch_size=512,
        minibatch_size=128,
        num_epochs=4,
        clip_ratio=0.2,
        gamma=0.5,
        normalise_returns=False,
    )
    assert learn(mixed, 20_000, until=3.2) > 3.2


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("advantage", ["vtrace", "gae"])
def test_continuous_actions_are_learned(advantage: str, squash: bool) -> None:
    """Random: 12 of 40; the best are near 38. All episodes end by truncation."""
    push = config(
        "tests.support.envs:PushEnv",
        {"squash_actions": squash},
        advantage=advantage,
        rollout=20,
        num_epochs=2,
        clip_ratio=0.2,
        gamma=0.95,
    )
    assert learn(push, 60_000, until=30.0) > 30.0


MODES: dict[str, dict[str, Any]] = {
    "inline": {"inference": "inline"},
    "worker": {"inference": "worker"},
    "synchronous": {"async_rl": False},
}


@pytest.mark.multiprocess(timeout=110)
@pytest.mark.parametrize("mode", [slow("inline"), "worker", "synchronous"])
def test_cartpole_is_learned_in_every_mode(mode: str, tmp_path: Path) -> None:
    """Random: 22 of 500. 200 is passed after 30-120 thousand steps, in a few seconds."""
    cartpole = config(
        "CartPole-v1",
        serial=False,
        run_dir=str(tmp_path / "run"),
        seed=1,
        num_splits=2,
        rollout=32,
        batch_size=1024,
        minibatch_size=256,
        num_epochs=2,
        learning_rate=1e-3,
        learner_threads=1,
        train_for_env_steps=600_000,
        report_interval=0.5,
        quiet=True,
        **MODES[mode],
    )
    found = [0.0]
    with Trainer(cartpole) as training:
        for report in training:
            found.append(report.get("return_mean", 0.0))
            if found[-1] > 200:
                break
    assert max(found) > 200, found
