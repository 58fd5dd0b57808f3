"""The member of a population of runs: what it takes from a donor, and what stays its own."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.populations import lineage
from sampleforge.populations.rounds import ExploitRule, ExploreRule, MemberChange, Parameter
from sampleforge.run.callback import Callback
from sampleforge.run.folder.checkpoint import Checkpoint, CheckpointStore
from sampleforge.run.session import Session
from sampleforge.tools.pbt.member import MemberJob, MemberRun
from sampleforge.tools.pbt.member_change import MemberRules, changed_checkpoint, decide
from sampleforge.tools.pbt.published import Published, lineage_file, run_folder
from sampleforge.topologies.config import AnyConfig, ApexConfig, AppoConfig, DdppoConfig

RULES = MemberRules(
    period=1000,
    start=0,
    exploit=ExploitRule(replaced=0.5, donors=0.5),
    explore=ExploreRule(1.0, {"learning_rate": Parameter()}, steps=(2.0,)),
    turns=True,
    seed=3,
)


def checkpoint(value: float, **learner: Any) -> Checkpoint:
    tensors = {
        "model/w": torch.tensor([value]),
        "optimiser/0/step": torch.tensor([value]),
        "rng/minibatches": torch.tensor([value]),
    }
    state = {
        "env_steps": int(1000 * value),
        "wall_s": value,
        "resumes": int(value),
        "milestone": True,
        "learner": {
            "version": int(10 * value),
            "learning_rate": 0.001 * value,
            "hyperparameters": {"learning_rate": 0.001 * value, "gamma": 0.9, "value_clip": None},
            "limiter": value,
            **learner,
        },
        "statistics": {
            "episodes": 7,
            "returns": [value] * 5,
            "lengths": [1] * 5,
            "updates": 1,
            "custom_metrics": {"env_success": [value] * 5},
        },
        **{"return_mean": value, "eval_return_mean": value, "eval_env_steps": 3, "replay": None},
    }
    return Checkpoint(tensors, state)


def state(member: str, objective: float | None, env_steps: int = 5000) -> Published:
    return Published(
        *(member, 3, env_steps, 1.0, objective, 5, f"{env_steps:012d}-{'0' * 16}.safetensors"),
        hyperparameters={"learning_rate": 0.1, "value_clip": None},
    )


def changed(
    donor: bool, explores: bool, rules: MemberRules = RULES, **learner: Any
) -> tuple[Checkpoint | None, list[dict[str, Any]]]:
    own, other = checkpoint(1.0), checkpoint(3.0, **learner)
    rng = np.random.default_rng(0)
    copied = (state("1", 3.0), other) if donor else None
    rule = rules.explore if explores else None
    return changed_checkpoint((state("0", 1.0), own), copied, rule, rng, AppoConfig())


def test_a_copy_has_the_donor_s_weights_and_the_rest_of_its_own() -> None:
    result, events = changed(donor=True, explores=False)
    assert result is not None
    assert result.tensors["model/w"] == 3.0 and result.tensors["optimiser/0/step"] == 3.0
    assert result.tensors["rng/minibatches"] == 1.0, "members with one seed would be one member"
    assert (result.state["env_steps"], result.state["resumes"]) == (1000, 1)
    assert result.state["learner"]["limiter"] == 1.0
    assert [event["event"] for event in events] == ["exploit"]


def test_a_copy_has_no_episodes_of_the_donor_or_of_before() -> None:
    result, _ = changed(donor=True, explores=False)
    assert result is not None
    statistics = result.state["statistics"]
    assert statistics["returns"] == [] and statistics["lengths"] == []
    assert statistics["custom_metrics"] == {}, "they are those of the weights before"
    assert statistics["episodes"] == 7 and result.state["eval_return_mean"] is None
    assert statistics["return_best"] is None
    assert statistics["copies"] == result.state["copies"] == 1, "earlier checkpoints rank below"


def test_a_copy_begins_its_self_play_anew() -> None:
    """The results are those of the weights before; the donor's snapshots are in its own folder."""
    own, other = checkpoint(1.0), checkpoint(3.0)
    for each in (own, other):
        each.state["self_play"] = {"games": 7}
    mine, rng = (state("0", 1.0), own), np.random.default_rng(0)
    copy_of, _ = changed_checkpoint(mine, (state("1", 3.0), other), None, rng, AppoConfig())
    assert copy_of is not None and "self_play" not in copy_of.state
    perturbed, _ = changed_checkpoint(mine, None, RULES.explore, rng, AppoConfig())
    assert perturbed is not None and perturbed.state["self_play"] == {"games": 7}


def test_the_version_is_above_both() -> None:
    for own, other in ((1.0, 3.0), (3.0, 1.0)):
        result, _ = changed_checkpoint(
            (state("0", 1.0), checkpoint(own)),
            (state("1", 3.0), checkpoint(other)),
            None,
            np.random.default_rng(0),
            AppoConfig(),
        )
        assert result is not None and result.state["learner"]["version"] == 31


def test_the_mutated_learning_rate_is_not_overwritten_by_the_donor_s() -> None:
    result, events = changed(donor=True, explores=True)
    assert result is not None
    learner = result.state["learner"]
    assert learner["hyperparameters"]["learning_rate"] == pytest.approx(0.006)
    assert learner["learning_rate"] == pytest.approx(0.006)
    assert events[1]["changed"] == {"learning_rate": [0.003, pytest.approx(0.006)]}
    assert events[0]["hyperparameters"]["learning_rate"] == 0.003


def test_a_schedule_s_present_rate_changes_by_the_same_factor() -> None:
    result, _ = changed(donor=True, explores=True, learning_rate=0.0005)
    assert result is not None
    assert result.state["learner"]["learning_rate"] == pytest.approx(0.001)


def test_a_perturbed_member_keeps_its_weights_and_episodes() -> None:
    result, events = changed(donor=False, explores=True)
    assert result is not None and result.tensors["model/w"] == 1.0
    assert result.state["statistics"]["returns"] == [1.0] * 5 and result.state["copies"] == 0
    assert [event["event"] for event in events] == ["explore"]


def test_nothing_is_written_if_no_hyperparameter_changes() -> None:
    rules = replace(RULES, explore=ExploreRule(0.0, {"learning_rate": Parameter()}))
    assert changed(donor=False, explores=True, rules=rules) == (None, [])


def test_a_copy_s_learner_counts_the_env_steps_that_have_led_to_its_weights() -> None:
    own, other = checkpoint(1.0, env_steps=900), checkpoint(3.0, env_steps=2700)
    donor = replace(state("1", 3.0), learned=2700), other
    rng = np.random.default_rng(0)
    mine = replace(state("0", 1.0), learned=900), own
    result, events = changed_checkpoint(mine, donor, RULES.explore, rng, AppoConfig())
    assert result is not None and result.state["learner"]["env_steps"] == 2700
    assert [(event["env_steps"], event["at"]) for event in events] == [(1000, 2700)] * 2
    result, events = changed_checkpoint(mine, None, RULES.explore, rng, AppoConfig())
    assert result is not None and result.state["learner"]["env_steps"] == 900
    assert events[0]["at"] == 900


def test_reward_shaping_numbers_are_copied_and_perturbed_with_the_rest() -> None:
    own = checkpoint(1.0, tag={"shaping": {"env.bonus": 1.0, "env.cost": 2.0}})
    other = checkpoint(3.0, tag={"shaping": {"env.bonus": 3.0, "env.cost": 4.0}, "change": 7})
    rules = replace(RULES, explore=ExploreRule(1.0, {"env.bonus": Parameter()}, steps=(2.0,)))
    rng = np.random.default_rng(0)
    copied = (state("1", 3.0), other)
    result, events = changed_checkpoint(
        (state("0", 1.0), own), copied, rules.explore, rng, AppoConfig()
    )
    assert result is not None
    learner = result.state["learner"]
    assert learner["tag"] == {"shaping": {"env.bonus": 6.0, "env.cost": 4.0}}
    assert not [name for name in learner["hyperparameters"] if name.startswith("env.")]
    assert events[1]["changed"] == {"env.bonus": [3.0, 6.0]}


def test_no_checkpoint_is_changed_in_place() -> None:
    own, other = checkpoint(1.0), checkpoint(3.0)
    before = copy.deepcopy((own.state, other.state))
    changed_checkpoint(
        (state("0", 1.0), own),
        (state("1", 3.0), other),
        RULES.explore,
        np.random.default_rng(0),
        AppoConfig(),
    )
    assert (own.state, other.state) == before


def test_a_member_decides_on_what_is_there() -> None:
    """Some have published nothing yet, and some have died long ago: no member waits for them."""
    worst = {"0": state("0", 1.0), "7": state("7", 9.0, env_steps=10)}
    assert decide("0", 1, worst, RULES) == MemberChange("7", True)
    assert decide("7", 1, worst, RULES) is None
    assert decide("0", 1, {"0": state("0", 1.0)}, RULES) is None
    assert decide("0", 1, {"0": state("0", None), "7": state("7", 9.0)}, RULES) is None
    assert decide("0", 1, {"0": state("0", 1.0), "7": state("7", None)}, RULES) is None


def small(folder: Path, make: type[Any], member: str, seed: int) -> AnyConfig:
    more: dict[str, Any] = {"learning_starts": 200} if make is ApexConfig else {}
    if make is DdppoConfig:
        more = {"num_ranks": 1}
    else:
        more |= {"num_workers": 1}
    return make(
        env="CartPole-v1",
        run_dir=str(run_folder(folder, member)),
        seed=seed,
        serial=True,
        quiet=True,
        train_for_env_steps=6000,
        num_envs_per_worker=8,
        **more,
    )


def weights(folder: Path, member: str) -> Checkpoint:
    store = CheckpointStore(run_folder(folder, member) / "checkpoints", 3)
    found = store.load(log=lambda text: None)
    assert found is not None
    return found[0]


@pytest.mark.long
@pytest.mark.parametrize("make", [AppoConfig, ApexConfig, DdppoConfig])
def test_members_of_every_topology_copy_and_go_on(tmp_path: Path, make: type[Any]) -> None:
    """Two members take turns. After each round of the worse one its weights are the donor's, its
    env steps, seeds and hyperparameters its own."""
    runs = {
        member: MemberJob(tmp_path, member, small(tmp_path, make, member, seed), RULES)
        for member, seed in (("0", 1), ("1", 2))
    }
    ends = []
    for _ in range(8):
        for member, job in runs.items():
            if (member, "finished") not in ends:
                ends.append((member, MemberRun(job).run()))
    assert ("0", "finished") in ends and ("1", "finished") in ends
    events = [e for m in runs for e in lineage.read(lineage_file(tmp_path, m))]
    copies = [event for event in events if event["event"] == "exploit"]
    assert copies, "the worse of two copies the better one in every round"
    scores = {(e["member"], e["round"]) for e in events if e["event"] == "score"}
    assert all((copy["member"], copy["round"]) in scores for copy in copies)
    for member in runs:
        own = [e for e in events if e["member"] == member]
        assert own[0]["event"] == "start"
        steps = [event["env_steps"] for event in own]
        assert steps == sorted(steps)
        final = weights(tmp_path, member)
        last = own[-1]["hyperparameters"]
        assert final.state["learner"]["hyperparameters"] == last


def test_a_member_with_a_small_window_of_episodes_is_rated(tmp_path: Path) -> None:
    config = replace(small(tmp_path, AppoConfig, "0", 1), metrics_window=4)
    assert MemberRun(MemberJob(tmp_path, "0", config, RULES)).run() == "stopped"
    (score,) = (e for e in lineage.read(lineage_file(tmp_path, "0")) if e["event"] == "score")
    assert score["episodes"] == 4 and score["objective"] is not None


def test_events_that_a_killed_job_has_not_written_are_written_by_the_next(tmp_path: Path) -> None:
    config = small(tmp_path, AppoConfig, "0", 1)
    member = MemberRun(MemberJob(tmp_path, "0", config, replace(RULES, period=2000)))
    assert member.run() == "stopped"
    found = member.store.load(log=print)
    assert found is not None
    own = found[0]
    events = [
        {
            **{"event": "explore", "member": "0", "round": 1, "env_steps": 2000, "wall_s": 1.0},
            **{"changed": {}, "hyperparameters": {}},
        }
    ]
    own.state["across_runs"] = {"round": 1, "events": events}
    member.store.save(own, env_steps=2000, version=10**6, return_mean=None)
    own.state["learner"]["version"] = 10**6
    for _ in range(2):
        run = MemberRun(MemberJob(tmp_path, "0", config, RULES))
        run._complete_lineage()
        run._lineage.close()
    logged = [event["event"] for event in lineage.read(lineage_file(tmp_path, "0"))]
    assert logged == ["start", "score", "explore"]


def test_a_member_that_goes_on_after_its_end_skips_no_round(tmp_path: Path) -> None:
    """The end is a round, too, wherever it is."""
    config = replace(small(tmp_path, AppoConfig, "0", 1), train_for_env_steps=1500)
    job = MemberJob(tmp_path, "0", config, replace(RULES, turns=False))
    assert MemberRun(job).run() == "finished"
    longer = replace(config, train_for_env_steps=4000)
    assert MemberRun(replace(job, config=longer)).run() == "finished"
    scores = [e for e in lineage.read(lineage_file(tmp_path, "0")) if e["event"] == "score"]
    steps = [score["env_steps"] for score in scores]
    late = [got - due for got, due in zip(steps, (1000, 1500, 2000, 3000, 4000), strict=True)]
    assert all(0 <= each < 400 for each in late), steps
    assert [score["round"] for score in scores] == [1, 2, 3, 4, 5]


def job_that_will_change(root: Path) -> MemberJob:
    """The job of member 0, beside a member 1 that has published a far better first round."""
    better, job = (
        MemberJob(root, m, small(root, AppoConfig, m, int(m)), RULES) for m in ("1", "0")
    )
    assert MemberRun(better).run() == "stopped"
    path = root / "published" / "1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "objective": 1e9}))
    return job


def test_a_copy_plays_snapshots_of_its_new_weights_and_keeps_those_of_earlier_checkpoints(
    tmp_path: Path,
) -> None:
    """One of those checkpoints is used if the newest is damaged."""
    pytest.importorskip("openskill")
    league: dict[str, Any] = {"env": "PaddleDuel-v0", "opponent_pool": 3, "opponent_latest": 0.0}
    better, job = (
        MemberJob(
            *(tmp_path, member),
            replace(small(tmp_path, AppoConfig, member, int(member)), **league),
            RULES,
        )
        for member in ("1", "0")
    )
    assert MemberRun(better).run() == "stopped"
    path = tmp_path / "published" / "1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "objective": 1e9}))
    run = run_folder(tmp_path, "0")
    assert MemberRun(job).run() == "stopped"
    before = (run / "snapshots" / "0.safetensors").read_bytes()
    assert "self_play" not in weights(tmp_path, "0").state
    assert MemberRun(job).run() == "stopped"
    assert (run / "snapshots" / "0.safetensors").read_bytes() == before
    begun, *_ = json.loads((run / "self_play.json").read_text())["snapshots"]
    assert begun["number"] == 1 and begun["env_steps"] >= 1000


@pytest.mark.parametrize("killed", ["before", "after"])
def test_a_member_that_is_killed_in_a_change_makes_it_when_it_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """Before its checkpoint is written, or after it. It is made once."""
    job = job_that_will_change(tmp_path)
    member = MemberRun(job)
    save = member.store.save_state

    def die(*args: Any) -> None:
        if killed == "after":
            save(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(member.store, "save_state", die)
    with pytest.raises(KeyboardInterrupt):
        member.run()
    assert MemberRun(job).run() == "stopped"
    events = [(e["event"], e["round"]) for e in lineage.read(lineage_file(tmp_path, "0"))]
    changes = [("exploit", 1), ("explore", 1)]
    assert events[:5] == [("start", 0), ("score", 1), *changes, ("score", 2)]
    assert events[5:] in ([], [("exploit", 2), ("explore", 2)])
    assert MemberRun(job).run() == "stopped"
    again = [(e["event"], e["round"]) for e in lineage.read(lineage_file(tmp_path, "0"))]
    assert len(again) == len(set(again)) and again[: len(events)] == events


@pytest.mark.parametrize("killed", ["before", "after"])
@pytest.mark.parametrize("step", ["publish", "log"])
def test_a_member_that_is_killed_at_the_end_of_a_round_makes_its_change_when_it_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, killed: str
) -> None:
    """Before or after its state is published, or its score logged."""
    job = job_that_will_change(tmp_path)
    member = MemberRun(job)
    owner, name = (member.states, "publish") if step == "publish" else (member._lineage, "append")
    work = getattr(owner, name)

    def die(*args: Any) -> None:
        is_due = step == "publish" or args[0]["event"] == "score"
        if killed == "after" or not is_due:
            work(*args)
        if is_due:
            raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, die)
    with pytest.raises(KeyboardInterrupt):
        member.run()
    again = MemberRun(job)
    assert again.run() == "stopped"
    events = [(e["event"], e["round"]) for e in lineage.read(lineage_file(tmp_path, "0"))]
    assert events[:4] == [("start", 0), ("score", 1), ("exploit", 1), ("explore", 1)]
    assert len(events) == len(set(events))
    state = again.states.of("0")
    assert state is not None and ("score", state.round) == [e for e in events if "score" in e][-1]


class StopsEarly(Callback):
    """A callback of the user's that ends the training; ``starts`` counts its sessions."""

    starts = 0

    def on_start(self, session: Session) -> None:
        StopsEarly.starts += 1
        assert StopsEarly.starts < 3, "the member begins again and again"

    def on_poll(self, session: Session) -> None:
        if session.graph.progress.env_steps >= 1500:
            session.stop()


@pytest.mark.parametrize("turns", [False, True])
def test_a_callback_may_end_a_member(tmp_path: Path, turns: bool) -> None:
    StopsEarly.starts = 0
    config = replace(small(tmp_path, AppoConfig, "0", 1), callbacks=(f"{__name__}:StopsEarly",))
    job = MemberJob(tmp_path, "0", config, replace(RULES, turns=turns))
    statuses = [MemberRun(job).run() for _ in range(1 + turns)]
    assert statuses[-1] == "finished"
    last = lineage.read(lineage_file(tmp_path, "0"))[-1]
    assert last["event"] == "score" and 1500 <= last["env_steps"] < 3000
    assert MemberRun(job).run() == "finished" and StopsEarly.starts == 1 + turns


@pytest.mark.long
def test_a_second_job_leaves_a_finished_member_as_it_is(tmp_path: Path) -> None:
    """Until the stop condition is raised."""
    config = small(tmp_path, AppoConfig, "0", 1)
    rules = replace(RULES, period=2000, turns=False)
    job = MemberJob(tmp_path, "0", config, rules)
    assert MemberRun(job).run() == "finished"
    files = (lineage_file(tmp_path, "0"), run_folder(tmp_path, "0") / "metrics.jsonl")
    before = [path.read_text() for path in files]
    job()
    assert [path.read_text() for path in files] == before
    assert (run_folder(tmp_path, "0") / "outcome.json").is_file()
    longer = replace(config, train_for_env_steps=6000)
    assert MemberRun(replace(job, config=longer)).run() == "finished"
    scores = [e for e in lineage.read(lineage_file(tmp_path, "0")) if e["event"] == "score"]
    assert scores[-1]["env_steps"] >= 6000
