"""Sinks: everything that a run reports arrives, and one that fails is a warning."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from sampleforge.config import ConfigError
from sampleforge.run.reports.metrics import evaluations, read_metrics, tag
from sampleforge.run.session import Session
from sampleforge.tools.tracking import (
    CsvFile,
    TrackedRun,
    Tracking,
    WandbRun,
    read_rows,
    tracking_callbacks,
)
from sampleforge.topologies.config import AppoConfig
from tests.support.processes import RunCli
from tests.support.wandb_files import history, records

POLICIES = ("policy_0/", "policy_1/")


class FakeSink:
    """Keeps what it gets. ``fails``: the method that raises, a report the second time."""

    def __init__(self, fails: str = "") -> None:
        self.name = fails or "keeps"
        self._fails = fails
        self.run: TrackedRun | None = None
        self.reports: list[tuple[int, dict[str, float]]] = []
        self.summary: Mapping[str, Any] = {}

    def start(self, run: TrackedRun) -> str:
        self._fail("start")
        self.run = run
        return "shown here"

    def report(
        self, values: Mapping[str, float], env_steps: int, policies: Sequence[str] = ()
    ) -> None:
        if self.reports:
            self._fail("report")
        self.reports.append((env_steps, dict(values)))

    def state(self) -> Mapping[str, Any]:
        return {"id": f"id of {self.name}", "reports": len(self.reports)}

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._fail("finish")
        self.summary = summary

    def _fail(self, what: str) -> None:
        if what == self._fails:
            raise OSError(f"deliberate: no {what}")


def run_with(sinks: Sequence[FakeSink], run: Path, env_steps: int) -> None:
    config = AppoConfig(
        env="CartPole-v1",
        run_dir=str(run),
        seed=1,
        serial=True,
        num_envs_per_worker=8,
        report_interval=0.5,
        evaluate_interval=1000,
        evaluate_episodes=2,
        train_for_env_steps=env_steps,
        track=("trackio",),
        track_project="p",
        track_group="g",
    )
    with Session(config, [Tracking(sink) for sink in sinks]) as session:
        for _ in session.reports():
            pass


@pytest.mark.long
def test_every_report_arrives_and_a_sink_that_fails_is_a_warning(tmp_path: Path) -> None:
    run = tmp_path / "run"
    kept = FakeSink()
    failing = [FakeSink(what) for what in ("start", "report", "finish")]
    run_with([*failing, kept], run, 3000)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished" and summary == json.loads(json.dumps(kept.summary))
    known = kept.run
    assert known is not None
    assert (known.project, known.name, known.group) == ("p", "run", "g")
    assert known.config["env"] == "CartPole-v1" and known.config["batch_size"] is not None
    assert not known.earlier and str(tmp_path) not in str(known.config)
    reports = read_metrics(run / "metrics.jsonl")
    finite = [{n: v for n, v in r.items() if v is not None and isfinite(v)} for r in reports]
    assert [values for _, values in kept.reports] == finite
    assert any("eval_return_mean" in values for _, values in kept.reports)
    log = [line for line in (run / "log.txt").read_text().splitlines() if "--track" in line]
    warnings = [line for line in log if " warning " in line]
    assert len(warnings) == 3 and all("deliberate: no" in line for line in warnings)
    assert len(failing[1].reports) == 1, "after a failure it gets nothing more"

    again = FakeSink()
    run_with([again], run, 4000)
    assert again.run is not None and again.run.env_steps >= 3000
    assert again.run.earlier["id"] == "id of keeps"
    assert again.run.earlier["reports"] == len(kept.reports), "as it was at the checkpoint"


@pytest.mark.multiprocess(timeout=120)
def test_csv_wandb_and_trackio_have_what_the_run_reported(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "train appo --env CartPole-v1 --serial --run-dir run --seed 1 --num-policies 2"
    words += " --train-for-env-steps 3000 --report-interval 1 --evaluate-interval 1000"
    words += " --evaluate-episodes 2 --num-envs-per-worker 8 --track csv wandb trackio"
    words += " --track-project p --track-name n --track-group g --quiet"
    places = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "TRACKIO_DIR": str(tmp_path)}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    done = run_cli(*words.split(), timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith("Finished") and len(done.stdout.splitlines()) == 1
    reports = [
        {name: value for name, value in report.items() if value is not None}
        for report in read_metrics(tmp_path / "run" / "metrics.jsonl")
    ]
    rows = read_rows(tmp_path / "run" / "metrics.csv")
    assert [{n: float(v) for n, v in row.items() if v} for row in rows] == reports

    expected = []
    for report in reports:
        found = evaluations(report)
        evaluated = {name for result in found.values() for name in result}
        now = {name: value for name, value in report.items() if name not in evaluated}
        parts = [now, *found.values()]
        expected += [{tag(n, POLICIES): v for n, v in part.items()} for part in parts]
    assert sum("policy_1/eval/return_mean" in part for part in expected) > 0

    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    sent = history(file)
    assert [{n: row[n] for n in part} for row, part in zip(sent, expected, strict=True)] == expected
    added = {n for row, part in zip(sent, expected, strict=True) for n in set(row) - set(part)}
    assert added <= {"rollout/env_steps"}, "wandb repeats the horizontal axis beside evaluations"
    first = next(each.run for each in records(file) if each.HasField("run"))
    assert (first.project, first.display_name, first.run_group) == ("p", "n", "g")
    assert {item.key: item.value_json for item in first.config.update}["env"] == '"CartPole-v1"'
    axes = [each.metric for each in records(file) if each.HasField("metric")]
    assert {"*": "rollout/env_steps", "policy_1/eval/*": "policy_1/eval/env_steps"}.items() <= {
        axis.glob_name: axis.step_metric for axis in axes
    }.items()
    last = [each.summary.update for each in records(file) if each.HasField("summary")]
    assert any(item.key == "status" for update in last for item in update)

    with sqlite3.connect(tmp_path / "p.db") as database:
        logged = database.execute("select run_name, metrics from metrics order by id").fetchall()
        ((config,),) = database.execute("select config from configs").fetchall()
    database.close()
    assert {name for name, _ in logged} == {"n"} and json.loads(config)["env"] == "CartPole-v1"
    metrics = [json.loads(values) for _, values in logged]
    assert metrics[:-1] == expected and metrics[-1]["summary/env_steps"] >= 3000


class FakeWandb:
    """An offline run, whose own count of steps begins at 0 whatever was logged before."""

    Settings = dict

    def __init__(self) -> None:
        self.id, self.step, self.offline, self.dir = "abc", 0, True, "wandb/offline/files"
        self.steps: list[int] = []

    def init(self, **_: Any) -> FakeWandb:
        return self

    def define_metric(self, *_: Any, **__: Any) -> None: ...

    def log(self, _values: dict[str, float], step: int) -> None:
        self.steps.append(step)


def test_an_offline_run_of_wandb_goes_on_counting_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier: Mapping[str, Any] = {}
    logged = []
    for env_steps in (0, 100):
        fake = FakeWandb()
        monkeypatch.setitem(sys.modules, "wandb", fake)
        sink = WandbRun()
        sink.start(TrackedRun(tmp_path, "p", "n", None, {}, env_steps, earlier))
        for _ in range(3):
            sink.report({"env_steps": env_steps, "eval_return_mean": 1.0, "eval_env_steps": 1.0}, 1)
        earlier = sink.state()
        logged += fake.steps
    assert logged == list(range(12))


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r'pip install "sampleforge\[wandb\]"'):
        tracking_callbacks(AppoConfig(env="CartPole-v1", track=("csv", "wandb")))
    with pytest.raises(ConfigError, match=r"--track-group g: .* add --track wandb"):
        AppoConfig(env="CartPole-v1", track=("csv",), track_group="g")


def test_a_csv_file_gets_columns_later_and_drops_steps_that_are_done_again(tmp_path: Path) -> None:
    def write(start: int, *reports: dict[str, float]) -> list[dict[str, str]]:
        sink = CsvFile()
        sink.start(TrackedRun(tmp_path, "p", "n", None, {}, start, {}))
        for report in reports:
            sink.report(report, int(report["env_steps"]))
        sink.finish({})
        return read_rows(tmp_path / "metrics.csv")

    rows = write(0, {"env_steps": 1.0, "a": 2.0}, {"env_steps": 2.0, "b": 0.5})
    assert rows == [
        {"env_steps": "1.0", "a": "2.0", "b": ""},
        {"env_steps": "2.0", "a": "", "b": "0.5"},
    ]
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("3.0,7")  # a kill in the middle of a line
    rows = write(1, {"env_steps": 2.0, "b": 0.25})
    assert [(row["env_steps"], row["b"]) for row in rows] == [("1.0", ""), ("2.0", "0.25")]


TWO_RUNS = """
from pathlib import Path
from sampleforge.tools.tracking import TrackedRun
from sampleforge.tools.tracking import TrackioRun

sinks = {name: TrackioRun() for name in "ab"}
for name, sink in sinks.items():
    sink.start(TrackedRun(Path(), "p", name, None, {}, 0, {}))
for step in (1, 2):
    for name, sink in sinks.items():
        sink.report({"return_mean": step + 10.0 * (name == "b")}, step)
for sink in sinks.values():
    sink.finish({"left": 3})
"""


@pytest.mark.multiprocess
def test_two_runs_of_trackio_in_one_thread_do_not_end_each_other(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_RUNS],
        env={**os.environ, "TRACKIO_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, ""), done
    with sqlite3.connect(tmp_path / "p.db") as database:
        logged = database.execute("select run_name, metrics from metrics order by id").fetchall()
    database.close()
    returns: dict[str, list[float]] = {"a": [], "b": []}
    for name, metrics in logged:
        returns[name] += json.loads(metrics).values()
    assert returns == {"a": [1.0, 2.0, 3], "b": [11.0, 12.0, 3]}


SAME_NAME = """
from pathlib import Path
from sampleforge.tools.tracking import TrackedRun
from sampleforge.tools.tracking import TrackioRun

def report(value, name, earlier):
    sink = TrackioRun()
    text = sink.start(TrackedRun(Path(), "p", name, None, {}, 0, earlier))
    sink.report({"return_mean": value}, 1)
    state = sink.state()
    sink.finish({})
    return state, text

first, _ = report(1.0, "n", {})
report(2.0, "n", {})
_, text = report(3.0, "other", first)
print(text)
"""


@pytest.mark.multiprocess
def test_a_run_of_trackio_is_resumed_though_a_newer_one_has_its_name(tmp_path: Path) -> None:
    """And though it is given another name, which trackio cannot change."""
    environ = {**os.environ, "TRACKIO_DIR": str(tmp_path)}
    script = [sys.executable, "-c", SAME_NAME]
    done = subprocess.run(script, env=environ, check=True, capture_output=True, text=True)
    assert "(its name there stays n, not other): trackio show --project p" in done.stdout
    with sqlite3.connect(tmp_path / "p.db") as database:
        logged = database.execute("select run_id, metrics from metrics order by id").fetchall()
    database.close()
    reports = [run for run, metrics in logged if "rollout/return_mean" in json.loads(metrics)]
    first, newer, resumed = reports
    assert first == resumed != newer
