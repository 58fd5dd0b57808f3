"""Schedules of populations of runs: what led to the published weights, in the order and at the env
steps at which it did, and replayed by one run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sampleforge.api import Trainer, train
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.populations import lineage
from sampleforge.populations.callbacks import population_callbacks
from sampleforge.populations.rounds import ExploitRule, ExploreRule, Parameter
from sampleforge.populations.schedule import (
    SCHEDULE_FILE,
    FollowSchedule,
    read_schedule,
    schedule_of_round,
)
from sampleforge.run.folder.checkpoint import CheckpointStore
from sampleforge.run.session import Session
from sampleforge.tools.pbt.across_runs import Population
from sampleforge.tools.pbt.member_change import MemberRules
from sampleforge.tools.pbt.published import run_folder
from sampleforge.tools.pbt.settings import PopulationSettings
from sampleforge.topologies.config import AppoConfig
from tests.support.callbacks import Warnings
from tests.support.jobs import JobsAtOnce


def event(name: str, member: str, number: int, env_steps: int, **more: Any) -> dict[str, Any]:
    rate = {"hyperparameters": {"learning_rate": more.pop("rate", 0.0)}}
    return {"event": name, "member": member, "round": number, "env_steps": env_steps} | more | rate


EVENTS = [
    event("start", "0", 0, 0, rate=1.0, seed=70),
    event("start", "1", 0, 0, rate=2.0, seed=71),
    event("score", "1", 1, 100, rate=2.0, at=90),
    event("explore", "1", 1, 100, rate=3.0, at=90),
    event("score", "1", 2, 200, rate=3.0, at=170),
    event("explore", "1", 2, 200, rate=4.0, at=170),  # after member 0 has copied round 2
    event("score", "0", 1, 130, rate=1.0, at=120),
    event("exploit", "0", 1, 130, donor="1", donor_env_steps=200, donor_round=2, at=170, rate=3.0),
    event("explore", "0", 1, 130, rate=3.5, at=170),
    event("score", "0", 2, 230, rate=3.5, at=250),
    event("explore", "0", 2, 230, rate=9.0, at=250),  # after what was published in round 2
]


def steps_and_rates(schedule: dict[str, Any]) -> list[tuple[int, float]]:
    changes = schedule["changes"]
    return [(each["env_steps"], each["hyperparameters"]["learning_rate"]) for each in changes]


def test_a_schedule_has_what_led_to_the_published_weights() -> None:
    found = schedule_of_round(EVENTS, "0", 2, "appo")
    assert steps_and_rates(found) == [(0, 2.0), (90, 3.0), (170, 3.5)]
    assert (found["seed"], found["env_steps"]) == (71, 250)
    assert steps_and_rates(schedule_of_round(EVENTS, "0", 1, "appo")) == [(0, 1.0)]


def test_without_a_learner_s_count_a_copy_s_env_steps_go_on_from_the_donor_s() -> None:
    sampled = [{name: v for name, v in each.items() if name != "at"} for each in EVENTS]
    found = schedule_of_round(sampled, "0", 2, "apex")
    assert steps_and_rates(found) == [(0, 2.0), (100, 3.0), (200, 3.5)]
    assert found["env_steps"] == 300, "100 of its own after the 200 of its donor"


def test_a_lineage_without_the_round_has_no_schedule() -> None:
    with pytest.raises(ValueError, match="no score of member 0 in round 7"):
        schedule_of_round(EVENTS, "0", 7, "appo")


CONFIG = AppoConfig(
    env="CartPole-v1",
    serial=True,
    quiet=True,
    async_rl=False,
    train_for_env_steps=3200,
    num_workers=1,
    num_envs_per_worker=8,
    rollout=32,
    batch_size=256,
    num_epochs=1,
    model=ModelConfig(hidden_sizes=(16,)),
)
RULES = MemberRules(
    period=800,
    start=0,
    exploit=ExploitRule(replaced=0.5, donors=0.5),
    explore=ExploreRule(1.0, {"learning_rate": Parameter()}, steps=(1.5,)),
    turns=False,
    seed=5,
)


def population(folder: Path, rules: MemberRules, size: int) -> dict[str, Any]:
    """Train a population of so many runs, one at a time; returns its result."""
    folder.mkdir()
    settings = PopulationSettings(size, CONFIG, rules, {"learning_rate": (1e-4, 1e-2)})
    members = Population(settings, folder, JobsAtOnce(limit=1))
    while not members.done:
        members.step()
    return members.summary()


def latest(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors, and the plain values of the learner, of the newest checkpoint of a run."""
    found = CheckpointStore(run / "checkpoints", 1).load(log=print)
    assert found is not None
    return found[0].tensors, found[0].state["learner"]


def replay(folder: Path, schedule: Path) -> None:
    """Train one run with a schedule, whose seed it takes."""
    config = replace(CONFIG, run_dir=str(folder), schedule=str(schedule))
    assert train(replace(config, train_for_env_steps=10**9)).summary["status"] == "finished"


@pytest.mark.long
def test_a_member_that_has_changed_nothing_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    result = population(tmp_path / "population", replace(RULES, start=10**9), 1)
    replay(tmp_path / "replay", tmp_path / "population" / SCHEDULE_FILE)
    tensors, learner = latest(tmp_path / "population" / result["run_dir"])
    replayed, after = latest(tmp_path / "replay")
    assert after["env_steps"] == learner["env_steps"]
    assert tensors.keys() == replayed.keys()
    assert all(torch.equal(tensor, replayed[name]) for name, tensor in tensors.items())


@pytest.mark.long
def test_the_schedule_of_a_member_that_has_copied_is_replayed_by_one_run(tmp_path: Path) -> None:
    folder, path = tmp_path / "population", tmp_path / "s.json"
    result = population(folder, RULES, 2)
    events = lineage.read(folder / lineage.FILE)
    last = {each["member"]: each["round"] for each in events if each["event"] == "score"}
    best = result["best"]
    of_best = schedule_of_round(events, best, last[best], "appo")
    assert json.loads((folder / SCHEDULE_FILE).read_text()) == of_best
    copied = [each["member"] for each in events if each["event"] == "exploit"][-1]
    path.write_text(json.dumps(schedule_of_round(events, copied, last[copied], "appo")))
    schedule = read_schedule(path)
    steps = [change.env_steps for change in schedule.changes]
    assert len(steps) >= 2 and steps == sorted(set(steps))
    _, learner = latest(run_folder(folder, copied))
    assert schedule.env_steps == learner["env_steps"] > steps[-1]
    assert schedule.changes[-1].hyperparameters == learner["hyperparameters"]
    starts = {each["seed"]: each["hyperparameters"] for each in events if each["event"] == "start"}
    assert schedule.changes[0].hyperparameters == starts[schedule.seed]
    replay(tmp_path / "replay", path)
    _, after = latest(tmp_path / "replay")
    assert after["hyperparameters"] == learner["hyperparameters"]
    assert 0 <= after["env_steps"] - schedule.env_steps < 256, "it ends with the schedule"


def test_what_a_schedule_sets_is_not_changed_on_a_resume(tmp_path: Path) -> None:
    path, run = tmp_path / SCHEDULE_FILE, str(tmp_path / "run")
    changes = [{"env_steps": 0, "hyperparameters": {"learning_rate": 1e-3}}]
    path.write_text(json.dumps({"algo": "appo", "changes": changes}))
    config = replace(CONFIG, run_dir=run, schedule=str(path), train_for_env_steps=500)
    train(config)
    config = replace(config, train_for_env_steps=1000)
    with pytest.raises(ConfigError, match=r"--learning-rate 1e-05: .* it follows --schedule"):
        train(replace(config, learning_rate=1e-5))
    with (
        Trainer(replace(config, max_grad_norm=3.0)) as trainer,
        pytest.raises(ConfigError, match="hyperparameters follow --schedule"),
    ):
        trainer.restore(run)


def test_a_schedule_for_another_algorithm_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SCHEDULE_FILE
    path.write_text(json.dumps(schedule_of_round(EVENTS, "0", 2, "apex")))
    with pytest.raises(ConfigError, match="it is a schedule for apex, not for appo"):
        replay(tmp_path / "replay", path)


def by_hand(path: Path, changes: Mapping[int, Any]) -> AppoConfig:
    """Write a schedule; return the config of a run that follows it. ``changes``: hyperparameters by
    env steps."""
    entries = [{"env_steps": at, "hyperparameters": new} for at, new in changes.items()]
    path.write_text(json.dumps({"changes": entries}))
    return replace(CONFIG, run_dir=str(path.parent / "run"), schedule=str(path))


def told_of(config: AppoConfig) -> list[str]:
    """The warnings at the beginning of a run."""
    told = Warnings()
    with Session(config, [told, *population_callbacks(config)]):
        return told.warnings


def test_what_a_schedule_changes_without_effect_is_named(tmp_path: Path) -> None:
    usual = {"vtrace_c": 1.0, "lr_target_kl": 0.008}  # as that of a population has them
    changes = {0: {"learning_rate": 1e-3, **usual}, 600: {"vtrace_rho": 0.5, "learning_rate": 1e-4}}
    config = by_hand(tmp_path / "s.json", changes)
    expected = "vtrace_rho has no effect: it is for --advantage vtrace, and gae was chosen"
    assert told_of(config) == [f"--schedule {tmp_path / 's.json'}: {expected}"]
    vtrace = replace(config, advantage="vtrace", run_dir=str(tmp_path / "vtrace"))
    assert told_of(replace(vtrace, learning_rate=1e-3)) == []
    other = replace(vtrace, learning_rate=2e-3, run_dir=str(tmp_path / "other"))
    (overridden,) = told_of(other)
    assert "--learning-rate 0.002 has no effect: the file begins with 0.001" in overridden


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("clip_ratio", -0.5, "--clip-ratio -0.5: must be above 0; correct the file"),
        ("gamma", float("nan"), "--gamma nan: must be at least 0"),
        ("clip_ratio", True, "clip_ratio: True must be a number"),
        ("learning_rate", None, "--learning-rate None: must be a number; its default is 0.0005"),
        ("exploration_coeff", None, "--exploration-coeff None: must be a number"),
        ("env.bonus", None, "env.bonus is None, and must be a finite number"),
        ("env.bonus", float("inf"), "env.bonus is inf, and must be a finite number"),
    ],
)
def test_a_value_that_cannot_be_had_is_refused_before_the_run(
    name: str, value: Any, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.json"
    later = {500: {"value_clip": None, "clip_ratio": 0.1}, 40_960: {name: value}}
    config = by_hand(path, {0: {"learning_rate": 1e-3}, **later})
    config = replace(config, env="tests.support.reward_envs:ShapedEnv")
    text = f"--schedule {path}: its change at 40,960 env steps: "
    with pytest.raises(ConfigError, match=f"{re.escape(text)}.*{re.escape(why)}"):
        told_of(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ("{env_steps: 0, hyperparameters: {gamma: fast}}", "gamma is 'fast' at 0 env steps, and"),
        ("{env_steps: 0, hyperparameters: {gamma: [1]}}", "gamma is .1. at 0 env steps, and must"),
        (
            "{env_steps: 0, hyperparameters: [gamma]}",
            "the hyperparameters at 0 env steps are .'gamma'.",
        ),
        ("{env_steps: .inf, hyperparameters: {gamma: 1}}", "cannot convert float infinity"),
        ("{env_steps: 0, env_steps: 9, hyperparameters: {}}", "env_steps is given twice .line 2."),
        (
            "{env_steps: 0, hyperparameters: {clip-ratio: 1, clip_ratio: 2}}",
            "the hyperparameters at 0 env steps: clip_ratio is given twice",
        ),
    ],
)
def test_what_is_no_schedule_is_refused(changes: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"changes:\n  - {changes}\n")
    with pytest.raises(ConfigError, match=f"s.yaml: {why}.*; give a file such as"):
        read_schedule(path)


def test_a_schedule_in_json_that_has_a_key_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"changes": [],\n"changes": []}')
    with pytest.raises(ConfigError, match=r"s\.json: changes is given twice \(lines 1 and 2\)"):
        read_schedule(path)


MADE: dict[int, Any] = {
    0: {"learning_rate": 1e-3},
    200: {"clip_ratio": 0.25},
    400: {"learning_rate": 2e-4},
}
"""The changes that `part_of_a_run` has made."""


def part_of_a_run(path: Path) -> AppoConfig:
    """Train the first part of a run with the schedule `MADE`, and one change more to come; return
    its config with a later end."""
    config = by_hand(path, {**MADE, 10**6: {"gamma": 0.5}})
    train(replace(config, train_for_env_steps=1000))
    assert latest(path.parent / "run")[1]["tag"]["change"] == 2
    return replace(config, train_for_env_steps=2500)


@pytest.mark.long
@pytest.mark.parametrize(
    ("edited", "why"),
    [
        (
            {**MADE, 100: {"gae_lambda": 0.5}},
            "the change at 200 env steps, and the file has one at 100 env steps in its place",
        ),
        (
            {0: MADE[0], 400: MADE[400], 1500: {"gamma": 0.9}},
            "the change at 200 env steps, and the file has one at 400 env steps in its place",
        ),
        (
            {**MADE, 400: {"learning_rate": 3e-4}},
            "the change at 400 env steps, and the file has other values in its place",
        ),
        (
            {**MADE, 0: {"learning_rate": 3e-4}},
            "the change at 0 env steps, and the file has other values in its place",
        ),
        (
            {0: MADE[0], 200: MADE[200]},
            "the change at 400 env steps, and the file no longer has it; undo that",
        ),
    ],
)
def test_a_schedule_whose_changes_were_made_and_are_others_now_is_refused(
    edited: dict[int, Any], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.json"
    config = part_of_a_run(path)
    by_hand(path, dict(sorted(edited.items())))
    with pytest.raises(ConfigError, match=f"the run has made {why}"):
        train(config)


@pytest.mark.long
def test_changes_to_come_may_be_edited_on_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    config = part_of_a_run(path)
    path.write_text(
        "changes:\n"
        "  - {env_steps: 0, hyperparameters: {learning-rate: 1e-3}}\n"
        "  - {env_steps: 200, hyperparameters: {clip_ratio: .25}}\n"
        "  - {env_steps: 400, hyperparameters: {learning_rate: 2e-4}}\n"
        "  - {env_steps: 500, hyperparameters: {gae_lambda: 0.5}}\n"
        "  - {env_steps: 1500, hyperparameters: {gamma: 0.75}}\n"
    )
    train(config)
    learner = latest(tmp_path / "run")[1]
    found = learner["hyperparameters"]
    names = ("learning_rate", "clip_ratio", "gae_lambda", "gamma")
    assert [found[name] for name in names] == [2e-4, 0.25, 0.5, 0.75]
    assert learner["tag"]["change"] == 4


@pytest.mark.long
def test_a_checkpoint_that_does_not_say_which_changes_were_made_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.json"
    with monkeypatch.context() as earlier:
        earlier.setattr(FollowSchedule, "checkpoint_state", lambda self, session: {})
        config = part_of_a_run(path)
    by_hand(path, {**MADE, 400: {"learning_rate": 3e-4}, 1500: {"gamma": 0.75}})
    train(config)
    found = latest(tmp_path / "run")[1]["hyperparameters"]
    assert (found["learning_rate"], found["gamma"]) == (2e-4, 0.75)
