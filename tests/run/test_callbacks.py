"""Callbacks of a session, in the driver and in workers: what hooks are told, custom metrics, what
they raise, tasks, and callbacks that are named on the command line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sampleforge.api import Result, train
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.run import session as session_module
from sampleforge.run.callback import Callback, Message
from sampleforge.run.folder.checkpoint import CheckpointStore
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.reports.statistics import FirstEpisodes
from sampleforge.run.session import Session
from sampleforge.runners.base import WorkerDied
from sampleforge.shared.records import EpisodeRecord
from sampleforge.tools.tracking import read_rows, tracking_callbacks
from sampleforge.topologies.config import AnyConfig, AppoConfig, DdppoConfig
from sampleforge.workers.callback import WORKER_HOOKS, for_workers
from sampleforge.workers.hooks import EpisodeHandle
from tests.support.apex_graphs import apex_config
from tests.support.callbacks import (
    SEEN,
    Assigning,
    Auditor,
    Counting,
    Failing,
    FailingAtEnds,
    Inspector,
    Later,
)
from tests.support.processes import StartCli
from tests.support.product import small
from tests.support.reports import events
from tests.support.runs import last_report, summary, until, until_trained, worker
from tests.support.runs import train as command

ENVS = "tests.support.envs"
CODE = f"{ENVS}:CodeEnv"
TASKS = "tests.support.task_envs:TaskEnv"
SMALL: dict[str, Any] = {
    **{"serial": True, "quiet": True, "seed": 1, "report_interval": 0.3},
    **{"train_for_env_steps": 1500, "num_envs_per_worker": 6},
}
TINY = ModelConfig(hidden_sizes=(8,))
PPO: dict[str, Any] = {
    **{**SMALL, "model": TINY, "rollout": 16, "num_epochs": 1},
}
RUNS: dict[str, AnyConfig] = {
    "appo": AppoConfig(env=CODE, num_workers=2, batch_size=192, **PPO),
    "policy workers": AppoConfig(env=CODE, inference="worker", num_splits=2, batch_size=96, **PPO),
    "apex": apex_config(**SMALL),
    "recurrent apex": apex_config(
        **SMALL,
        model=ModelConfig(hidden_sizes=(8,), core="gru", core_size=4),
        **{"sequence_length": 6, "sequence_overlap": 3, "burn_in": 2, "rollout": 6},
    ),
    "ddppo": DdppoConfig(env=CODE, num_ranks=1, **PPO),
    "next_step rows": AppoConfig(env=f"{ENVS}:CountingVectorEnv", batch_size=96, **PPO),
    "same_step rows": AppoConfig(
        env=f"{ENVS}:CountingVectorEnv", env_kwargs={"mode": "same_step"}, batch_size=96, **PPO
    ),
    "agents": AppoConfig(
        env="tests.support.multi_agent:CodeParallelEnv",
        env_kwargs={"shorter": 2, "late": 2},
        batch_size=192,
        **PPO,
    ),
}


def run(kind: str, folder: Path, *callbacks: Callback, **more: Any) -> Result:
    return train(replace(RUNS[kind], run_dir=str(folder), **more), callbacks)


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


def reports(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("kind", RUNS)
def test_hooks_in_workers_are_told_of_every_episode_rollout_and_update(
    kind: str, tmp_path: Path
) -> None:
    """In every topology, and with every kind of environment: `Auditor` and `Inspector` check each
    call against what the fake environment encodes."""
    told: list[Any] = []
    exploring: list[Any] = []

    class Listener(Callback):
        def on_start(self, session: Session) -> None:
            exploring.append(session.graph.groups[0].exploration)

        def on_episode_record(self, session: Session, record: Any) -> None:
            told.append(record)

    result = run(kind, tmp_path, Auditor(), Inspector(), Listener())
    ends = [seen[1:] for seen in SEEN if seen[0] == "end" and seen[-1]]
    games = [record for record in told if not record.more]
    assert len(games) == result.summary["episodes"] > 20
    records = [(r.actor, r.split, r.row, r.seat, r.ret, r.length) for r in told]
    assert sorted(end[:-1] for end in ends) == sorted(records)
    last = reports(tmp_path)[-1]
    steps = [record.length for record in counting(told, exploring[0])][-100:]
    assert last["custom_steps_mean"] == pytest.approx(sum(steps) / len(steps))
    assert (last["custom_steps_min"], last["custom_steps_max"]) == (min(steps), max(steps))
    updates = [seen[1] for seen in SEEN if seen[0] == "update"]
    assert updates == sorted(updates) and updates[-1] == result.summary["updates"]
    versions = [r["custom_version_max"] for r in reports(tmp_path) if "loss" in r]
    assert versions[-1] == updates[-1]
    rollouts = [seen[1:] for seen in SEEN if seen[0] == "rollout"]
    assert len(rollouts) > 5 and {policy for _, policy, _ in rollouts} == {"policy"}
    assert sum(checked for checked, *_ in rollouts) > 500
    assert {overlap for *_, overlap in rollouts} == ({0, 3} if kind == "recurrent apex" else {0})


def counting(records: list[Any], exploration: Any) -> list[Any]:
    """Those that count for the mean return: with Ape-X of the rows that explore least, from the
    beginning as many of each of them."""
    if exploration is None:
        return records
    least = [place for place, third in exploration.third.items() if third == 0]
    first = FirstEpisodes(len(least), 100)
    return [r for each in records if each[:3] in least for (r,) in first.take([each])]


def test_a_callback_without_hooks_in_workers_does_not_reach_them(tmp_path: Path) -> None:
    """It costs nothing there, and need not be copied."""

    class Driver(Callback):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def on_report(self, session: Session, report: Mapping[str, float]) -> None: ...

    class Both(Driver):
        def on_episode_end(self, episode: EpisodeHandle) -> None: ...

    assert for_workers([Driver()], processes=True) == ()
    run("appo", tmp_path / "a", Driver(), train_for_env_steps=100)
    with pytest.raises(
        ConfigError, match=r"Both\.on_episode_end runs in the workers.*'_thread\.lock'"
    ):
        run("appo", tmp_path / "b", Both())

    class Local(Callback):
        def on_episode_end(self, episode: EpisodeHandle) -> None: ...

    with pytest.raises(ConfigError, match=r"Local\.on_episode_end runs in the workers.*locals"):
        for_workers([Local()], processes=True)
    with pytest.raises(ConfigError, match="make the object anew if its class was defined anew"):
        for_workers([Local()], processes=True)
    with pytest.raises(ConfigError, match=r"give Driver\(\)"):
        Session(RUNS["appo"], [Driver])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "hook",
    [
        *WORKER_HOOKS,
        *("on_wire", "on_start", "on_episode_record", "extend_report", "on_stop", "on_end"),
    ],
)
def test_what_a_hook_raises_ends_the_run_with_its_name(hook: str, tmp_path: Path) -> None:
    failing = Failing()
    failing.hook = hook
    with pytest.raises(ValueError, match="deliberate") as raised:
        run("appo", tmp_path, failing)
    (note,) = raised.value.__notes__
    assert note.startswith(f"raised by the callback tests.support.callbacks:Failing.{hook}")
    if hook not in ("on_wire", "on_end"):
        written = summary(tmp_path)
        assert written["status"] == "failed" and written["error"].rstrip().endswith(note)


def test_a_metric_that_is_no_number_is_named(tmp_path: Path) -> None:
    class Wrong(Callback):
        def on_episode_end(self, episode: EpisodeHandle) -> None:
            episode.custom_metrics["place"] = "here"  # type: ignore[assignment]

    with pytest.raises(TypeError, match=r"custom_metrics\['place'\] is 'here', but must be a num"):
        run("appo", tmp_path, Wrong())


def test_a_report_can_be_changed_before_it_is_written(tmp_path: Path) -> None:
    class Changing(Callback):
        def extend_report(self, session: Session, report: dict[str, float]) -> None:
            report["own"] = report["env_steps"] / 2
            report.pop("frames_per_s")

    run("appo", tmp_path, Changing())
    for report in reports(tmp_path):
        assert report["own"] == report["env_steps"] / 2 and "frames_per_s" not in report


class Returning(Callback):
    """Its driver hooks add and return what it was given."""

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.saved: dict[str, Any] | None = None

    def on_wire(self, session: Session) -> None:
        self.saved = session.saved_state(self)

    def checkpoint_state(self, session: Session) -> Any:
        return self.given.get("state", {})

    def extend_report(self, session: Session, report: dict[str, float]) -> None:
        report.update(self.given.get("report", {}))
        for name in self.given.get("removed", ()):
            del report[name]

    def extend_summary(self, session: Session, summary: dict[str, Any]) -> None:
        summary.update(self.given.get("summary", {}))


def test_what_callbacks_save_is_kept_apart_from_the_run_and_from_each_other(
    tmp_path: Path,
) -> None:
    names = ("return_mean", "tasks", "statistics", "wall_s", "resumes", "milestone", "learner")
    states = [dict.fromkeys(names, each) for each in ("one", "two")]
    run("appo", tmp_path, *(Returning(state=state) for state in states))
    episodes = summary(tmp_path)["episodes"]
    (entry, *_) = json.loads((tmp_path / "checkpoints" / "manifest.json").read_text())["entries"]
    assert entry["return_mean"] != "one"
    again = Returning(), Returning()
    train(replace(RUNS["appo"], run_dir=str(tmp_path), train_for_env_steps=3000), callbacks=again)
    assert [each.saved for each in again] == states
    assert summary(tmp_path)["status"] == "finished" and summary(tmp_path)["episodes"] > episodes


def test_numbers_of_numpy_that_callbacks_return_are_written_as_numbers(tmp_path: Path) -> None:
    number = np.float32(0.5)
    given = {"state": {"best": number, "at": (1, np.int64(2))}, "report": {"mine": np.int64(7)}}
    run("appo", tmp_path, Returning(**given, summary={"mine": number, "each": [number]}))
    assert summary(tmp_path)["mine"] == 0.5 and summary(tmp_path)["each"] == [0.5]
    assert last_report(tmp_path)["mine"] == 7
    again = Returning()
    train(replace(RUNS["appo"], run_dir=str(tmp_path), train_for_env_steps=3000), callbacks=[again])
    assert again.saved == {"best": 0.5, "at": [1, 2]}


class GoingOn(Callback):
    """Takes 7 env steps while a report is made, as actors do in processes of their own."""

    def extend_report(self, session: Session, report: dict[str, float]) -> None:
        actor, *_ = session.graph.having("actor")
        row = session.graph.counters.row(actor.counter_row)
        for name in ("env_steps", "env_frames"):
            row[name] += 7


def test_a_report_is_of_one_moment_wherever_it_goes(tmp_path: Path) -> None:
    told: list[float] = []

    class Told(Callback):
        def on_report(self, session: Session, report: Mapping[str, float]) -> None:
            told.append(report["env_steps"])

    run("appo", tmp_path, GoingOn(), Told(), *tracking_callbacks(AppoConfig(track=("csv",))))
    assert len(told) > 1
    assert [report["env_steps"] for report in reports(tmp_path)] == told
    assert [report["env_frames"] for report in reports(tmp_path)] == told
    shown = [(step, values["rollout/env_steps"]) for step, values in events(RunFolder(tmp_path))]
    assert shown == [(each, each) for each in told]
    assert [float(row["env_steps"]) for row in read_rows(tmp_path / "metrics.csv")] == told


def test_a_benchmark_calls_on_poll_and_names_the_hooks_that_wait_for_reports(
    tmp_path: Path,
) -> None:
    seen: set[str] = set()

    class Curriculum(Callback):
        def on_poll(self, session: Session) -> None:
            seen.add("poll")

        def on_episode_record(self, session: Session, record: EpisodeRecord) -> None:
            seen.add("record")

        def on_report(self, session: Session, report: Mapping[str, float]) -> None:
            seen.add("report")

        def on_message(self, session: Session, message: Message) -> None:
            if message.level == "warning":
                seen.add(message.text)

    run("appo", tmp_path, Curriculum(), benchmark=True, benchmark_seconds=0.3)
    never = "Curriculum.on_report is never called: --benchmark makes no reports"
    assert seen >= {"poll", "record"} and "report" not in seen
    assert any(text.startswith(never) for text in seen)


@pytest.mark.parametrize(
    ("given", "hook", "message"),
    [
        ({"state": None}, "checkpoint_state", "it returned None, but must return a dict"),
        ({"state": {"x": [np.zeros(3)]}}, "checkpoint_state", r"\['x'\]\[0\] is of the type ndarr"),
        (
            {"state": {"x": {1: 2}}},
            "checkpoint_state",
            r"\['x'\] has the key 1; keys must be texts",
        ),
        ({"report": {"x": "warm"}}, "extend_report", r"report\['x'\] is 'warm', but must be a num"),
        ({"removed": ["env_steps"]}, "extend_report", "has no 'env_steps' any more"),
        ({"report": {"env_steps": -1}}, "extend_report", r"report\['env_steps'\] must stay \d+"),
        (
            {"report": {("x", 1): 2.0}},
            "extend_report",
            r"a report has the name \('x', 1\), which must",
        ),
        (
            {"summary": {("x", 1): 2}},
            "extend_summary",
            r"the summary has the name \('x', 1\), which",
        ),
        ({"summary": {"status": {1}}}, "extend_summary", r"summary\['status'\] is of the type set"),
        ({"summary": {"x": {1, 2}}}, "extend_summary", r"summary\['x'\] is of the type set, but"),
    ],
)
def test_what_cannot_be_written_is_named_with_the_callback_and_the_hook(
    tmp_path: Path, given: dict[str, Any], hook: str, message: str
) -> None:
    with pytest.raises(TypeError, match=message) as error:
        run("appo", tmp_path, Returning(**given))
    assert error.value.__notes__ == [f"raised by the callback {__name__}:Returning.{hook}"]
    written = summary(tmp_path)
    assert "x" not in written
    # The training had finished when its summary was made.
    assert written["status"] == ("finished" if hook == "extend_summary" else "failed")


def test_a_method_that_looks_like_a_hook_and_is_none_is_warned_of(tmp_path: Path) -> None:
    class Mistyped(Callback):
        def on_epsiode_end(self, episode: EpisodeHandle) -> None:
            raise AssertionError

        def online(self) -> None: ...

    run("appo", tmp_path, Mistyped())
    lines = [line for line in (tmp_path / "log.txt").read_text().splitlines() if "Mistyped" in line]
    assert len(lines) == 1
    assert (
        "Mistyped.on_epsiode_end is no hook, so that SampleForge never calls it. Did you mean on_ep"
        in (lines[0])
    )


class Screen(Returning):
    """Has the name of a callback of SampleForge's."""


def test_what_a_callback_saved_is_found_beside_other_callbacks_of_sampleforge(
    tmp_path: Path,
) -> None:
    train(replace(RUNS["appo"], run_dir=str(tmp_path)), [Screen(state={"mine": 7})], display=True)
    again = Screen()
    run("appo", tmp_path, again, train_for_env_steps=3000)
    assert again.saved == {"mine": 7}


def test_callbacks_may_be_given_by_an_iterator_and_hooks_be_set_on_the_object(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    callback = Callback()
    callback.on_start = lambda session: told.append("start")  # type: ignore[method-assign]
    callback.on_episode_end = lambda episode: told.append("end")  # type: ignore[method-assign]
    given: Any = (each for each in [callback])
    train(replace(RUNS["appo"], run_dir=str(tmp_path)), given)
    assert told[0] == "start" and set(told[1:]) == {"end"}, "serial: in this process"


def test_a_callback_that_is_not_in_a_list_is_refused() -> None:
    alone: Any = Later()
    with pytest.raises(ConfigError, match=r"callbacks=Later\(\) must be a list .*: give \[Later"):
        train(RUNS["appo"], callbacks=alone)


# ---- hyperparameters ----


class Decay(Callback):
    """Sets a hyperparameter in every hook of the driver before the end; notes what the learner
    has."""

    def on_wire(self, session: Session) -> None:
        session.set_hyperparameter("max_grad_norm", 0.25)

    def on_report(self, session: Session, report: Any) -> None:
        session.set_hyperparameter("learning_rate", 1e-4)
        session.set_hyperparameter("clip_ratio", 0.1, policy="policy")

    def on_end(self, session: Session, summary: Any) -> None:
        with pytest.raises(RuntimeError, match="the training has ended"):
            session.set_hyperparameter("learning_rate", 1e-4)


class Setting(Callback):
    """Sets the learning rate before the workers are made."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def on_wire(self, session: Session) -> None:
        session.set_hyperparameter("learning_rate", self.rate)


def test_a_hyperparameter_is_set_though_the_clock_is_behind_that_of_the_part_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("appo", tmp_path, Setting(1e-4))
    monkeypatch.setattr(session_module, "time_ns", lambda: 1000)  # as on another machine
    run("appo", tmp_path, Setting(2e-4), train_for_env_steps=3000)
    assert last_report(tmp_path)["learning_rate"] == 2e-4


def test_a_hyperparameter_that_a_hook_sets_is_learned_with_and_resumed(tmp_path: Path) -> None:
    run("appo", tmp_path, Decay())
    rates = [r["learning_rate"] for r in reports(tmp_path) if "learning_rate" in r]
    assert rates[0] == 5e-4 and rates[-1] == 1e-4
    store = CheckpointStore(tmp_path / "checkpoints", 1)
    loaded = store.load(log=print)
    assert loaded is not None
    found = loaded[0].state["learner"]["hyperparameters"]
    assert found["max_grad_norm"] == 0.25 and found["clip_ratio"] == 0.1
    run("appo", tmp_path, train_for_env_steps=3000)
    assert reports(tmp_path)[-1]["learning_rate"] == 1e-4


@pytest.mark.parametrize(
    ("name", "value", "more", "why"),
    [
        ("learning_rat", 1e-4, {}, "Did you mean learning_rate"),
        ("rollout", 8, {}, "rollout', 8.*cannot change during the training; these can: "),
        ("clip_ratio", -1.0, {}, "--clip-ratio -1.0: must be above 0"),
        (
            "learning_rate",
            None,
            {},
            "--learning-rate None: must be a number; its default is 0.0005",
        ),
        ("gamma", 0.9, {"anneal": {"gamma": "linear:0.9:0.99"}}, "it follows --anneal gamma="),
        ("gamma", 0.9, {"sampler_only": True}, "nothing is learned"),
        ("vtrace_rho", 0.3, {}, "has no effect: it is for --advantage vtrace, and gae was chosen"),
    ],
)
def test_what_cannot_be_set_while_it_trains_is_refused(
    name: str, value: Any, more: dict[str, Any], why: str, tmp_path: Path
) -> None:
    class Setting(Callback):
        def on_wire(self, session: Session) -> None:
            session.set_hyperparameter(name, value)

    with pytest.raises(ConfigError, match=why):
        run("appo", tmp_path, Setting(), **more)


@pytest.mark.long
def test_what_another_hyperparameter_gives_an_effect_can_be_set_after_it(
    tmp_path: Path,
) -> None:
    """In a resumed run as well, in whose checkpoint alone the other one is."""

    class Noise(Callback):
        def __init__(self, *names: str) -> None:
            self.names = names

        def on_start(self, session: Session) -> None:
            for name in self.names:
                session.set_hyperparameter(name, 0.25)

    config = small("td3", tmp_path / "run", tmp_path, target_noise=0.0)
    with pytest.raises(ConfigError, match=r"_clip', 0.25\) has no effect: there is no noise"):
        train(replace(config, run_dir=str(tmp_path / "other")), [Noise("target_noise_clip")])
    train(config, [Noise("target_noise", "target_noise_clip")])
    more = replace(config, train_for_env_steps=2 * config.train_for_env_steps)
    train(more, [Noise("target_noise_clip")])


def test_what_a_handle_says_cannot_be_set(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="reward"):
        run("appo", tmp_path, Assigning())


# ---- tasks ----


@pytest.mark.long
def test_a_task_reaches_training_but_not_the_evaluator_and_is_resumed(tmp_path: Path) -> None:
    config: dict[str, Any] = {"env": TASKS, "evaluate_interval": 500, "evaluate_episodes": 3}
    run("appo", tmp_path, Counting(), **config)
    known = reports(tmp_path)
    tasks = [r["custom_task_max"] for r in known if "custom_task_max" in r]
    assert tasks[0] == -1 and tasks[-1] == 7
    assert {r["eval_return_mean"] for r in known if "eval_return_mean" in r} == {-5}
    assert known[-1]["env_restarts"] == 0, "no environment was given a task within an episode"
    later = Later()
    run("appo", tmp_path, later, **config, train_for_env_steps=3000)
    assert later.tasks == [7] and {seen[1] for seen in SEEN} == {7}
    evaluated = [r["eval_return_mean"] for r in reports(tmp_path) if "eval_return_mean" in r]
    assert evaluated[-1] == 15


def test_an_environment_without_set_task_is_named(tmp_path: Path) -> None:
    class Curriculum(Callback):
        def on_start(self, session: Session) -> None:
            assert session.task is None
            session.set_task(1)

    with pytest.raises(ConfigError, match=r"CodeEnv takes no tasks: it has no method set_task"):
        run("appo", tmp_path, Curriculum())


# ---- processes ----


@pytest.mark.multiprocess(timeout=90)
def test_a_worker_that_replaces_a_killed_one_has_new_callbacks_and_the_newest_task(
    start_cli: StartCli, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    named = ["--callbacks", "tests.support.callbacks:Counting"]
    process = start_cli(*command(TASKS, *named))
    until_trained(process, run)
    until(lambda: last_report(run).get("custom_task_min") == 7, process)
    first = last_report(run)
    assert first["custom_copy_min"] == first["custom_copy_max"]
    assert first["custom_first_task_min"] == -1, "when the task was not set yet"
    worker(process, "sampleforge: actor 0").kill()
    until(lambda: last_report(run)["custom_copy_min"] != first["custom_copy_min"], process)
    until(lambda: last_report(run)["custom_copy_max"] != first["custom_copy_max"], process)
    found = last_report(run)
    assert found["restarts"] == 1 and found["custom_copy_min"] == found["custom_copy_max"]
    assert found["custom_first_task_min"] == found["custom_first_task_max"] == 7


@pytest.mark.multiprocess(timeout=60)
def test_an_error_in_a_worker_names_callback_and_hook(tmp_path: Path) -> None:
    processes: dict[str, Any] = {"serial": False, "num_workers": 1, "batch_size": 96}
    with pytest.raises(WorkerDied) as raised:
        run("appo", tmp_path, FailingAtEnds(), **processes)
    cause = str(raised.value).splitlines()
    assert cause[0].startswith("actor 0 failed") and cause[-2] == "ValueError: deliberate"
    assert "FailingAtEnds.on_episode_end in actor 0, split 0, row" in cause[-1]


# ---- callbacks that are named ----


def test_callbacks_that_are_named_take_part(tmp_path: Path) -> None:
    said: list[str] = []

    class Listener(Callback):
        def on_message(self, session: Session, message: Message) -> None:
            said.append(message.text)

    named = ("tests.support.callbacks:Announcing", "tests.support.callbacks:AnnouncingToo")
    run("appo", tmp_path, Listener(), train_for_env_steps=100, callbacks=named)
    assert [text for text in said if "takes part" in text] == [
        *("Announcing takes part", "AnnouncingToo takes part")
    ]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere:Mine", r"--callbacks nowhere:Mine: there is no module 'nowhere'"),
        ("tests.support.callbacks:Auditr", r"Did you mean tests\.support\.callbacks:Auditor\?"),
        ("tests.support.envs:CodeEnv", r"no class 'CodeEnv' that is derived from sampleforge\."),
        ("tests.support.callbacks", r"must be package\.module:Class"),
    ],
)
def test_a_name_that_is_no_callback_is_refused(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        run("appo", tmp_path, callbacks=(name,))
