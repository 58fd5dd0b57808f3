"""Evaluations in TensorBoard, on the screen and in figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sampleforge.run.reports.metrics import read_metrics
from sampleforge.shared.records import Evaluation
from sampleforge.tools.plots.curves import Look, draw
from tests.support.reports import events, make_run, report_steps, reporter

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
