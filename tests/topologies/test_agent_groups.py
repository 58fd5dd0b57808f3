"""Agents with other spaces than the first ones: their policies have the defaults of their own
actions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import sampleforge as sf
from sampleforge.models.config import ModelConfig
from sampleforge.run.beginning import RunPlan, plan_run
from sampleforge.run.folder.checkpoint import CheckpointStore
from sampleforge.run.session import Session
from sampleforge.run.unused import Resolved, without_effect
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.registry import own_settings, pairing
from tests.support.graphs import spec_of

MULTI = "tests.support.multi_agent"
BOXES: dict[str, Any] = {"env": f"{MULTI}:BoxGoals", "num_policies": 2, "serial": True}


def planned(config: AnyConfig) -> RunPlan:
    return plan_run(pairing(config), config, spec_of(config))


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


class Lines(sf.Callback):
    """Hears what the user of a run is told, of which ``changes`` are hyperparameters with other
    values than before."""

    def __init__(self) -> None:
        self.told = list[str]()

    def on_message(self, session: sf.Session, message: sf.Message) -> None:
        self.told.append(message.text)

    @property
    def changes(self) -> list[str]:
        return [text for text in self.told if "As it was set" in text or "Changed" in text]


def trained(
    config: AnyConfig, folder: Path, lines: Lines | None = None, **settings: Any
) -> tuple[RunPlan, Lines]:
    """The plan of a run that is over, and what was told of it."""
    lines = lines or Lines()
    small = {"model": ModelConfig(hidden_sizes=(8,)), "device": "cpu", "run_dir": str(folder)}
    config = dataclasses.replace(config, **small, **settings)  # type: ignore[arg-type]
    with Session(config, [lines]) as session:
        list(session.reports())
    return session.run_plan, lines


def test_a_run_that_goes_on_has_them_again_and_tells_of_no_change(tmp_path: Path) -> None:
    config = sf.SacConfig(**BOXES, replay_capacity=1000, learning_starts=100)
    for steps in (400, 800):
        plan, lines = trained(config, tmp_path, train_for_env_steps=steps)
        assert [each.config.target_entropy for each in plan.agents] == [-1, -4]
        assert any("--target-entropy -4.0" in text for text in lines.told)
        assert not lines.changes


def test_what_a_run_that_goes_on_is_given_holds_for_all_policies(tmp_path: Path) -> None:
    """The given value is the default of the first policy, but not of the second."""
    config = sf.AppoConfig(**{**BOXES, "env": f"{MULTI}:MixedGoals"}, seed=1, rollout=16)
    plan, _ = trained(config, tmp_path, train_for_env_steps=600)
    default, other = (each.config.exploration_coeff for each in plan.agents)
    assert default > 0 == other
    given, anew = trained(config, tmp_path, train_for_env_steps=1200, exploration_coeff=default)
    again, later = trained(config, tmp_path, train_for_env_steps=1800)
    for plan in (given, again):
        assert [each.config.exploration_coeff for each in plan.agents] == [default, default]
    said = f"Changed from here on: --exploration-coeff {default} (the latest checkpoint has 0.0)"
    assert anew.changes == [f"{said} (of policy_1)"] and not later.changes
    for policy in ("policy_0", "policy_1"):
        found = CheckpointStore(tmp_path / "checkpoints" / policy, 1).load(log=print)
        assert found is not None
        assert found[0].state["learner"]["hyperparameters"]["exploration_coeff"] == default


class OneReport(Lines):
    """Ends a run at its first report."""

    def on_report(self, session: sf.Session, report: Mapping[str, float]) -> None:
        session.stop()


def test_policies_of_a_run_that_is_given_an_end_later_keep_their_schedules(tmp_path: Path) -> None:
    """A learning rate falls until the end by default where actions are Boxes."""
    config = sf.AppoConfig(**BOXES, seed=1, rollout=16, report_interval=0.5)
    for end in (None, 10**8):
        plan, _ = trained(config, tmp_path, OneReport(), train_for_env_steps=end)
        assert [each.config.lr_schedule for each in plan.agents] == ["constant", "constant"]


def test_a_setting_has_an_effect_if_it_has_one_for_any_agents() -> None:
    config = sf.AppoConfig(
        **{**BOXES, "env": f"{MULTI}:BoxFirst"}, exploration="symmetric_kl", num_envs_per_worker=4
    )
    plan = planned(config)
    assert [each.config.exploration_coeff > 0 for each in plan.agents] == [False, True]
    assert not list(without_effect(config, Resolved.of(plan)))
    none = dataclasses.replace(config, exploration_coeff=0.0)
    assert any(
        "--exploration symm" in text for text in without_effect(none, Resolved.of(planned(none)))
    )


def test_correlated_noise_is_that_of_every_fourth_environment_however_many_agents() -> None:
    few = sf.AppoConfig(**BOXES, noise_correlation=0.5, num_envs_per_worker=2, num_workers=1)
    said = list(without_effect(few, Resolved.of(planned(few))))
    assert [text.partition(" has no effect")[0] for text in said] == ["--noise-correlation 0.5"]
