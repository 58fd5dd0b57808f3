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
    env_restarts,
    evaluation,
    has_replay,
    number,
    short,
)


def panel(title: str, values: Values, goal: Goal) -> RenderableType:
    """One report: title, progress, two columns of figures (system, learning), which a terminal of
    80 columns has room for, and the latest evaluation, if ``values`` has one."""
    figures = Table.grid(padding=(0, 1, 0, 0))
    for style in ("dim", "", "dim", ""):
        figures.add_column(style=style, no_wrap=True)
    for (left, left_value), (right, right_value) in zip(
        _system(values), _learning(values), strict=True
    ):
        figures.add_row(left, left_value.ljust(25), right, right_value)
    lines = [Text(f"\n{title}", "bold"), _progress(values, goal), figures]
    if values.get("env_restarts"):
        lines.append(Text(env_restarts(values), "yellow"))
    if "eval_return_mean" in values:
        lines.append(Text.assemble(("evaluated  ", "dim"), evaluation(values)))
    if dropped := values.get("nonfinite_steps"):
        text = f"{number(dropped)} env steps dropped: values that are not finite"
        lines.append(Text(text, "yellow"))
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
        ("frames/s", f"{short(recent)} (10 s) {short(minute)} (60 s)"),
        ("env steps/s", short(get("env_steps_per_s"))),
        ("trained/s", short(get("trained_per_s"))),
        ("updates", number(get("updates"))),
        *(_replay(values) if has_replay(values) else _exchange(values)),
    ]


def _exchange(values: Values) -> list[tuple[str, str]]:
    """How old the weights are that actors play with, and where the slots are."""
    get = values.get
    return [
        (
            "policy lag",
            f"{number(get('policy_lag_mean'), '.1f')} mean  "
            f"{number(get('policy_lag_max'), '.0f')} max",
        ),
        (
            "in batches",
            f"{number(get('policy_lag_batches_mean'), '.1f')} mean  "
            f"{number(get('policy_lag_batches_max'), '.1f')} max",
        ),
        (
            "slots",
            f"{number(get('ready_slots_fill'), '.0%')} ready  "
            f"{number(get('free_slots_fill'), '.0%')} free",
        ),
    ]


def _replay(values: Values) -> list[tuple[str, str]]:
    """How much is stored, and how often it is learned from."""
    get = values.get
    return [
        (
            "replay",
            f"{short(get('replay_transitions'))} steps ({number(get('replay_fill'), '.0%')} full)",
        ),
        ("samples", f"{number(get('samples_per_insert'), '.2f')} per insert"),
    ]


def _learning(values: Values) -> list[tuple[str, str]]:
    """How well it does, and what the losses are."""
    get = values.get
    spread = get("return_std")
    spread_text = "" if spread is None else f" ± {number(spread, ',.2f')}"
    return [
        ("return", f"{number(get('return_mean'), ',.2f')}{spread_text}"),
        (
            "episodes",
            f"{number(get('episodes'))} of {number(get('length_mean'), ',.1f')} steps",
        ),
        *(_q_losses(values) if has_replay(values) else _policy_losses(values)),
        ("grad norm", number(get("grad_norm"), ".3g")),
    ]


def _policy_losses(values: Values) -> list[tuple[str, str]]:
    get = values.get
    return [
        ("loss", number(get("loss"), ".4g")),
        (
            "parts",
            f"policy {number(get('policy_loss'), '.2g')}  value {number(get('value_loss'), '.2g')}",
        ),
        (
            "entropy",
            f"{number(get('entropy'), '.3f')}  KL {number(get('approx_kl'), '.1g')}  "
            f"clipped {number(get('clip_fraction'), '.0%')}",
        ),
        ("stale", f"{number(get('stale_fraction'), '.0%')} of the rows"),
    ]


def _q_losses(values: Values) -> list[tuple[str, str]]:
    get = values.get
    return [
        ("loss", number(get("loss"), ".4g")),
        ("Q", f"{number(get('q_mean'), '.3g')} mean"),
        ("TD error", f"{number(get('td_error_mean'), '.2g')} mean"),
    ]
