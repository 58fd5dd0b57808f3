"""Reports: every scalar in metrics.jsonl and TensorBoard, and lines that people can read."""

from __future__ import annotations

import io
import json
import math
import re
import tracemalloc
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sampleforge.run.folder.files import LineFile
from sampleforge.run.reports.metrics import has_reports, read_metrics, tag
from sampleforge.run.reports.reporter import EventFile, Reporter
from sampleforge.run.reports.verdict import Verdict
from sampleforge.run.reports.workers import RunState
from sampleforge.run.screen.live_panel import LivePanel
from sampleforge.run.screen.progress import Goal, duration, short
from sampleforge.run.screen.screen import LineDisplay
from sampleforge.shared.records import Evaluation
from sampleforge.tools.plots.curves import Look, draw
from tests.support.full_disk import full_disk
from tests.support.reports import SCALARS, events, make_run, report_steps, reporter


def test_every_scalar_goes_to_both_files(folder):
    report_steps(folder, 100, 200)
    lines = [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]
    assert [line["env_steps"] for line in lines] == [100, 200]
    assert lines[0] == {**SCALARS, "env_steps": 100, "wall_s": 1.0}
    written = list(events(folder))
    assert [step for step, _ in written] == [100, 200]
    assert set(written[0][1]) == {tag(name) for name in lines[0]}
    assert written[0][1]["losses/loss"] == pytest.approx(-0.0123)


def test_what_is_not_finite_becomes_null(folder):
    reporting, screen = reporter(folder)
    with reporting:
        values = {"return_mean": math.nan, "loss": math.inf}
        reporting.report(values, env_steps=1, wall_s=0.0)
    assert read_metrics(folder.metrics_file)[0] == {
        **{"env_steps": 1, "wall_s": 0.0, "return_mean": None, "loss": None}
    }
    assert "nan" not in screen.getvalue()


def test_the_look_whether_there_is_a_report_ends_at_the_first_good_line(folder):
    assert not has_reports(folder.metrics_file), "there is no file"
    report = json.dumps({"env_steps": 100, "wall_s": 1.0, "loss": 0.5})
    folder.metrics_file.write_text(f"[]\n{report}")
    assert not has_reports(folder.metrics_file), "neither line is a whole report"
    folder.metrics_file.write_text("[]\n" + f"{report}\n" * 20_000)
    tracemalloc.start()
    try:
        assert has_reports(folder.metrics_file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 400_000, "bytes, of a file of a million"


def test_a_line_cut_off_by_a_kill_is_dropped_and_the_file_continued(folder):
    report_steps(folder, 100, 200)
    with folder.metrics_file.open("a") as file:
        file.write('{"env_steps": 300, "wa')
    assert [r["env_steps"] for r in read_metrics(folder.metrics_file)] == [100, 200]
    report_steps(folder, 300)
    lines = folder.metrics_file.read_text().splitlines()
    assert [json.loads(line)["env_steps"] for line in lines] == [100, 200, 300]


def test_a_cut_off_line_of_any_length_is_dropped(tmp_path):
    path = tmp_path / "lines"
    for whole, rest in ((b"", b"x" * 200_000), (b"a\n", b"x" * 200_000), (b"a\n", b"")):
        path.write_bytes(whole + rest)
        lines = LineFile(path)
        lines.write("end")
        lines.close()
        assert path.read_bytes() == whole + b"end\n"


def test_reports_of_steps_done_again_replace_the_earlier_ones(folder):
    report_steps(folder, 100, 200, 300)
    report_steps(folder, 150, 250)
    assert [r["env_steps"] for r in read_metrics(folder.metrics_file)] == [100, 150, 250]


def test_plain_lines_are_aligned_and_have_no_escapes(folder):
    shown = report_steps(folder, 100, 250_000, 1_000_000, total_env_steps=2_000_000)
    lines = shown.splitlines()
    assert len(lines) == 4 and len({len(line) for line in lines}) == 1
    assert "\x1b" not in shown
    assert lines[2].split()[1:4] == ["250,000", "45.2k", "-"] and "123.46" in lines[2]


def test_live_panel_shows_progress_and_leaves_the_last_line_last(folder):
    reporting, screen = reporter(folder, terminal=True, total_env_steps=1000, total_seconds=60.0)
    with reporting:
        reporting.report(SCALARS, env_steps=250, wall_s=5.0)
        reporting.report(SCALARS, env_steps=500, wall_s=10.0)
        reporting.log("finished", "result")
    shown = screen.getvalue()
    for part in ("E, appo", " 50%", "500 / 1,000 env steps", "0:10 left", "50 average", "± 3.00"):
        assert part in shown
    assert shown.rstrip().endswith("finished")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_replay_is_shown_where_others_have_policy_lag(folder, terminal):
    learned = {"loss": 0.5, "q_mean": 12.5, "td_error_mean": 0.25, "samples_per_insert": 7.96}
    replay = {"replay_transitions": 45_210.0, "replay_fill": 0.43}
    reporting, screen = reporter(folder, terminal=terminal)
    with reporting:
        reporting.report(
            {"frames_per_s_10s": 45_210.0, **learned, **replay}, env_steps=250, wall_s=5.0
        )
    shown = screen.getvalue()
    panel = ("45.2k steps (43% full)", "7.96 samples per insert", "mean 12.5", "mean 0.25")
    for part in panel if terminal else (" fill ", " 43% "):
        assert part in shown
    assert "lag" not in shown and "policy" not in shown


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("algo", ["appo", "apex"])
def test_the_panel_fits_into_60_and_80_columns(folder, algo, width):
    rates = dict.fromkeys(("frames_per_s_10s", "frames_per_s_60s", "trained_per_s"), 145_210.0)
    learned = {"return_mean": -1234.56, "return_std": 123.45, "episodes": 1e6, "length_mean": 1e3}
    if algo == "apex":
        learned |= {"replay_transitions": 1.25e6, "replay_fill": 1.0, "samples_per_insert": 7.96}
        learned |= {"loss": -1.234e-5, "q_mean": -1.23e-5, "td_error_mean": 1.2e-5}
    else:
        learned |= dict.fromkeys(("loss", "policy_loss", "value_loss", "approx_kl"), -1.234e-5)
        learned |= {"entropy": 12.345, "clip_fraction": 1.0, "stale_fraction": 1.0}
        learned |= {"policy_lag_mean": 1234.5, "policy_lag_max": 12345.0}
        learned |= {"policy_lag_batches_mean": 123.4, "policy_lag_batches_max": 1234.5}
    rates |= {"env_steps_per_s": 36_302.5, "frames_per_s": 145_210.0, "restarts": 12.0}
    learned |= {"return_best": 12345.67, "grad_norm": 0.123, "ready_slots_fill": 0.17}
    reporting, screen = reporter(folder, terminal=True, width=width, total_env_steps=2 * 10**9)
    reporting.state = RunState((), Verdict("hand-over", "they wait for the learner", ()))
    with reporting:
        reporting.report(rates, env_steps=10**6, wall_s=5.0)
        reporting.report({**rates, **learned}, env_steps=10**9, wall_s=20_000.0)
    shown = screen.getvalue()
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= width and "\u2026" not in shown
    for part in ("grad norm", "36.3k now, 50k average", "best return 12,345.67", "12 workers"):
        assert part in shown
    assert "bottleneck hand-over: waiting for slots or actions" in shown
    if algo == "appo":
        assert "mean 123, max 1.23k updates" in shown and "100% of the rows" in shown
        assert "17% waiting for learner" in shown


@pytest.mark.parametrize("terminal", [False, True])
def test_the_last_known_losses_stay_on_the_screen(folder, terminal):
    reporting, screen = reporter(folder, terminal=terminal)
    with reporting:
        losses = {"loss": 0.125, "policy_loss": 0.125, "restarts": 0.0}
        reporting.report(losses, env_steps=100, wall_s=1.0)
        screen.truncate(0)
        reporting.report({"restarts": 0.0}, env_steps=200, wall_s=2.0)
    assert "0.125" in screen.getvalue()


def test_columns_of_lines_do_not_touch(folder):
    reporting, screen = reporter(folder)
    with reporting:
        values = {"loss": -0.0009208, "updates": 123_456_789.0, "length_mean": 12_345.6}
        values |= {"return_mean": -12_345.67, "policy_lag_mean": 1234.5, "trained_per_s": 99.9}
        reporting.report(values, env_steps=10**10, wall_s=100 * 3600)
    line = screen.getvalue().splitlines()[1]
    assert len(line.split()) == 10


def test_quiet_shows_errors_and_the_result_only(folder):
    reporting, screen = reporter(folder, quiet=True)
    with reporting:
        reporting.report(SCALARS, env_steps=1, wall_s=1.0)
        for level in ("debug", "info", "warning", "error", "result"):
            reporting.log(f"a {level}", level, source="actor 3")
    assert screen.getvalue() == "a error\na result\n"
    log = folder.log_file.read_text().splitlines()
    assert len(log) == 5 and all("actor 3" in line for line in log)


def test_every_line_of_a_message_has_its_prefix_and_brackets_are_text(folder):
    reporting, screen = reporter(folder)
    with reporting:
        reporting.log("Traceback\n  x[bold]\n", "error", source="learner")
    assert "x[bold]" in screen.getvalue()
    assert all(" learner " in line for line in folder.log_file.read_text().splitlines())


def test_a_full_disk_is_an_error_that_names_the_file(folder):
    reporting, _ = reporter(folder)
    with reporting:
        reporting.report(SCALARS, env_steps=1, wall_s=1.0)
        reporting.log("fits")
        room = folder.metrics_file.stat().st_size + 20
        with full_disk(room), pytest.raises(OSError, match=r"metrics\.jsonl"):
            reporting.report(SCALARS, env_steps=2, wall_s=2.0)
        with full_disk(1):
            with pytest.raises(OSError, match=r"log\.txt"):
                reporting.log("does not fit")
            reporting.log("is shown all the same", "error")
    assert [r["env_steps"] for r in read_metrics(folder.metrics_file)] == [1]


def test_tensorboard_drops_the_points_after_the_checkpoint_of_a_resume(folder):
    """From the env step of the event that says so on: not from the first new report on."""
    from tensorboardX.proto.event_pb2 import Event

    with Reporter(folder, 5000) as reporter:
        reporter.report({"loss": 1.0}, env_steps=5600, wall_s=1.0)
    (file,) = folder.tensorboard.iterdir()
    data, starts = file.read_bytes(), []
    while data:
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        starts += [event.step] if event.HasField("session_log") else []
        data = data[16 + size :]
    assert starts == [5001]


def test_a_full_disk_under_tensorboard_is_a_warning_and_the_reports_go_on(folder, monkeypatch):
    reporting, _ = reporter(folder)
    write = EventFile._write

    def on_a_full_disk(self, event):
        (file,) = folder.tensorboard.iterdir()
        with full_disk(file.stat().st_size + 20):
            write(self, event)

    with reporting:
        assert reporting.report(SCALARS, env_steps=1, wall_s=1.0) is None
        monkeypatch.setattr(EventFile, "_write", on_a_full_disk)
        warning = reporting.report(SCALARS, env_steps=2, wall_s=2.0)
        assert "TensorBoard gets nothing more" in warning and "File too large" in warning
        assert reporting.report(SCALARS, env_steps=3, wall_s=3.0) is None
    assert [r["env_steps"] for r in read_metrics(folder.metrics_file)] == [1, 2, 3]


def test_the_time_left_is_that_to_the_nearer_of_two_limits():
    goal = Goal(env_steps=1000, seconds=30.0)
    goal.observe({"env_steps": 0, "wall_s": 0.0})
    assert goal.seconds_left() == 30.0 and goal.fraction() == 0.0
    goal.observe({"env_steps": 100, "wall_s": 1.0})
    assert goal.seconds_left() == pytest.approx(9.0)
    assert goal.fraction() == pytest.approx(0.1)


def test_numbers_and_durations_are_shortened_for_the_screen():
    assert [short(x) for x in (0.0, 12.34, 999.6, 45_210, 2.5e6, math.nan)] == [
        *("0", "12.3", "1k", "45.2k", "2.5M", "-")
    ]
    assert [duration(x) for x in (0.4, 65, 3723, None)] == ["0:00", "1:05", "1:02:03", "-"]


def test_the_panel_says_which_workers_were_restarted() -> None:
    values = {"env_steps": 1.0, "wall_s": 1.0, "restarts": 3.0}
    roles = {"restarts_actor": 2.0, "restarts_learner": 0.0, "restarts_evaluator": 1.0}
    goal, written = Goal(None, None), io.StringIO()
    goal.observe(values)
    Console(width=100, file=written).print(LivePanel("run", {**values, **roles}, goal))
    assert "actor 2, evaluator 1" in written.getvalue()


FOUND = Evaluation(7, 1500, 10, 50.0, 4.0, 40.0, 60.0, 12.5)


def scalars() -> dict[str, float]:
    return {f"eval_{name}": value for name, value in FOUND.scalars().items()}


def test_tensorboard_has_evaluations_at_the_steps_of_their_weights(folder: Any) -> None:
    reporting, screen = reporter(folder)
    with reporting:
        reporting.report({"loss": 1.0, **scalars()}, env_steps=2000, wall_s=1.0)
    written = list(events(folder))
    assert [(step, set(values)) for step, values in written] == [
        (2000, {"losses/loss", "rollout/env_steps", "perf/wall_s"}),
        (1500, {f"eval/{name}" for name in FOUND.scalars()}),
    ]
    assert read_metrics(folder.metrics_file)[0]["eval_return_mean"] == 50.0
    assert "evaluated: 50.00 ± 4.00 (10 episodes, weights of 1,500 env steps)" in (
        screen.getvalue()
    )


def test_the_panel_keeps_the_latest_evaluation(folder: Any) -> None:
    assert "evaluated" not in report_steps(folder, 100, terminal=True)
    reporting, screen = reporter(folder, terminal=True)
    with reporting:
        reporting.report(scalars(), env_steps=2000, wall_s=1.0)
        screen.truncate(0)
        reporting.report({}, env_steps=3000, wall_s=2.0)
    assert "evaluated  50.00 ± 4.00" in screen.getvalue()


def test_evaluations_are_drawn_where_their_weights_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a marked line of their own, of the run that has them; the legend names each run once."""
    figure_module = pytest.importorskip("matplotlib.figure")
    figures = []
    monkeypatch.setattr(
        figure_module.Figure, "savefig", lambda self, *_, **__: figures.append(self)
    )

    def lines(evaluated: bool) -> Iterator[dict[str, Any]]:
        for i in range(1, 21):
            line = {"env_steps": 100 * i, "wall_s": float(i), "return_mean": float(i)}
            found = {"eval_env_steps": 100 * i - 50, "eval_return_mean": 2.0 * i}
            yield {**line, **(found if evaluated and i % 5 == 0 else {})}

    runs = [Path(make_run(tmp_path / str(e), lines(e))) for e in (False, True)]
    draw(runs, tmp_path / "x.png", Look(group=False))
    by_steps, by_time, *_ = figures[0].axes
    for axis, x in ((by_steps, [450, 950, 1450, 1950]), (by_time, [4.5, 9.5, 14.5, 19.5])):
        plain, with_it, dots = axis.get_lines()
        assert plain.get_marker() == with_it.get_marker() == "None" and dots.get_marker() == "o"
        assert dots.get_color() == with_it.get_color() != plain.get_color()
        assert list(dots.get_xdata()) == x and list(dots.get_ydata()) == [10, 20, 30, 40]
    assert "dots: evaluated" in by_steps.get_title()
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["False", "True"]


def test_the_last_evaluation_does_not_repeat_the_last_line() -> None:
    written = StringIO()
    console = Console(file=written, width=200)
    display = LineDisplay(console, console, Goal(None, None))
    values = {"env_steps": 1000.0, "wall_s": 10.0}
    last = {f"eval_{n}": 7.0 for n in ("env_steps", "return_mean", "return_std", "episodes")}
    for report in (values, values, {**values, **last}, {**values, "env_steps": 2000.0, **last}):
        display.update(report)
    lines = [line.split()[:2] for line in written.getvalue().splitlines()]
    assert [line[1] for line in lines[1:] if line[0] != "evaluated:"] == ["1,000", "1,000", "2,000"]
    assert [line[0] for line in lines].count("evaluated:") == 2
