"""A run that only pretends to learn: updates that were not applied are counted, warned of, and end
the run; a run without an update says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sampleforge.models.config import ModelConfig
from sampleforge.run.callback import Callback, Message
from sampleforge.run.session import Session
from sampleforge.topologies.config import (
    AnyConfig,
    ApexConfig,
    AppoConfig,
    DdppoConfig,
    MarwilConfig,
)
from sampleforge.workers.metrics import DivergedError
from tests.support.graphs import spec_of
from tests.support.recorded import recorded, write_dataset
from tests.support.runs import summary

HUGE: dict[str, Any] = {
    "env_kwargs": {"scale": 5e30, "every_step": True},
    "normalise_returns": False,
}
"""Rewards of 1e30, which are finite, but not their squares."""
SERIAL: dict[str, Any] = {
    **{"env": "tests.support.reward_envs:CueEnv", "serial": True, "seed": 1, "device": "cpu"},
    **{"num_envs_per_worker": 8, "report_interval": 0.2},
}
PPO: dict[str, Any] = {**SERIAL, "async_rl": False, "batch_size": 128, "minibatch_size": 32}
SMALL = ModelConfig(hidden_sizes=(8,))


class Told(Callback):
    def __init__(self) -> None:
        self.reports: list[dict[str, float]] = []
        self.warnings: list[str] = []

    def on_report(self, session: Session, report: Any) -> None:
        self.reports.append(dict(report))

    def on_message(self, session: Session, message: Message) -> None:
        if message.level in ("warning", "alert"):
            self.warnings.append(message.text)


def trained(config: AnyConfig) -> Told:
    told = Told()
    with Session(config, [told]) as session:
        list(session.reports())
    return told


def appo(folder: Path, **more: Any) -> AppoConfig:
    return AppoConfig(**{**PPO, "run_dir": str(folder), "model": SMALL, **more})


@pytest.mark.parametrize("algo", ["appo", "ddppo"])
def test_a_run_whose_updates_were_not_applied_ends_with_the_cause(
    algo: str, tmp_path: Path
) -> None:
    """Three batches of four minibatches, ten passes each: too few batches to end it before."""
    more = {"train_for_env_steps": 384, **HUGE, "run_dir": str(tmp_path)}
    ranks = DdppoConfig(**{**PPO, "model": SMALL, "num_ranks": 1, **more})
    told = Told()
    config = ranks if algo == "ddppo" else appo(tmp_path, **more)
    message = (
        r"has learned nothing: none of its \d+ updates was applied: .* rewards are far too large"
    )
    with pytest.raises(DivergedError, match=message), Session(config, [told]) as session:
        list(session.reports())
    ended, updates = summary(tmp_path), 160 if algo == "ddppo" else 120
    assert ended["updates"] == ended["skipped_updates"] == updates
    assert ended["status"] == "failed"
    assert told.reports[-1]["skipped_updates"] == updates
    (warning,) = [text for text in told.warnings if "were skipped" in text]
    assert "40 of 40 gradient steps of an update were skipped" in warning
    assert "the environment's rewards are far too large (up to 1e+30): correct it" in warning


FAR: dict[str, Any] = {
    **SERIAL,
    "env": "tests.support.not_finite_envs:NotFiniteEnv",
    "env_kwargs": {"where": "all", "value": 1e30, "length": 8},
    "model": ModelConfig(hidden_sizes=(8,), activation="relu", normalise_observations=False),
}
"""Observations whose gradients have no finite norm, with every algorithm."""


@pytest.mark.long
def test_ape_x_counts_the_updates_that_were_not_applied(tmp_path: Path) -> None:
    more = {"learning_starts": 100, "rollout": 8, "batch_size": 16, "train_for_env_steps": 2000}
    message = "no gradient was finite in 10 updates.*observations are far too large .up to 1e.30"
    with pytest.raises(DivergedError, match=message):
        trained(ApexConfig(**{**FAR, "run_dir": str(tmp_path), **more}))
    assert summary(tmp_path)["updates"] == summary(tmp_path)["skipped_updates"] == 10


def test_marwil_counts_the_updates_that_were_not_applied(tmp_path: Path) -> None:
    own = ("env", "env_kwargs", "serial", "seed", "device", "report_interval", "model")
    settings: dict[str, Any] = {
        **{name: FAR[name] for name in own},
        **{"input": (str(tmp_path / "data"),), "run_dir": str(tmp_path / "run")},
        **{"batch_size": 16, "evaluate_interval": None, "train_for_env_steps": 80},
    }
    config = MarwilConfig(**settings)
    spec, far = spec_of(config), {"obs": np.full((9, 4), 1e30, np.float32)}
    episodes = [
        dataclasses.replace(each, observations=far) for each in recorded([8] * 20, spec.actions)
    ]
    write_dataset(tmp_path / "data", spec, episodes)
    with pytest.raises(DivergedError, match="none of its 5 updates was applied"):
        trained(config)
    assert summary(tmp_path / "run")["skipped_updates"] == 5


def test_ten_updates_in_a_row_without_a_step_end_the_run(tmp_path: Path) -> None:
    config = appo(tmp_path, train_for_env_steps=10**6, **HUGE)
    message = "no gradient was finite in 10 updates in a row.*rewards are far too large.*1e.30"
    with pytest.raises(DivergedError, match=message):
        trained(config)
    assert summary(tmp_path)["skipped_updates"] == 400


def test_skipped_updates_go_on_after_a_resume(tmp_path: Path) -> None:
    config = appo(tmp_path, train_for_env_steps=384, **HUGE)
    for updates in (120, 240):
        with pytest.raises(DivergedError, match="none of its 120 updates"):
            trained(config)
        assert summary(tmp_path)["skipped_updates"] == updates
        config = appo(tmp_path, train_for_env_steps=768, **HUGE)


def test_a_run_that_learns_has_no_skipped_updates_and_no_warning(tmp_path: Path) -> None:
    told = trained(appo(tmp_path, train_for_env_steps=384))
    assert summary(tmp_path)["skipped_updates"] == 0 and summary(tmp_path)["updates"] == 120
    assert told.reports[-1]["skipped_updates"] == 0 and not told.warnings


def test_a_run_that_ends_before_its_first_update_says_so(tmp_path: Path) -> None:
    told = trained(appo(tmp_path, train_for_env_steps=64))
    text = "The run has learned nothing: there was no update in 64 env steps, because an update"
    assert any(warning.startswith(text) for warning in told.warnings)


def test_a_limit_below_the_first_update_is_warned_of_at_the_start(tmp_path: Path) -> None:
    told = trained(appo(tmp_path, train_for_env_steps=64))
    assert told.warnings[0] == (
        "--train-for-env-steps 64: nothing will be learned from the 64 env steps that are left, "
        "because an update needs a batch of 128 env steps (--batch-size); raise it"
    )


def test_ape_x_that_ends_before_learning_starts_says_so(tmp_path: Path) -> None:
    more = {"learning_starts": 500, "train_for_env_steps": 400, "rollout": 8}
    told = trained(ApexConfig(**{**SERIAL, "run_dir": str(tmp_path), "model": SMALL, **more}))
    assert told.warnings[0].startswith("--train-for-env-steps 400: nothing will be learned")
    assert all("learning begins with 500 transitions" in text for text in told.warnings)
    assert len(told.warnings) == 2, "at the start and at the end"


def test_ape_x_that_ends_before_its_first_rollout_says_so(tmp_path: Path) -> None:
    """Enough env steps for --learning-starts, and none of them in the replay yet."""
    more = {"learning_starts": 100, "train_for_env_steps": 400, "rollout": 200}
    told = trained(ApexConfig(**{**SERIAL, "run_dir": str(tmp_path), "model": SMALL, **more}))
    assert told.warnings[0].startswith("--train-for-env-steps 400: nothing will be learned")
    assert all("whole rollouts are added, of 200 steps x " in text for text in told.warnings)
    assert len(told.warnings) == 2, "at the start and at the end"
