"""The panel that a terminal shows while a run trains."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sampleforge.reporting.progress import (
    Goal,
    Values,
    duration,
    evaluation,
    number,
    short,
)


def panel(title: str, values: Values, goal: Goal) -> RenderableType:
    """One report: title, progress, two columns of figures (system, learning), and the latest
    evaluation, if ``values`` has one."""
    figures = Table.grid(padding=(0, 2, 0, 0))
    for style in ("dim", "", "dim", ""):
        figures.add_column(style=style, no_wrap=True)
    for (left, left_value), (right, right_value) in zip(
        _system(values), _learning(values), strict=True
    ):
        figures.add_row(left, left_value.ljust(30), right, right_value)
    lines = [Text(f"\n{title}", "bold"), _progress(values, goal), figures]
    if "eval_return_mean" in values:
        lines.append(Text.assemble(("evaluated  ", "dim"), evaluation(values)))
    return Group(*lines)


def _progress(values: Values, goal: Goal) -> RenderableType:
    """Env steps and time, with a bar where the run has an end."""
    of_steps = f" / {number(goal.env_steps)}" if goal.env_steps else ""
    of_time = f" / {duration(goal.seconds)}" if goal.seconds else ""
    text = f"{number(values['env_steps'])}{of_steps} env steps   "
    text += f"{duration(values['wall_s'])}{of_time}"
    fraction, line = goal.fraction(), Table.grid(padding=(0, 2, 0, 0))
    if fraction is None:
        line.add_row(Text(text))
    else:
        bar = ProgressBar(total=1.0, completed=fraction, width=32)
        left = Text(f"{duration(goal.seconds_left())} left", "cyan")
        line.add_row(bar, f"{fraction:4.0%}", text, left)
    return line


def _system(values: Values) -> list[tuple[str, str]]:
    """How fast it is, and what waits for what."""
    get = values.get
    recent = get("frames_per_s_10s", get("frames_per_s"))
    minute = get("frames_per_s_60s")
    return [
        ("frames/s", f"{short(recent)} (10 s)  {short(minute)} (60 s)"),
        ("env steps/s", short(get("env_steps_per_s"))),
        ("trained/s", short(get("trained_per_s"))),
        ("updates", number(get("updates"))),
        (
            "policy lag",
            f"{number(get('policy_lag_mean'), '.1f')} mean  "
            f"{number(get('policy_lag_max'), '.0f')} max",
        ),
        (
            "slots",
            f"{number(get('ready_slots_fill'), '.0%')} ready  "
            f"{number(get('free_slots_fill'), '.0%')} free",
        ),
    ]


def _learning(values: Values) -> list[tuple[str, str]]:
    """How well it does, and what the losses are."""
    get = values.get
    spread = get("return_std")
    spread_text = "" if spread is None else f" ± {number(spread, ',.2f')}"
    return [
        ("return", f"{number(get('return_mean'), ',.2f')}{spread_text}"),
        ("length", f"{number(get('length_mean'), ',.1f')}"),
        ("episodes", number(get("episodes"))),
        (
            "loss",
            f"{number(get('loss'), '.4g')} (policy {number(get('policy_loss'), '.3g')}, "
            f"value {number(get('value_loss'), '.3g')})",
        ),
        (
            "entropy",
            f"{number(get('entropy'), '.3f')}  KL {number(get('approx_kl'), '.2g')}  "
            f"clipped {number(get('clip_fraction'), '.0%')}",
        ),
        ("gradient norm", number(get("grad_norm"), ".3g")),
    ]
