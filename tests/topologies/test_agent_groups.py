"""Agents with other spaces than the first ones: their policies have the defaults of their own
actions."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

import sampleforge as sf
from sampleforge.models.config import ModelConfig
from sampleforge.run.beginning import RunPlan, plan_run
from sampleforge.run.session import Session
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.registry import own_settings, pairing
from tests.support.graphs import spec_of

MULTI = "tests.support.multi_agent"
BOXES: dict[str, Any] = {"env": f"{MULTI}:BoxGoals", "num_policies": 2, "serial": True}


def planned(config: AnyConfig, asked: AnyConfig | None = None) -> RunPlan:
    return plan_run(pairing(config), config, spec_of(config), asked=asked)


@pytest.mark.parametrize("cls", [sf.SacConfig, sf.CrossqConfig])
def test_the_entropy_of_each_policy_is_held_by_the_elements_of_its_own_action(
    cls: type[sf.SacConfig | sf.CrossqConfig],
) -> None:
    plan = planned(cls(**BOXES, replay_capacity=1000))
    walkers, caller = plan.agents
    assert (walkers.config.target_entropy, caller.config.target_entropy) == (-1, -4)
    said = own_settings(walkers.config, caller)
    assert said == "Agents caller, by their own actions: --target-entropy -4.0"
    given = planned(cls(**BOXES, replay_capacity=1000, target_entropy=-1.0))
    assert [group.config.target_entropy for group in given.agents] == [-1, -1]
    assert own_settings(given.config, given.agents[1]) == ""


def test_noise_bonus_and_schedule_of_each_policy_are_those_of_its_own_actions() -> None:
    """Entropy pays for more and more noise in a Box action, so it has none by default."""
    mixed = sf.AppoConfig(env=f"{MULTI}:MixedGoals", num_policies=2, train_for_env_steps=1000)
    walkers, caller = planned(mixed).agents
    assert walkers.config.exploration_coeff > 0 == caller.config.exploration_coeff
    assert (walkers.config.lr_schedule, caller.config.lr_schedule) == ("constant", "cooldown")
    assert own_settings(planned(mixed).config, caller) == (
        "Agents caller, by their own actions: --exploration-coeff 0.0 --lr-schedule cooldown "
        "--model.initial-log-std 0.0"
    )
    boxes = planned(sf.AppoConfig(**BOXES))
    assert [math.exp(each.config.model.initial_log_std) for each in boxes.agents] == [
        pytest.approx(1),
        pytest.approx(0.5, abs=1e-3),
    ]
    model = ModelConfig(initial_log_std=-2.0)
    given = planned(dataclasses.replace(mixed, model=model, exploration_coeff=0.1))
    for group in given.agents:
        assert group.config.model.initial_log_std == -2
        assert group.config.exploration_coeff == 0.1


@pytest.mark.long
def test_a_run_that_goes_on_has_them_again_and_tells_of_no_change(tmp_path: Path) -> None:
    told = list[str]()

    class Lines(sf.Callback):
        def on_message(self, session: sf.Session, message: sf.Message) -> None:
            told.append(message.text)

    for steps in (400, 800):
        told.clear()
        config = sf.SacConfig(
            **{**BOXES, "run_dir": str(tmp_path), "device": "cpu", "learning_starts": 100},
            replay_capacity=1000,
            train_for_env_steps=steps,
            model=ModelConfig(hidden_sizes=(8,)),
        )
        with Session(config, [Lines()]) as session:
            list(session.reports())
            held = [each.config.target_entropy for each in session.run_plan.agents]
        assert held == [-1, -4]
        assert any("--target-entropy -4.0" in text for text in told)
        assert not [text for text in told if "As it was set" in text or "Changed" in text]
