"""A policy that the user's own mapping stops picking: the run goes on, and the user is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sampleforge.models.config import ModelConfig
from sampleforge.run.callback import Callback, Message
from sampleforge.run.session import Session
from sampleforge.topologies.config import AppoConfig
from sampleforge.workers.policy_mapping import StreamId

PICKED = 110
"""Rollouts of each split in which both policies are picked: more than are checked at the start."""


def starving(seat: StreamId, rollout: int) -> str:
    return f"policy_{rollout % 2 if rollout < PICKED else 0}"


def fair(seat: StreamId, rollout: int) -> str:
    return f"policy_{rollout % 2}"


class Warnings(Callback):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_message(self, session: Session, message: Message) -> None:
        if message.level == "warning":
            self.texts.append(message.text)


def warnings_of(function: str, folder: Path) -> tuple[list[str], dict[str, float]]:
    """Train 8,000 env steps, of which a split takes 32 a rollout; return the warnings and the last
    report."""
    settings: dict[str, Any] = {
        **{"num_workers": 1, "num_envs_per_worker": 4, "num_splits": 1, "rollout": 8},
        **{"batch_size": 64, "num_epochs": 1, "async_rl": True, "seed": 1, "serial": True},
        **{"train_for_env_steps": 8000, "report_interval": 0.5, "run_dir": str(folder)},
    }
    config = AppoConfig(
        env="CartPole-v1",
        num_policies=2,
        policy_mapping=f"{__name__}:{function}",
        model=ModelConfig(hidden_sizes=(8,)),
        **settings,
    )
    told = Warnings()
    with Session(config, [told]) as session:
        *_, last = session.reports()
    return told.texts, last


@pytest.mark.long
def test_a_starved_policy_is_named_once_and_the_others_go_on(tmp_path: Path) -> None:
    texts, last = warnings_of("starving", tmp_path)
    (text,) = [text for text in texts if "has learned nothing" in text]
    assert text.startswith("policy_1 has learned nothing for")
    assert f"--policy-mapping {__name__}:starving hardly ever picks it" in text
    assert last["env_steps"] >= 8000
    assert last["policy_0/updates"] > 2 * last["policy_1/updates"] > 0
    assert (tmp_path / "checkpoints" / "policy_1").is_dir(), "it is saved as it was"


@pytest.mark.long
def test_policies_that_are_picked_in_turn_are_not_warned_of(tmp_path: Path) -> None:
    texts, _ = warnings_of("fair", tmp_path)
    assert not [text for text in texts if "has learned nothing" in text]
