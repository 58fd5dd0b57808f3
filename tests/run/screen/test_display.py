"""What the displays show of reports."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from sampleforge.run.screen.progress import Goal
from sampleforge.run.screen.screen import LineDisplay


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
