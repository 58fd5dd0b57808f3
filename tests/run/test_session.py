"""Sessions as a library: callbacks, many in a row, in a thread, stopped and interrupted."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from sampleforge.api import train
from sampleforge.config import ConfigError
from sampleforge.run.callback import Callback, Message
from sampleforge.run.ending import last_evaluation
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.session import Session
from sampleforge.runners.base import WorkerDied
from sampleforge.shared.records import EpisodeRecord
from sampleforge.tools.benchmark.benchmark import Benchmark, run_benchmark
from sampleforge.tools.tracking import read_rows, tracking_callbacks
from sampleforge.topologies.config import AnyConfig, ApexConfig, AppoConfig, DdppoConfig
from tests.support.envs import CodeEnv
from tests.support.reports import events
from tests.support.runs import last_report, summary
from tests.support.variants import slow

SMALL: dict[str, Any] = {"env": "CartPole-v1", "num_envs_per_worker": 4, "report_interval": 0.2}


def config(folder: Path, **more: Any) -> AppoConfig:
    setting = {**SMALL, "serial": True, "train_for_env_steps": 3000, "run_dir": str(folder)}
    return AppoConfig(**{**setting, **more})


class Recorder(Callback):
    """Keeps the names of what it was told, in order, and some of what was said."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.episodes: list[EpisodeRecord] = []
        self.reports: list[dict[str, float]] = []
        self.evaluations: list[dict[str, float]] = []
        self.summary: dict[str, Any] = {}

    def on_start(self, session: Session) -> None:
        self.events.append("start")

    def on_episode_record(self, session: Session, record: EpisodeRecord) -> None:
        self.episodes.append(record)

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        self.events.append("report")
        self.reports.append(dict(report))

    def on_evaluation(self, session: Session, evaluation: Mapping[str, float]) -> None:
        self.evaluations.append(dict(evaluation))

    def on_checkpoint(self, session: Session, env_steps: int) -> None:
        self.events.append(f"checkpoint {env_steps}")

    def on_stop(self, session: Session) -> None:
        self.events.append("stop")

    def on_end(self, session: Session, summary: Mapping[str, Any]) -> None:
        self.events.append("end")
        self.summary = dict(summary)


@pytest.mark.long
def test_callbacks_are_told_of_everything_in_order(tmp_path: Path) -> None:
    told = Recorder()
    result = train(
        config(tmp_path, evaluate_interval=1000, evaluate_episodes=2, seed=3), callbacks=[told]
    )
    env_steps = result.summary["env_steps"]
    assert told.events[0] == "start" and set(told.events[1:-3]) == {"report"}
    assert told.events[-3:] == ["stop", f"checkpoint {env_steps}", "end"]
    assert len(told.episodes) == result.summary["episodes"] > 10
    assert told.reports[-1]["env_steps"] == env_steps
    assert [e["eval_episodes"] for e in told.evaluations] == [2.0] * len(told.evaluations)
    assert len(told.evaluations) >= 2
    assert told.summary == result.summary


@pytest.mark.parametrize(
    ("name", "value"),
    [("hyperparameters", {"policy": {"gamma": 0.5}}), ("env_steps_of", {}), ("schedule", ())],
)
def test_what_the_wiring_reads_cannot_be_set_afterwards(
    tmp_path: Path, name: str, value: Any
) -> None:
    class Late(Callback):
        def on_wire(self, session: Session) -> None:
            setattr(session, name, getattr(session, name))

        def on_start(self, session: Session) -> None:
            setattr(session, name, value)

    message = f"session.{name} has no effect once the session is open: set it in Callback.on_wire"
    with pytest.raises(RuntimeError, match=message), Session(config(tmp_path), [Late()]):
        pass


def test_a_session_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(config(tmp_path), display=False)
    assert capfd.readouterr() == ("", "")


def test_what_a_callback_raises_ends_the_session_and_is_in_the_summary(tmp_path: Path) -> None:
    class Failing(Callback):
        def on_report(self, session: Session, report: Mapping[str, float]) -> None:
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        train(config(tmp_path), callbacks=[Failing()])
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "failed" and "ValueError: no more" in summary["error"]


def test_a_callback_can_stop_the_session_which_then_has_a_checkpoint(tmp_path: Path) -> None:
    class Enough(Callback):
        def on_report(self, session: Session, report: Mapping[str, float]) -> None:
            session.stop()

    result = train(config(tmp_path, train_for_env_steps=10**9), callbacks=[Enough()])
    assert result.summary["status"] == "finished" and result.summary["env_steps"] < 10**6
    assert list((tmp_path / "checkpoints").glob("*.safetensors"))


def test_ctrl_c_in_a_notebook_saves_and_raises(tmp_path: Path) -> None:
    """A library installs no handler: Python raises KeyboardInterrupt wherever it is."""

    class Interrupting(Callback):
        def on_report(self, session: Session, report: Mapping[str, float]) -> None:
            if report["updates"] > 0:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path, train_for_env_steps=10**9), callbacks=[Interrupting()])
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"
    assert list((tmp_path / "checkpoints").glob("*.safetensors"))
    check_last_report(tmp_path)


def check_last_report(run: Path) -> None:
    """The last report, wherever reports go, is of the end of the run."""
    ended, report = summary(run), last_report(run)
    names = ("env_steps", "env_frames", "episodes", "updates")
    assert {name: report[name] for name in names} == {name: ended[name] for name in names}
    (*_, (step, _)) = events(RunFolder(run))
    assert step == ended["env_steps"] > 0


class Interrupting(Callback):
    """Interrupts the session once it has trained, and then has its learners not answer."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_poll(self, session: Session) -> None:
        if session.graph.counters.total("updates") < 3 or session.is_interrupted():
            return
        session.interrupt()
        ask = session.runner.ask

        def gone(node: Any, kind: str, *more: Any, **how: Any) -> Any:
            if kind == "metrics":
                raise WorkerDied(f"{node.name} was ended by signal SIGTERM")
            return ask(node, kind, *more, **how)

        session.runner.ask = gone  # type: ignore[method-assign]

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        self.events.append("report")

    def on_stop(self, session: Session) -> None:
        self.events.append("stop")


def test_an_interrupted_run_has_its_last_report_though_its_learner_is_gone(tmp_path: Path) -> None:
    more: dict[str, Any] = {"train_for_env_steps": None, "report_interval": 1e9, "track": ("csv",)}
    ended = config(tmp_path, rollout=16, batch_size=64, **more)
    told = Interrupting()
    with Session(ended, [*tracking_callbacks(ended), told]) as session:
        assert list(session.reports()) == []
    check_last_report(tmp_path)
    assert told.events == ["report", "stop"]
    (row,) = read_rows(tmp_path / "metrics.csv")
    assert float(row["env_steps"]) == summary(tmp_path)["env_steps"]


@pytest.mark.parametrize("ranks", [False, True])
def test_an_interrupt_halts_actors_but_no_rank_for_which_another_waits(
    ranks: bool, tmp_path: Path
) -> None:
    """A rank that has its rollouts waits for the gradients of the others, in the middle of theirs,
    and could not even save its state."""
    one: AnyConfig = config(tmp_path, train_for_env_steps=None)
    if ranks:
        one = DdppoConfig(**SMALL, num_ranks=1, serial=True, run_dir=str(tmp_path))
    with Session(one) as session:
        reports = session.reports()
        next(reports)
        session.interrupt()
        for _ in reports:
            pass
        clock = session.graph.progress.clock
        assert not clock.halted
    assert clock.halted == (not ranks)
    assert last_report(tmp_path)["env_steps"] <= summary(tmp_path)["env_steps"]


def test_an_interrupt_before_the_first_env_step_has_no_report(tmp_path: Path) -> None:
    with Session(config(tmp_path)) as session:
        session.interrupt()
    assert summary(tmp_path)["status"] == "interrupted"
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_benchmark_that_fails_before_the_start_releases_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("the simulators cannot be measured")

    monkeypatch.setattr(Benchmark, "measure_peak", fails)
    session = Session(config(tmp_path, benchmark=True))
    session.open()
    with pytest.raises(OSError, match="cannot be measured"):
        run_benchmark(session)
    again = train(config(tmp_path))
    assert again.summary["status"] == "finished", "its lock is free, while the session is held"


@pytest.mark.parametrize("exists", [False, True])
def test_a_refused_run_leaves_no_folder_that_was_not_there(tmp_path: Path, exists: bool) -> None:
    """The plan refuses it, when the folder is open."""
    run = tmp_path / "run"
    if exists:
        run.mkdir()
        (run / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="--cuda-graphs"), Session(config(run, cuda_graphs=True)):
        pass
    assert run.exists() == exists and (run / "notes.txt").exists() == exists


def test_a_config_error_after_the_run_keeps_its_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match="mine"), Session(config(run)) as session:
        for _ in session.reports():
            pass
        raise ConfigError("mine")
    assert list((run / "checkpoints").glob("*.safetensors"))


class SlowToClose(CodeEnv):
    def close(self) -> None:
        time.sleep(0.3)


class ClockAtTheEnd(Callback):
    at_stop = 0.0

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        session.stop()

    def on_stop(self, session: Session) -> None:
        self.at_stop = session.graph.progress.wall_s


def test_the_seconds_of_the_training_have_no_closing_of_environments(tmp_path: Path) -> None:
    clock = ClockAtTheEnd()
    env = f"{__name__}:SlowToClose"
    with Session(config(tmp_path / "run", env=env, train_for_env_steps=None), [clock]) as session:
        list(session.reports())
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 0 < clock.at_stop <= written["wall_s"] < clock.at_stop + 2 * 0.3


@pytest.mark.parametrize("name", ["nosuch:Mine", f"{__name__}:Session"])
def test_a_wrong_name_of_a_callback_is_refused_before_the_environment_is_tried(
    name: str, tmp_path: Path
) -> None:
    fails = config(tmp_path / "run", env="tests.support.envs:RaisingEnv", callbacks=(name,))
    with pytest.raises(ConfigError, match=f"--callbacks {name}: "):
        Session(fails).open()


def test_messages_have_levels(tmp_path: Path) -> None:
    said: list[Message] = []

    class Listener(Callback):
        def on_message(self, session: Session, message: Message) -> None:
            said.append(message)

    train(config(tmp_path, train_for_env_steps=500), callbacks=[Listener()])
    assert any("topology appo" in m.text and m.level == "debug" for m in said)
    assert any(m.level == "info" for m in said)


def resources() -> tuple[int, int, int]:
    """Descriptors, threads and resident bytes of this process, without what only waits for the
    garbage collector: it may be what earlier tests have left."""
    gc.collect()
    process = psutil.Process()
    return process.num_fds(), threading.active_count(), process.memory_info().rss


@pytest.mark.multiprocess(timeout=300)
@pytest.mark.parametrize("count", [16, slow(50)])
def test_many_sessions_in_a_row_leave_nothing(tmp_path: Path, count: int) -> None:
    """After the first ones, which import and cache: descriptors and threads stay, memory nearly."""
    before = (0, 0, 0)
    for i in range(count):
        if i == 8:
            before = resources()
        cls = (AppoConfig, ApexConfig)[i % 2]
        chosen = {**SMALL, "serial": True, "train_for_env_steps": 200}
        train(cls(**chosen, run_dir=str(tmp_path / f"{i}")))
    after = resources()
    descriptors, threads, resident = (after[i] - before[i] for i in range(3))
    assert descriptors <= 0 and threads <= 0, "fewer: what earlier tests left was freed late"
    assert resident < (64 << 20), "of shared memory, a session has more than that"


@pytest.mark.multiprocess(timeout=120)
def test_sessions_of_processes_in_a_row_leave_no_descriptor(tmp_path: Path) -> None:
    found = []
    for i in range(4):
        chosen = config(tmp_path / f"{i}", serial=False, num_workers=1, train_for_env_steps=500)
        train(chosen)
        found.append(resources()[:2])
    more = [last - first for first, last in zip(found[1], found[-1], strict=True)]
    assert max(more) <= 0, f"fewer: what earlier tests left was freed late; {found}"


@pytest.mark.multiprocess(timeout=120)
def test_a_session_in_a_thread_and_one_after_it(tmp_path: Path) -> None:
    """What the thread has started must not end the workers of the next session when it ends."""
    done: list[Any] = []

    def work() -> None:
        done.append(train(config(tmp_path / "a", serial=False, num_workers=1)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    done.append(train(config(tmp_path / "b", serial=False, num_workers=1)))
    assert [r.summary["status"] for r in done] == ["finished", "finished"]


@pytest.mark.multiprocess(timeout=120)
def test_two_sessions_at_once(tmp_path: Path) -> None:
    """One in a thread, which ends first; the other goes on."""
    short = config(tmp_path / "a", serial=False, num_workers=1, train_for_env_steps=500)
    long = config(tmp_path / "b", serial=False, num_workers=1, train_for_env_steps=20_000)
    thread = threading.Thread(target=train, args=(short,))
    thread.start()
    result = train(long)
    thread.join()
    assert result.summary["status"] == "finished" and result.summary["restarts"] == 0
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "finished"


def test_callbacks_see_the_checkpoint_that_a_run_resumes_from_before_it_starts(
    tmp_path: Path,
) -> None:
    seen: list[Any] = []

    class Looking(Callback):
        def on_wire(self, session: Session) -> None:
            earlier = session.saved_state(self)
            seen.append((earlier.get("mine"), session.resolved.batch_size is not None))

        def checkpoint_state(self, session: Session) -> Mapping[str, Any]:
            return {"mine": 7}

    train(config(tmp_path, train_for_env_steps=600), callbacks=[Looking()])
    train(config(tmp_path, train_for_env_steps=900), callbacks=[Looking()])
    assert seen == [(None, True), (7, True)]


def test_callbacks_are_told_of_a_restart_and_the_user_alerted(tmp_path: Path) -> None:
    told: list[Any] = []

    class Listening(Callback):
        def on_restart(self, session: Session, text: str) -> None:
            told.append(text)

        def on_message(self, session: Session, message: Message) -> None:
            told.append(message)

    Session(config(tmp_path), [Listening()]).restarted("actor 0 was killed; it is restarted")
    assert told == ["actor 0 was killed; it is restarted", Message(told[0], "alert")]


def test_an_item_of_a_mapping_cannot_be_set_without_effect() -> None:
    session = Session(AppoConfig(env="CartPole-v1"))
    given: Any = session.hyperparameters
    with pytest.raises(TypeError, match="does not support item assignment"):
        given["policy"] = {"gamma": 0.5}
    assert not Session(AppoConfig(env="CartPole-v1")).hyperparameters
    session.hyperparameters = {"policy": {"gamma": 0.5}}
    assert session.hyperparameters == {"policy": {"gamma": 0.5}}


class Unfinished:
    """A session whose learners answer, but do not publish their last weights: a rank that waits for
    others, which are gone."""

    def __init__(self) -> None:
        learner = SimpleNamespace(name="rank 0")
        self.graph = SimpleNamespace(groups=[SimpleNamespace(evaluations=[], learner=learner)])
        self.asked, self.alerts = 0, list[str]()

    def ask_learner(self, group: Any, kind: str) -> None:
        self.asked += 1

    def is_interrupted(self) -> bool:
        return False

    def work(self) -> None:
        pass

    def alert(self, text: str) -> None:
        self.alerts.append(text)


def test_weights_that_do_not_come_are_warned_of_and_the_run_goes_on_to_its_end() -> None:
    session: Any = Unfinished()
    assert list(last_evaluation(session, patience=0.01)) == []
    (text,) = session.alerts
    assert text.startswith("The last weights of rank 0 are not evaluated") and session.asked > 1
    assert "`sampleforge eval`" in text


class Unreachable(Callback):
    """Raises what a hook that posts to a service raises, at the first report of a learner."""

    def on_report(self, session: Session, report: Any) -> None:
        if report.get("updates"):
            raise ConnectionError("no route to host")


def test_a_checkpoint_is_written_after_an_error_of_files_or_the_network_in_a_callback(
    tmp_path: Path,
) -> None:
    """An OSError need not be one of the run folder's disk."""
    with pytest.raises(Exception, match="no route to host"):
        train(config(tmp_path), callbacks=[Unreachable()])
    assert summary(tmp_path)["status"] == "failed"
    (entry,) = json.loads((tmp_path / "checkpoints" / "manifest.json").read_text())["entries"]
    assert entry["env_steps"] > 0
