"""Population-based training in one run: deterministic, transactional, resumable, and with every
decision in its lineage."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from sampleforge.api import Trainer, train
from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.populations.lineage import read
from sampleforge.populations.rules import takes
from sampleforge.run.callback import Callback, Message
from sampleforge.run.folder.checkpoint import CheckpointStore, decode
from sampleforge.run.reports import episodes
from sampleforge.run.reports.metrics import read_metrics
from sampleforge.run.session import Session
from sampleforge.topologies.config import AnyConfig, ApexConfig, AppoConfig
from tests.support.variants import slow

MEMBERS = 4
CARTPOLE: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_envs_per_worker": 4,
    "num_policies": MEMBERS,
    "pbt": True,
    "pbt_variant": "truncation",
    "pbt_start": 1000,
    "pbt_period": 600,
    "pbt_initial": {"learning-rate": "1e-5..1e-1"},
    "report_interval": 2.0,
    "seed": 3,
}
SMALL = ModelConfig(hidden_sizes=(16,))
APPO = AppoConfig(
    **CARTPOLE,
    rollout=32,
    batch_size=128,
    num_epochs=2,
    kl_coeff=0.0,
    model=SMALL,
    serial=True,
)
APEX = ApexConfig(
    **CARTPOLE,
    rollout=16,
    learning_starts=200,
    replay_capacity=4000,
    batch_size=16,
    samples_per_insert=0.5,
    serial=True,
)


def run(config: AnyConfig, folder: Path, steps: int = 10_000, **more: Any) -> dict[str, Any]:
    """Train a population; returns the summary."""
    chosen = {"run_dir": str(folder), "train_for_env_steps": steps, **more}
    return train(dataclasses.replace(config, **chosen)).summary


def latest(folder: Path, policy: str | None = None) -> tuple[dict[str, torch.Tensor], Any]:
    """Tensors and state of the newest checkpoint."""
    path = folder / "checkpoints"
    found = CheckpointStore(path if policy is None else path / policy, 1).load(log=print)
    assert found is not None
    return found[0].tensors, found[0].state


def ids() -> list[str]:
    return [f"policy_{i}" for i in range(MEMBERS)]


def events(folder: Path) -> list[dict[str, Any]]:
    return read(folder / "lineage.jsonl")


def without_clock(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{n: v for n, v in event.items() if n != "wall_s"} for event in found]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


@pytest.mark.long
@pytest.mark.parametrize("config", [APPO, slow(APEX)], ids=["appo", "apex"])
def test_a_serial_population_run_twice_is_bit_identical(config: AnyConfig, tmp_path: Path) -> None:
    found = [run(config, tmp_path / name) for name in "ab"]
    lineages = [without_clock(events(tmp_path / name)) for name in "ab"]
    assert lineages[0] == lineages[1]
    kinds = Counter(event["event"] for event in lineages[0])
    assert kinds["exploit"] >= 3 and kinds["explore"] >= 3
    for policy in ids():
        (one, first), (two, second) = (latest(tmp_path / name, policy) for name in "ab")
        assert equal(one, two)
        assert first["learner"] == second["learner"]
    assert found[0]["best"] == found[1]["best"]
    assert found[0]["copies"] == kinds["exploit"]
    assert found[0]["mutations"] == kinds["explore"]
    other = run(config, tmp_path / "c", seed=4)
    assert without_clock(events(tmp_path / "c")) != lineages[0] and other["seed"] == 4


@pytest.mark.long
def test_the_schedule_of_every_member_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    """By one run with one policy, in the same environments, from the first step to the last."""
    from sampleforge.populations.schedule import schedule_of

    run(APPO, tmp_path / "population", steps=16_000)
    found = events(tmp_path / "population")
    copied = 0
    for policy in ids():
        tensors, state = latest(tmp_path / "population", policy)
        learned = state["learner"]["env_steps"]
        schedule = schedule_of(found, policy, "appo", learned)
        copied += any("segment" in change for change in schedule["changes"])
        path = tmp_path / f"{policy}.json"
        path.write_text(json.dumps(schedule))
        alone = dataclasses.replace(APPO, pbt=False, num_policies=1, seed=None, pbt_initial={})
        summary = run(alone, tmp_path / policy, 10**9, schedule=str(path))
        replayed, after = latest(tmp_path / policy)
        assert after["learner"]["env_steps"] == learned
        assert after["learner"]["hyperparameters"] == state["learner"]["hyperparameters"]
        assert equal(tensors, replayed), f"{policy} was not replayed"
        assert summary["status"] == "finished"
    assert copied >= 2


@pytest.mark.long
def test_the_run_folder_has_the_schedule_of_the_best_member(tmp_path: Path) -> None:
    summary = run(APPO, tmp_path)
    schedule = json.loads((tmp_path / "schedule.json").read_text())
    assert schedule["member"] == summary["best"] and schedule["changes"][0]["env_steps"] == 0
    learner = latest(tmp_path, summary["best"])[1]["learner"]
    assert schedule["env_steps"] == learner["env_steps"]
    last = schedule["changes"][-1]["hyperparameters"]
    assert last == learner["hyperparameters"]


def test_a_benchmark_makes_no_rounds_and_counts_no_steps_of_the_simulator_alone(
    tmp_path: Path,
) -> None:
    counted: list[int] = []
    said: list[str] = []

    class Steps(Callback):
        def on_message(self, session: Session, message: Message) -> None:
            said.append(message.text)

        def on_start(self, session: Session) -> None:
            boards = [group.member.board for group in session.graph.groups if group.member]
            counted.extend(board.sampled for board in boards)

    settings = {**CARTPOLE, "benchmark": True, "benchmark_seconds": 0.3, "run_dir": str(tmp_path)}
    summary = train(AppoConfig(**settings, serial=True), [Steps()]).summary
    assert "--pbt: members are measured as they begin, without rounds" in said
    assert counted == [0] * MEMBERS and summary["env_steps"] > 0
    assert summary["copies"] == summary["mutations"] == 0
    assert not (tmp_path / "lineage.jsonl").exists()


@pytest.mark.long
def test_a_lineage_says_what_was_done(tmp_path: Path) -> None:
    run(APPO, tmp_path)
    found = events(tmp_path)
    starts = [event for event in found if event["event"] == "start"]
    assert [event["member"] for event in starts] == ids()
    exponents = sorted(np.log10(event["hyperparameters"]["learning_rate"]) for event in starts)
    for stratum, exponent in enumerate(exponents):
        assert stratum - 5 <= exponent <= stratum - 4
    current = {event["member"]: event["hyperparameters"] for event in starts}
    for event in found:
        own, after = current[event["member"]], event["hyperparameters"]
        if event["event"] == "score":
            assert after == own
        elif event["event"] == "exploit":
            assert after == current[event["donor"]], "those of the donor are copied"
            assert event["donor_objective"] > event["objective"]
        elif event["event"] == "explore":
            assert {n: [own[n], after[n]] for n in after if after[n] != own[n]} == event["changed"]
        current[event["member"]] = after
    for policy in ids():
        learner = latest(tmp_path, policy)[1]["learner"]
        assert learner["hyperparameters"] == current[policy], "what the lineage says is so"
    rounds = [event["round"] for event in found]
    assert rounds == sorted(rounds) and max(rounds) >= 3
    scores = Counter(e["round"] for e in found if e["event"] == "score")
    assert set(scores.values()) == {MEMBERS}, "each member in each round"


@pytest.mark.long
def test_a_copy_is_rated_by_its_own_episodes_only(tmp_path: Path) -> None:
    """After a copy the objective is unknown until enough episodes have begun and ended since."""
    run(APPO, tmp_path, steps=16_000, pbt_period=300)
    found = events(tmp_path)
    last_copy: dict[str, int] = {}
    checked = 0
    for event in found:
        member = event["member"]
        if event["event"] == "exploit":
            last_copy[member] = event["env_steps"]
        elif event["event"] == "score" and member in last_copy and event["objective"] is not None:
            own = event["env_steps"] - last_copy[member]
            assert event["episodes"] >= 10
            # The first episode of each of the 4 rows is not counted, and the others are its own.
            assert event["objective"] * event["episodes"] <= own
            checked += 1
    assert checked >= 2


@pytest.mark.long
def test_the_best_checkpoint_of_a_member_has_the_weights_of_its_last_copy(tmp_path: Path) -> None:
    """Each checkpoint says how many copies have been made by then, or are on their way; no rating
    is one of weights before a copy."""
    often = {"metrics_window": 5, "pbt_period": 900, "milestone_interval": 600}
    assert run(APPO, tmp_path, steps=16_000, **often)["copies"] >= 3

    def segment(state: Any) -> int:
        number: int = state["learner"].get("tag", {}).get("segment", [0])[0]
        return number

    rated = 0
    for policy in ids():
        store = CheckpointStore(tmp_path / "checkpoints" / policy, 1)
        newest, best = store.load(log=print), store.load("best", log=print)
        assert newest is not None and best is not None
        assert segment(best[0].state) == segment(newest[0].state)
        for file in store.folder.glob("*.safetensors"):
            state = decode(file.read_bytes()).state
            assert state["copies"] in (segment(state), segment(state) + 1)
            if state["return_mean"] is not None:
                assert state["copies"] == segment(state)
                rated += segment(state) > 0
    assert rated >= 3


@pytest.mark.long
def test_episodes_csv_tells_own_episodes_from_those_of_replaced_weights(tmp_path: Path) -> None:
    """The last point of each member's curve is the mean of its reports, also after a resume."""
    checked = 0
    for steps in (12_000, 16_000):
        summary = run(APPO, tmp_path, steps=steps, metrics_window=20, pbt_period=900)
        header, rows = episodes.read_rows(tmp_path / "episodes.csv")
        for policy in ids():
            copies = latest(tmp_path, policy)[1]["copies"]
            own = [row for row in rows if row["policy"] == policy and row["copies"] == str(copies)]
            if not own:
                continue  # its own have not begun: what the reports have is about to be forgotten
            last = episodes.mean_returns(header, rows, 20, policy)["return_mean"][-1]
            assert last == pytest.approx(summary["policies"][policy]["return_mean"])
            assert summary["policies"][policy]["return_episodes"] == min(20, len(own))
            checked += copies > 0
    assert checked >= 3


@pytest.mark.long
def test_a_population_goes_on_from_its_checkpoint_as_if_it_had_not_ended(tmp_path: Path) -> None:
    run(APPO, tmp_path, steps=8_000)
    before = events(tmp_path)
    states = {policy: latest(tmp_path, policy)[1] for policy in ids()}
    seen: dict[str, Any] = {}

    class Looking(Callback):
        def on_start(self, session: Session) -> None:
            for policy in session.statistics.policies:
                seen[policy.id] = list(policy.returns)

    config = dataclasses.replace(APPO, run_dir=str(tmp_path), train_for_env_steps=16_000)
    summary = train(config, callbacks=[Looking()]).summary
    after = events(tmp_path)
    assert after[: len(before)] == before
    assert max(e["round"] for e in after) > max(e["round"] for e in before)
    assert not [e for e in after[len(before) :] if e["event"] == "start"]
    for policy, state in states.items():
        assert seen[policy] == state["statistics"]["returns"], "the objective goes on"
        of_member = [e["env_steps"] for e in after if e["member"] == policy]
        assert of_member == sorted(of_member)
    assert summary["copies"] == sum(e["event"] == "exploit" for e in after)
    assert summary["mutations"] == sum(e["event"] == "explore" for e in after)
    assert [e["wall_s"] for e in after] == sorted(e["wall_s"] for e in after)


@pytest.mark.long
def test_the_random_generator_of_decisions_goes_on_after_a_resume(tmp_path: Path) -> None:
    run(APPO, tmp_path, steps=6_000)
    stored = latest(tmp_path, "policy_0")[1]["population"]["rng"]
    states = []

    class Looking(Callback):
        def on_checkpoint(self, session: Session, env_steps: int) -> None:
            states.append(session.callback_state()["population"]["rng"])

    config = dataclasses.replace(APPO, run_dir=str(tmp_path), train_for_env_steps=6_001)
    with Trainer(config, callbacks=[Looking()]) as trainer:
        trainer.save()
    assert states[0] == stored


@pytest.mark.long
def test_events_after_the_checkpoint_are_undone_by_a_resume(tmp_path: Path) -> None:
    run(APPO, tmp_path, steps=6_000)
    kept = events(tmp_path)
    with (tmp_path / "lineage.jsonl").open("a") as file:
        for event in kept[-3:]:  # as of a run that was killed before its next checkpoint
            file.write(json.dumps({**event, "round": 99}) + "\n")
        file.write('{"event": "sc')
    run(APPO, tmp_path, steps=10_000)
    after = events(tmp_path)
    assert after[: len(kept)] == kept and max(e["round"] for e in after) < 99


@pytest.mark.long
def test_a_member_whose_newest_checkpoint_was_not_written_goes_on_from_the_one_before(
    tmp_path: Path,
) -> None:
    """A kill between the checkpoints of two members leaves them of different ages."""
    run(APPO, tmp_path, steps=6_000)
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(checkpoints, tmp_path / "older")
    old = {policy: latest(tmp_path, policy)[1] for policy in ids()}
    run(APPO, tmp_path, steps=12_000)

    def changes(state: Any, policy: str) -> int:
        return int(state["population"]["members"][policy]["number"])

    late = max(ids(), key=lambda p: changes(latest(tmp_path, p)[1], p) - changes(old[p], p))
    assert changes(latest(tmp_path, late)[1], late) > changes(old[late], late), "nothing to undo"
    shutil.rmtree(checkpoints / late)
    (tmp_path / "older" / late).rename(checkpoints / late)
    before = events(tmp_path)

    run(APPO, tmp_path, steps=20_000)
    after = events(tmp_path)
    assert after[: len(before)] == before
    begins = [e for e in after[len(before) :] if e["event"] == "start"]
    assert [e["member"] for e in begins] == [late]
    stored = old[late]["learner"]["hyperparameters"]
    assert begins[0]["hyperparameters"]["learning_rate"] == stored["learning_rate"]
    changed = [e for e in after[len(before) :] if e["event"] in ("exploit", "explore")]
    assert {e["member"] for e in changed} & {late}, "it takes part in the rounds again"
    for policy in ids():  # what the lineage tells last is what the learners have
        own_events = [e for e in after if e.get("member") == policy]
        learner = latest(tmp_path, policy)[1]["learner"]
        told = own_events[-1]["hyperparameters"]["learning_rate"]
        assert learner["hyperparameters"]["learning_rate"] == told


@pytest.mark.long
def test_a_reference_member_keeps_its_weights_and_hyperparameters(tmp_path: Path) -> None:
    config = dataclasses.replace(APPO, pbt_variant="sample-factory", pbt_perturb_chance=1.0)
    run(config, tmp_path, pbt_reference=2, pbt_relative_gap=0.0)
    changed = {e["member"] for e in events(tmp_path) if e["event"] in ("exploit", "explore")}
    assert "policy_2" not in changed and len(changed) >= 2


@pytest.mark.long
def test_reports_summary_and_panel_have_the_population(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(APPO, tmp_path)
    last = read_metrics(tmp_path / "metrics.jsonl")[-1]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert last["copies"] == summary["copies"] and last["mutations"] == summary["mutations"]
    for policy in ids():
        learner = latest(tmp_path, policy)[1]["learner"]
        assert last[f"{policy}/pbt_learning_rate"] == learner["hyperparameters"]["learning_rate"]
    copied = [e for e in events(tmp_path) if e["event"] == "exploit"][-1]
    assert last[f"{copied['member']}/copied_from"] == ids().index(copied["donor"])
    rated = {p: last[f"{p}/pbt_objective"] for p in ids() if f"{p}/pbt_objective" in last}
    assert rated and summary["best"] == max(rated, key=rated.__getitem__)
    assert summary["return_mean"] == rated[summary["best"]]
    own = summary["policies"][summary["best"]]
    names = ("return_mean", "return_std", "return_best", "return_episodes")
    assert [summary[name] for name in names] == [own[name] for name in names]


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["appo", "--pbt"], "--pbt --num-policies 1: the members"),
        (["appo", "--pbt", "--num-policies", "2", "--sampler-only"], "nothing is learned"),
        (["ddppo", "--pbt"], "ddppo trains one policy, whose ranks"),
        (["appo", "--pbt", "--num-policies", "2", "--pbt-reference", "2"], "from 0 to 1"),
        (["appo", "--pbt", "--pbt-initial", "gamma=1"], "must be LOW..HIGH"),
        (["appo", "--pbt", "--pbt-bounds", "gamma=.9...8"], "must be LOW..HIGH"),
        (["appo", "--schedule", "nowhere.json"], "--schedule nowhere.json: "),
        (["appo", "--schedule", "s.json", "--pbt", "--num-policies", "2"], "leave out one"),
    ],
)
def test_populations_that_cannot_be_are_refused(
    words: list[str], refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words, "--env", "CartPole-v1"]) == 2
    assert refusal in capsys.readouterr().err


def test_a_perturbed_value_is_one_that_the_members_take() -> None:
    assert takes(APPO, "learning_rate", 1e-3) and not takes(APPO, "learning_rate", -1e-3)
    assert takes(APPO, "env.bonus", -5.0)


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"pbt_perturb": ("batch-size",)}, "batch_size cannot be perturbed; these"),
        ({"pbt_initial": {"batch-size": "1..2"}}, "batch_size: cannot change during the training"),
        ({"pbt_bounds": {"gamma": "0.5..1.5"}}, "--gamma 1.5: must be at least 0 and at most 1"),
        (
            {"pbt_perturb": ("gamma",), "pbt_bounds": {"learning-rate": "1e-5..1e-3"}},
            "--pbt-bounds learning_rate: it is not perturbed, but gamma; name it",
        ),
    ],
)
def test_hyperparameters_that_cannot_change_are_refused(
    more: dict[str, Any], refusal: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=refusal):
        run(APPO, tmp_path, **more)


def test_a_population_that_ends_before_its_first_round_is_warned_of(tmp_path: Path) -> None:
    """With --pbt-start at its default, for example."""
    said = "nothing is copied or perturbed: the first round is at 1,000 env steps of each member"
    run(APPO, tmp_path / "short", steps=4000)
    log = (tmp_path / "short" / "log.txt").read_text()
    assert f"{said} (--pbt-start, --pbt-period), and the training ends at 1,000;" in log
    run(APPO, tmp_path / "long", steps=4001)
    assert said not in (tmp_path / "long" / "log.txt").read_text()


def test_a_small_window_of_episodes_rates_members_all_the_same(tmp_path: Path) -> None:
    run(APPO, tmp_path, steps=6000, metrics_window=4, pbt_period=300)
    scores = [event for event in events(tmp_path) if event["event"] == "score"]
    assert {event["episodes"] for event in scores if event["objective"] is not None} == {4}


def test_hyperparameters_of_members_are_not_changed_from_outside(tmp_path: Path) -> None:
    """The lineage, reports and later copies would have the old ones."""
    rate: dict[str, Any] = {"pbt_initial": {}, "learning_rate": 1e-3}
    run(APPO, tmp_path, steps=1000, **rate)
    before = (tmp_path / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match=r"--learning-rate 1e-05: it is changed on a resume"):
        run(APPO, tmp_path, steps=2000, **{**rate, "learning_rate": 1e-5})
    assert (tmp_path / "config.yaml").read_bytes() == before
    config = dataclasses.replace(APPO, **rate, run_dir=str(tmp_path), train_for_env_steps=2000)
    with Trainer(config) as trainer:
        for given in ({"learning_rate": 1e-5}, None):
            with pytest.raises(ConfigError, match=r"members .* of their own \(--pbt\)"):
                trainer.restore(tmp_path, with_=given)


def test_a_saved_copy_of_a_population_has_its_lineage_and_is_resumed(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with Trainer(dataclasses.replace(APPO, run_dir=str(tmp_path / "run"))) as trainer:
        trainer.train_until(env_steps=2000)
        trainer.save(copy)
    assert [event["member"] for event in events(copy)] == ids()
    assert run(APPO, copy, steps=6000)["status"] == "finished"
    kinds = Counter(event["event"] for event in events(copy))
    assert kinds["start"] == MEMBERS and kinds["score"] >= MEMBERS


# ---- reward-shaping numbers of the environment ----

SHAPED = "tests.support.reward_envs:ShapedEnv"


@pytest.mark.long
def test_reward_shaping_numbers_are_drawn_perturbed_copied_and_used(tmp_path: Path) -> None:
    env: dict[str, Any] = {"env": SHAPED, "pbt_perturb": ("env.bonus",)}
    config = dataclasses.replace(APPO, **env, pbt_initial={"env.bonus": "0.1..10"})
    run(config, tmp_path)
    found = events(tmp_path)
    first = [event["hyperparameters"]["env.bonus"] for event in found[:MEMBERS]]
    assert len(set(first)) == MEMBERS and found[0]["hyperparameters"]["env.cost"] == 0.25
    changed = {name for e in found if e["event"] == "explore" for name in e["changed"]}
    assert changed == {"env.bonus"}
    current = {event["member"]: event["hyperparameters"] for event in found}
    for policy in ids():
        state = latest(tmp_path, policy)[1]
        own = {n: v for n, v in current[policy].items() if n.startswith("env.")}
        assert state["learner"]["tag"]["shaping"] == own
        assert all(ret in range(11) for ret in state["statistics"]["returns"]), "the true results"


@pytest.mark.long
def test_environments_take_the_shaping_numbers_of_their_member(tmp_path: Path) -> None:
    """And the schedule of a member sets them as the population did, bit for bit."""
    from sampleforge.populations.schedule import schedule_of

    env: dict[str, Any] = {"env": SHAPED, "pbt_perturb": ("env.bonus",)}
    config = dataclasses.replace(APPO, **env)
    run(config, tmp_path / "population")
    best = json.loads((tmp_path / "population" / "summary.json").read_text())["best"]
    tensors, state = latest(tmp_path / "population", best)
    learned = state["learner"]["env_steps"]
    schedule = schedule_of(events(tmp_path / "population"), best, "appo", learned)
    (tmp_path / "s.json").write_text(json.dumps(schedule))
    one: dict[str, Any] = {"pbt": False, "num_policies": 1, "seed": None, "pbt_initial": {}}
    alone = dataclasses.replace(config, **one, pbt_perturb=())
    run(alone, tmp_path / "alone", 10**9, schedule=str(tmp_path / "s.json"))
    assert equal(tensors, latest(tmp_path / "alone")[0])


# ---- processes ----

IN_PROCESSES = dataclasses.replace(APPO, serial=False, num_workers=2, batch_size=256)


class Killing(Callback):
    """Kills a worker of the session after each of the first ``kills`` rounds."""

    def __init__(self, name: str, kills: int) -> None:
        self.name, self.left, self.round = name, kills, 0.0

    def on_report(self, session: Session, report: Any) -> None:
        if report["pbt_round"] > self.round and self.left:
            self.round, self.left = report["pbt_round"], self.left - 1
            psutil.Process(session.runner.pids()[self.name]).kill()


@pytest.mark.multiprocess(timeout=180)
@pytest.mark.parametrize("name", ["policy_1/learner", slow("actor 1")])
def test_rounds_go_on_when_workers_are_killed(name: str, tmp_path: Path) -> None:
    """A population waits for no dead member; the lineage stays true to what the learners have."""
    config = dataclasses.replace(
        IN_PROCESSES, run_dir=str(tmp_path), train_for_env_steps=60_000, report_interval=0.1
    )
    summary = train(config, callbacks=[Killing(name, 2)]).summary
    assert summary["restarts"] == 2 and summary["copies"] >= 2
    current: dict[str, Any] = {}
    for event in events(tmp_path):
        current[event["member"]] = event["hyperparameters"]
    assert max(e["round"] for e in events(tmp_path)) >= 5, "the kills were after rounds 1 and 2"
    for policy in ids():
        learner = latest(tmp_path, policy)[1]["learner"]
        if learner["tag"].get("change", 0) == applied(tmp_path, policy):
            assert learner["hyperparameters"] == current[policy]


def applied(folder: Path, policy: str) -> int:
    """Number of the newest change of a member that was in the lineage at the last checkpoint."""
    own = latest(folder, policy)[1]["population"]["members"][policy]
    return int(own["number"]) - (own["pending"] is not None)


@pytest.mark.multiprocess(timeout=180)
@pytest.mark.parametrize("config", [IN_PROCESSES, slow(dataclasses.replace(APEX, serial=False))])
def test_several_learners_of_a_member_stay_the_same(config: AnyConfig, tmp_path: Path) -> None:
    """With --debug they compare their states after each update."""
    more = {"num_learners": 2, "num_policies": 2, "debug": True, "num_workers": 2}
    summary = run(config, tmp_path, 40_000, **more)
    assert summary["copies"] >= 1 and summary["checksums_compared"] > 10
    assert summary["status"] == "finished" and summary["restarts"] == 0
