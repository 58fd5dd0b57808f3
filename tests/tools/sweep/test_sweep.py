"""A sweep: its trials end as they should, and it goes on after its launcher was killed."""

from __future__ import annotations

import errno
import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sampleforge.config import ConfigError
from sampleforge.run.folder.files import writing
from sampleforge.tools.jobs.jobs import LaunchFailed
from sampleforge.tools.jobs.training_job import (
    Outcome,
    ask_to_stop,
    write_outcome,
)
from sampleforge.tools.plots.sweep import axis_of, draw_sweep, picture
from sampleforge.tools.sweep.spec import read_spec
from sampleforge.tools.sweep.study import news, table
from sampleforge.tools.sweep.sweep import Sweep
from tests.support.jobs import JobsAtOnce, TrainingsAtOnce, is_asked_to_stop
from tests.support.processes import RunCli

SPEC = """
algo: appo
trials: 6
pruning_points: 10
config: {env: CartPole-v1, train_for_env_steps: 1000}
search: {gamma: {low: 0.5, high: 0.99}, exploration: {choices: [entropy, symmetric_kl]}}
"""
STEPS = 10


def towards_100_gamma(config: Any) -> Iterator[dict[str, Any]]:
    """Ten reports, in which the return grows towards 100 gamma."""
    for step in range(1, STEPS + 1):
        value = 100.0 * config.gamma * step / STEPS
        yield {"env_steps": 100 * step, "wall_s": 1.0, "return_mean": value}


FakeJobs = partial(TrainingsAtOnce, towards_100_gamma)


def new_sweep(tmp_path: Path, jobs: JobsAtOnce, text: str = SPEC) -> Sweep:
    (tmp_path / "spec.yaml").write_text(text)
    folder = tmp_path / "sweep"
    folder.mkdir(exist_ok=True)
    return Sweep(read_spec(tmp_path / "spec.yaml"), folder, jobs)


def run(sweep: Sweep, steps: int = 100) -> dict[str, Any]:
    for _ in range(steps):
        if sweep.done:
            break
        sweep.step()
    return sweep.summary()


@pytest.mark.long
def test_the_best_trial_is_found_and_written_down(tmp_path: Path) -> None:
    sweep = new_sweep(tmp_path, FakeJobs(limit=2))
    summary = run(sweep)
    values = [trial.value or 0.0 for trial in sweep.trials()]
    assert (summary["trials"], summary["complete"], summary["failed"]) == (6, 6, 0)
    assert summary["best"]["value"] == max(values)
    assert summary["best"]["value"] == pytest.approx(100 * summary["best"]["params"]["gamma"])
    assert json.loads((tmp_path / "sweep" / "results.json").read_text()) == summary
    config = [(t.params["gamma"], t.params["exploration"]) for t in sweep.trials()]
    assert len(set(config)) == 6


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["random", "tpe", "grid"])
def test_a_resumed_sweep_keeps_its_trials_and_draws_new_values(
    tmp_path: Path, sampler: str
) -> None:
    text = f"{SPEC}sampler: {sampler}\n"
    if sampler == "grid":
        text = text.replace("high: 0.99}", "high: 0.7, step: 0.1}")
    first = new_sweep(tmp_path, FakeJobs(), text)
    for _ in range(4):
        first.step()
    before = [(t.number, t.value, t.params) for t in first.trials() if t.state == "complete"]
    assert before
    second = new_sweep(tmp_path, FakeJobs(), text)
    summary = run(second)
    after = [(t.number, t.value, t.params) for t in second.trials()]
    assert after[: len(before)] == before and summary["complete"] == 6
    gammas = {(t.params["gamma"], t.params["exploration"]) for t in second.trials()}
    assert len(gammas) == 6


@pytest.mark.long
def test_trials_that_had_begun_are_taken_over(tmp_path: Path) -> None:
    first = new_sweep(tmp_path, FakeJobs(killed=["0001"]))
    first.step()
    first.step()  # the job of trial 1 is killed, and so is the launcher
    jobs = FakeJobs()
    second = new_sweep(tmp_path, jobs)
    run(second)
    assert jobs.started[0] == "0001"
    assert [trial.state for trial in second.trials()] == ["complete"] * 6


def test_every_point_of_a_grid_is_taken_over(tmp_path: Path) -> None:
    """0.1 + 2 * 0.1 is above 0.3 by rounding."""
    text = """
algo: appo
sampler: grid
config: {env: CartPole-v1, train_for_env_steps: 1000}
search: {clip_ratio: {low: 0.1, high: 0.3, step: 0.1}}
"""
    first = new_sweep(tmp_path, FakeJobs(3, ["0000", "0001", "0002"]), text)
    first.step()
    second = new_sweep(tmp_path, FakeJobs(3), text)
    assert run(second)["complete"] == 3
    assert sorted(trial.params["clip_ratio"] for trial in second.trials()) == [0.1, 0.2, 0.3]


@pytest.mark.long
def test_killed_jobs_start_again_a_few_times(tmp_path: Path) -> None:
    jobs = FakeJobs(killed=["0000"] * 3 + ["0001"] * 4)
    sweep = new_sweep(tmp_path, jobs)
    run(sweep)
    assert jobs.started.count("0000") == 4 and jobs.started.count("0001") == 4
    states = [trial.state for trial in sweep.trials()]
    assert states == ["complete", "failed", *["complete"] * 4]
    assert sweep.error is not None and "killed 4 times" in sweep.error


class Interrupted(TrainingsAtOnce):
    """Jobs that a time limit ends ``times``; the first ``new`` of them have got on."""

    def __init__(self, times: int, new: int) -> None:
        super().__init__(towards_100_gamma)
        self._times, self._new = times, new

    def start(self, works: Any) -> None:
        super().start(works)
        for work in works.values():
            folder = Path(work.config.run_dir)
            if len(self.started) <= self._times:
                write_outcome(folder, Outcome("interrupted"))
            if len(self.started) <= self._new:
                (folder / "checkpoints").mkdir(exist_ok=True)
                name = f"{len(self.started):012d}-0123456789abcdef.safetensors"
                (folder / "checkpoints" / name).touch()


@pytest.mark.parametrize(
    ("times", "new", "jobs", "state"),
    [(8, 8, 9, "complete"), (3, 0, 4, "complete"), (10, 0, 4, "failed"), (10, 2, 6, "failed")],
)
def test_a_trial_that_is_interrupted_goes_on_as_long_as_it_gets_on(
    tmp_path: Path, times: int, new: int, jobs: int, state: str
) -> None:
    """A time limit that is shorter than the start would begin it for ever."""
    fake = Interrupted(times, new)
    sweep = new_sweep(tmp_path, fake, SPEC.replace("trials: 6", "trials: 1"))
    run(sweep)
    (trial,) = sweep.trials()
    assert (trial.state, len(fake.started)) == (state, jobs)
    if state == "failed":
        assert trial.error is not None and "--slurm time=MINUTES" in trial.error


class Refused(TrainingsAtOnce):
    """Jobs of a cluster that refuses the second time, and takes nothing for the moment then."""

    def __init__(self) -> None:
        super().__init__(towards_100_gamma, limit=2)
        self.refused: list[list[str]] = []
        self._asked = 0

    @property
    def free(self) -> int:
        return 0 if self._asked % 4 == 3 else super().free

    def start(self, works: Any) -> None:
        self._asked += 1
        if self._asked % 4 == 2:
            self.refused.append([*works])
        else:
            super().start(works)


def test_trials_that_a_cluster_refuses_wait_and_begin_later(tmp_path: Path) -> None:
    jobs = Refused()
    sweep = new_sweep(tmp_path, jobs)
    sweep.step()
    sweep.step()
    assert jobs.refused == [["0002", "0003"]]
    assert [trial.state for trial in sweep.trials()][2:] == ["waiting", "waiting"]
    summary = run(sweep)
    assert summary["complete"] == 6 and sorted(jobs.started) == [f"{n:04d}" for n in range(6)]


@pytest.mark.long
def test_trials_that_are_worse_than_the_median_are_pruned(tmp_path: Path) -> None:
    sweep = new_sweep(
        tmp_path, FakeJobs(), SPEC.replace("trials: 6", "trials: 15") + "pruner: median\n"
    )
    run(sweep)
    trials = sweep.trials()
    pruned = [trial for trial in trials if trial.state == "pruned"]
    assert pruned and all(trial.state in ("complete", "pruned") for trial in trials)
    assert trials[0].state == "complete"
    for trial in pruned:
        assert is_asked_to_stop(tmp_path / "sweep" / "trials" / f"{trial.number:04d}")
    best = sweep.summary()["best"]
    assert best["value"] == max(t.value or 0.0 for t in trials if t.state == "complete")


@pytest.mark.long
def test_the_result_has_a_number_that_yaml_reads_as_a_text(tmp_path: Path) -> None:
    searched = "search: {gamma: {choices: [0.5, 99e-2]}}"
    text = f"algo: appo\nsampler: grid\nconfig: {{env: E, train_for_env_steps: 1000}}\n{searched}\n"
    summary = run(new_sweep(tmp_path, FakeJobs(), text))
    assert summary["best"]["params"] == {"gamma": 0.99}
    assert json.loads((tmp_path / "sweep" / "results.json").read_text()) == summary


@pytest.mark.long
def test_hyperband_stops_trials_early_and_never_the_best(tmp_path: Path) -> None:
    """Return grows with gamma at every point, so a trial with the highest gamma of all so far is
    better than those before, and is not pruned."""
    text = SPEC.replace("trials: 6", "trials: 40") + "pruner: hyperband\nsampler: random\n"
    sweep = new_sweep(tmp_path, FakeJobs(), text)
    run(sweep)
    trials = sweep.trials()
    pruned = [trial for trial in trials if trial.state == "pruned"]
    assert len(pruned) >= 10 and all(trial.state in ("complete", "pruned") for trial in trials)
    record = 0.0
    for trial in trials:
        assert trial.state == "complete" or trial.params["gamma"] < record
        record = max(record, trial.params["gamma"])
    for trial in pruned:
        assert is_asked_to_stop(tmp_path / "sweep" / "trials" / f"{trial.number:04d}")
    best = sweep.summary()["best"]
    assert best["params"]["gamma"] == max(trial.params["gamma"] for trial in trials)


def failing(config: Any) -> list[dict[str, Any]]:
    raise ValueError("no such thing")


def test_a_sweep_ends_if_its_first_trials_all_fail(tmp_path: Path) -> None:
    with pytest.raises(
        LaunchFailed, match=r"first 3 trials to end have all failed; trial 0002: Traceback"
    ):
        run(new_sweep(tmp_path, TrainingsAtOnce(failing)))


def on_a_full_disk(config: Any) -> Iterator[dict[str, Any]]:
    with writing(Path(config.run_dir) / "metrics.jsonl"):
        raise OSError(errno.ENOSPC, "No space left on device")
    yield {}


def test_a_full_disk_ends_a_sweep_and_its_trials_go_on_later(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match=r"trial 0000: .*No space left.*the same command with"):
        run(new_sweep(tmp_path, TrainingsAtOnce(on_a_full_disk)))
    summary = run(new_sweep(tmp_path, FakeJobs()))
    assert (summary["trials"], summary["complete"], summary["failed"]) == (6, 6, 0)


def test_a_storage_that_cannot_be_written_ends_a_sweep_with_the_reason(tmp_path: Path) -> None:
    sweep = new_sweep(tmp_path, FakeJobs())
    with closing(sqlite3.connect(tmp_path / "sweep" / "study.db")) as storage:
        storage.execute(
            "CREATE TRIGGER full BEFORE INSERT ON trials "
            "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        )
    with pytest.raises(LaunchFailed, match=r"study.db cannot be written: database or disk is full"):
        sweep.step()


def with_a_setting_that_nothing_reads(config: Any) -> Iterator[dict[str, Any]]:
    line = f"--lr-target-kl {config.gamma} has no effect: it is for --lr-schedule kl_adaptive\n"
    (Path(config.run_dir) / "log.txt").write_text(f"2026-01-01 00:00:00 session  warning {line}")
    yield from towards_100_gamma(config)


def test_a_setting_without_effect_is_told_of_once(tmp_path: Path) -> None:
    """The runs of trials are quiet, and only their logs said so."""
    jobs = TrainingsAtOnce(with_a_setting_that_nothing_reads)
    run(new_sweep(tmp_path, jobs))
    (text,) = jobs.take_messages()
    assert text.startswith("trial 0000: --lr-target-kl ") and " has no effect: it is for" in text


class FirstGoesOn(TrainingsAtOnce):
    """Three jobs at a time, of which that of the first trial ends last of six, with ``reports``;
    those of the others fail."""

    def __init__(self, reports: list[dict[str, Any]]) -> None:
        super().__init__(
            lambda config: reports if config.run_dir.endswith("0000") else failing(config), limit=3
        )

    def take_ended(self) -> list[str]:
        first = self._jobs.pop("0000", None)
        ended = super().take_ended()
        if first is None:
            return ended
        if len(self.started) == 6:
            return [*ended, "0000"]
        self._jobs["0000"] = first
        return ended


def test_a_sweep_goes_on_while_a_trial_trains(tmp_path: Path) -> None:
    report = {"env_steps": 900, "wall_s": 1.0, "return_mean": 5.0}
    summary = run(new_sweep(tmp_path, FirstGoesOn([report])))
    assert (summary["complete"], summary["failed"]) == (1, 5)


@pytest.mark.parametrize(
    ("reports", "failed", "last"),
    [([{"env_steps": 900, "wall_s": 1.0}], 6, "0000"), ([], 3, "0003")],
)
def test_a_trial_without_the_metric_keeps_the_sweep_alive_by_its_reports(
    tmp_path: Path, reports: list[dict[str, Any]], failed: int, last: str
) -> None:
    with pytest.raises(LaunchFailed, match=f"first {failed} trials to end .* trial {last}"):
        run(new_sweep(tmp_path, FirstGoesOn(reports)))


def test_trials_that_are_refused_before_they_run_do_not_end_a_sweep(tmp_path: Path) -> None:
    text = """
algo: appo
trials: 4
config: {env: CartPole-v1, train_for_env_steps: 1000}
search: {batch_size: {choices: [128, 256, 512]}, minibatch_size: {choices: [128, 256, 512]}}
"""

    def in_large_batches(config: Any) -> Any:
        return towards_100_gamma(config) if config.batch_size == 512 else failing(config)

    first = new_sweep(tmp_path, TrainingsAtOnce(in_large_batches), text)
    for batch, minibatch in ((128, 256), (128, 512), (256, 512), (128, 128)):
        first.propose({"batch_size": batch, "minibatch_size": minibatch})
    assert run(first)["failed"] == 4
    text = text.replace("trials: 4", "trials: 6")
    second = new_sweep(tmp_path, TrainingsAtOnce(in_large_batches), text)
    for batch, minibatch in ((256, 256), (512, 512)):
        second.propose({"batch_size": batch, "minibatch_size": minibatch})
    summary = run(second)
    assert (summary["complete"], summary["failed"]) == (1, 5)


def test_a_searched_seed_is_that_of_the_trial(tmp_path: Path) -> None:
    seeds = []

    def noted(config: Any) -> Iterator[dict[str, Any]]:
        seeds.append(config.seed)
        return towards_100_gamma(config)

    text = "algo: appo\nsampler: grid\nconfig: {env: CartPole-v1, train_for_env_steps: 1000}\n"
    sweep = new_sweep(
        tmp_path, TrainingsAtOnce(noted), f"{text}search: {{seed: {{choices: [5, 7]}}}}\n"
    )
    assert run(sweep)["complete"] == 2
    assert seeds == [trial.params["seed"] for trial in sweep.trials()]
    assert sorted(seeds) == [5, 7]


def test_a_trial_whose_values_do_not_fit_together_fails_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    text = """
algo: appo
sampler: grid
config: {env: CartPole-v1, train_for_env_steps: 1000}
search: {batch_size: {choices: [128, 256]}, minibatch_size: {choices: [128, 256]}}
"""
    sweep = new_sweep(tmp_path, FakeJobs(), text)
    summary = run(sweep)
    assert sweep.done and (summary["complete"], summary["failed"]) == (3, 1)
    (failed,) = (trial for trial in sweep.trials() if trial.state == "failed")
    assert failed.params == {"batch_size": 128, "minibatch_size": 256}
    assert failed.error is not None and "minibatch" in failed.error
    assert failed.error in "\n".join(news(sweep.trials(), sweep.spec, {}))
    console = Console(file=io.StringIO(), width=200)
    console.print(table(sweep.trials(), sweep.spec, None))
    assert "--minibatch-size 256" in console.file.getvalue()  # type: ignore[attr-defined]
    again = new_sweep(tmp_path, FakeJobs(), text)
    assert again.done and again.trials() == sweep.trials()


def test_a_trial_that_was_to_stop_but_came_to_its_end_first_is_complete(tmp_path: Path) -> None:
    class EndedBefore(JobsAtOnce):
        def start(self, works: Any) -> None:
            for name, work in works.items():
                folder = Path(work.config.run_dir)
                folder.mkdir(parents=True)
                lines = [json.dumps(report) + "\n" for report in towards_100_gamma(work.config)]
                (folder / "metrics.jsonl").write_text("".join(lines))
                write_outcome(folder, Outcome("finished"))
                ask_to_stop(folder)
                self._jobs[name] = work

    sweep = new_sweep(tmp_path, EndedBefore(), SPEC.replace("trials: 6", "trials: 1"))
    summary = run(sweep)
    assert summary["complete"] == 1 and summary["best"]["trial"] == 0


@pytest.mark.long
def test_a_metric_that_no_report_has_is_named(tmp_path: Path) -> None:
    sweep = new_sweep(tmp_path, FakeJobs(), SPEC + "metric: retrun_mean\n")
    with pytest.raises(
        LaunchFailed, match="no report of the run has retrun_mean; did you mean ret"
    ):
        run(sweep)


def test_a_trial_whose_last_metric_is_null_fails(tmp_path: Path) -> None:
    """A report without the metric, as between two evaluations, leaves the earlier value."""
    ends: list[dict[str, Any]] = [{"return_mean": None}, {}]

    def returns(config: Any) -> list[dict[str, Any]]:
        one = {"env_steps": 500, "wall_s": 1.0}
        return [one | {"return_mean": None}, one | {"return_mean": 7.0}, one | ends.pop(0)]

    text = SPEC.replace("trials: 6", "trials: 2")
    sweep = new_sweep(tmp_path, TrainingsAtOnce(returns), text)
    summary = run(sweep)
    first, second = sweep.trials()
    assert (first.state, first.error) == ("failed", "its last report has no finite return_mean")
    assert (second.state, second.value) == ("complete", 7.0)
    assert summary["best"]["trial"] == 1


def test_another_specification_is_refused_but_more_trials_are_not(tmp_path: Path) -> None:
    new_sweep(tmp_path, FakeJobs())
    assert new_sweep(tmp_path, FakeJobs(), SPEC.replace("trials: 6", "trials: 8"))
    with pytest.raises(ConfigError, match=r"search.gamma.high: 0.99 -> 0.9"):
        new_sweep(tmp_path, FakeJobs(), SPEC.replace("high: 0.99", "high: 0.9"))


def test_the_edited_file_of_the_folder_itself_is_compared_with_the_specification(
    tmp_path: Path,
) -> None:
    new_sweep(tmp_path, FakeJobs())
    folder = tmp_path / "sweep"
    own = folder / "sweep.yaml"
    own.write_text(SPEC.replace("1000", "2000").replace("trials: 6", "trials: 8"))
    with pytest.raises(ConfigError) as refused:
        Sweep(read_spec(own), folder, FakeJobs())
    assert "config.train_for_env_steps: 1000 -> 2000" in str(refused.value)
    assert "trials" not in str(refused.value).partition("\nundo")[0]
    own.write_text(SPEC.replace("trials: 6", "trials: 8"))
    assert Sweep(read_spec(own), folder, FakeJobs()).spec.num_trials == 8


def test_a_sweep_of_an_earlier_version_is_compared_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.yaml").write_text(SPEC)
    with pytest.raises(ConfigError, match=r"search.gamma.high: 0.99 -> 0.9"):
        new_sweep(tmp_path, FakeJobs(), SPEC.replace("high: 0.99", "high: 0.9"))
    new_sweep(tmp_path, FakeJobs())  # the study has the specification now
    (tmp_path / "sweep" / "sweep.yaml").write_text(SPEC.replace("high: 0.99", "high: 0.9"))
    with pytest.raises(ConfigError, match=r"search.gamma.high: 0.99 -> 0.9"):
        new_sweep(tmp_path, FakeJobs(), SPEC.replace("high: 0.99", "high: 0.9"))


def test_a_storage_cannot_add_settings_or_values_to_a_trial(tmp_path: Path) -> None:
    """The folder may come from an unknown source, and ``env`` names code."""
    import optuna

    first = new_sweep(tmp_path, FakeJobs())
    choices = optuna.distributions.CategoricalDistribution(["evil:make"])
    first.study.ask({"env": choices})
    jobs = FakeJobs()
    second = new_sweep(tmp_path, jobs)
    (failed,) = second.trials()
    assert failed.state == "failed"
    assert failed.error == "'env' 'evil:make' is not in search of the file"
    assert failed.error in "\n".join(news(second.trials(), second.spec, {}))
    second.step()
    assert jobs.started == ["0001"]


def test_a_trial_that_was_never_asked_for_whole_says_so(tmp_path: Path) -> None:
    """The launcher was killed while it asked Optuna for a trial."""
    import optuna

    first = new_sweep(tmp_path, FakeJobs())
    first.study.ask({"gamma": optuna.distributions.FloatDistribution(0.5, 0.99)})
    (failed,) = new_sweep(tmp_path, FakeJobs()).trials()
    assert failed.state == "failed"
    assert failed.error == "the command was killed before this trial had its exploration"


def test_a_storage_with_other_ranges_is_refused(tmp_path: Path) -> None:
    import optuna

    first = new_sweep(tmp_path, FakeJobs())
    first.study.ask({"gamma": optuna.distributions.CategoricalDistribution(["high"])})
    with pytest.raises(ConfigError, match=r"study\.db is of another sweep"):
        new_sweep(tmp_path, FakeJobs()).step()


def test_a_storage_that_is_damaged_is_refused(tmp_path: Path) -> None:
    new_sweep(tmp_path, FakeJobs())
    (tmp_path / "sweep" / "study.db").write_bytes(b"no database" * 100)
    with pytest.raises(ConfigError, match=r"study\.db cannot be read"):
        new_sweep(tmp_path, FakeJobs())


@pytest.mark.long
def test_the_picture_shows_every_trial(tmp_path: Path) -> None:
    sweep = new_sweep(tmp_path, FakeJobs())
    with pytest.raises(ConfigError, match="no trial has ended"):
        picture(tmp_path / "sweep")
    run(sweep)
    shown = picture(tmp_path / "sweep")
    assert len(shown.trials) == 6 and shown.best is not None
    assert max(shown.importance, key=lambda name: shown.importance[name]) == "gamma"
    draw_sweep(shown, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 10_000


def test_axes_have_texts_in_order_and_numbers_in_proportion() -> None:
    assert axis_of(["b", "a", "c"], log=False)[0] == {"a": 0.0, "b": 0.5, "c": 1.0}
    assert axis_of([1.0, 2.0, 5.0], log=False)[0] == {1.0: 0.0, 2.0: 0.25, 5.0: 1.0}
    log = axis_of([1e-4, 1e-3, 1e-2], log=True)[0]
    assert log[1e-3] == pytest.approx(0.5)
    assert axis_of([3], log=False)[0] == {3: 0.5}
    assert axis_of([True, None], log=False)[0].keys() == {True, None}


@pytest.mark.multiprocess(timeout=240)
def test_the_command_searches_and_resumes(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(
        """
algo: appo
trials: 1
sampler: random
config:
  env: CartPole-v1
  train_for_env_steps: 3000
  serial: true
  num_envs_per_worker: 8
  report_interval: 0.2
search: {learning_rate: {low: 1e-4, high: 1e-2, log: true}}
"""
    )
    command = ["sweep", "sweep.yaml", "--folder", "s", "--jobs", "1"]
    done = run_cli(*command, timeout=100)
    assert done.returncode == 0, done.stderr + done.stdout
    first = json.loads(done.stdout.splitlines()[-1])
    assert first["complete"] == 1 and first["best"]["value"] > 0
    summary = json.loads((tmp_path / "s" / first["best"]["run_dir"] / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["env_steps"] >= 3000
    text = (tmp_path / "sweep.yaml").read_text().replace("trials: 1", "trials: 2")
    (tmp_path / "sweep.yaml").write_text(text)
    again = run_cli(*command, timeout=100)
    second = json.loads(again.stdout.splitlines()[-1])
    assert second["complete"] == 2
    drawn = run_cli("plot", "s", "--out", "s.png")
    assert drawn.returncode == 0 and (tmp_path / "s.png").stat().st_size > 10_000
