"""The panel that a terminal shows while a run trains, with its table of the workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sampleforge.run.reports.metrics import by_policy, with_overall
from sampleforge.run.screen.progress import (
    Goal,
    Values,
    duration,
    env_restarts,
    evaluation,
    has_replay,
    mean_return,
    number,
    reads_data,
    restarts,
    short,
)

if TYPE_CHECKING:
    from sampleforge.run.reports.workers import RunState, State, WorkerState

WIDE = 78
"""Width of the terminal from which on the figures are shown in two columns."""
WIDER = 110
"""Width from which on the table of the policies has the parts of their losses."""
BAR = 24
"""Width of the progress bar; it is narrower on a narrow terminal."""
SPACES = 4
"""Lines that must be left for the parts of the panel to be set apart by empty ones."""
LEAST_POLICIES = 3
"""Policies that are shown in any case, if there is only little room."""
Figure = tuple[str, str]
"""A name and its value as text."""


class LivePanel:
    """The panel of one report: title, progress, figures of the system and of learning, a table of
    the policies if there are several, what limits the run, faults, and the states of the workers.
    No line is wider than the terminal, down to 60 columns. Tables take the lines that are left:
    at 80 x 24 those of many policies or workers are shortened, on a larger terminal they have a row
    for each.

    ``values``: the report, completed by the last known values of the metrics that it lacks.
    ``state``: what the workers are doing, if it is known.
    """

    def __init__(
        self, title: str, values: Values, goal: Goal, state: RunState | None = None
    ) -> None:
        self._title = title
        self._policies = by_policy(values)
        self._values = with_overall(values)
        self._goal = goal
        self._workers = () if state is None else state.workers
        self._verdict = None if state is None else state.verdict

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # One line less than the terminal has: the cursor stands below the panel.
        yield Group(*self._lines(options.max_width, options.size.height - 1))

    def _lines(self, width: int, height: int) -> list[RenderableType]:
        """Return what is shown, in at most ``height`` lines where that is possible."""
        values, several = self._values, bool(self._policies)
        head: list[RenderableType] = [
            Text(f"\n{self._title}", "bold", no_wrap=True, overflow="ellipsis"),
            *_progress(values, self._goal, width),
        ]
        wide = width >= WIDE
        left, right = _system(values, several=several), _learning(values, several=several)
        notes = self._notes(width)
        figures = max(len(left), len(right)) if wide else len(left) + len(right)
        used = 1 + len(head) + figures + sum(_height(note, width) for note in notes)
        lines: list[RenderableType] = [*head, _figures(left, right, wide=wide), *notes]
        workers = self._workers
        roles = len({worker.role for worker in workers}) + 1 if workers else 0
        if several:
            room = max(LEAST_POLICIES, height - used - roles - 1)
            shown = min(room, len(self._policies))
            lines.append(_table_of(self._policies, width, shown))
            used += shown + 1
        table = workers_table(workers, width, max(roles, height - used))
        if table is None:
            return lines
        lines.append(table)
        free = height - used - min(table.row_count, len(workers) + 1)
        return _spaced(lines, len(head) + 1) if free >= SPACES else lines

    def _notes(self, width: int) -> list[Text]:
        """Return the lines about what limits the run, evaluations, ratings and faults."""
        values, found = self._values, self._verdict
        notes = []
        if found is not None:
            notes.append(_line("bottleneck", f"{found.part}: {found.in_words}"))
            if width >= WIDE:
                notes.append(_line("", found.reason))
        if "eval_return_mean" in values:
            notes.append(_line("evaluated", evaluation(values), wraps=True))
        if "self_play_elo" in values:
            notes.append(_line("self-play", _self_play(values)))
        if values.get("env_restarts"):
            notes.append(Text(env_restarts(values), "yellow"))
        if dropped := values.get("nonfinite_steps"):
            text = f"{number(dropped)} env steps dropped: values that are not finite"
            notes.append(Text(text, "yellow"))
        if far := values.get("far_values"):
            text = f"{number(far)} numbers far beyond all others: the log names the first"
            notes.append(Text(text, "yellow"))
        return notes


def _spaced(lines: list[RenderableType], first: int) -> list[RenderableType]:
    """Return the lines with an empty one before the figures, before the notes and before each
    table. ``first``: the number of lines up to the figures."""
    spaced: list[RenderableType] = []
    for index, line in enumerate(lines):
        if index in (first - 1, first) or (index > first and isinstance(line, Table)):
            spaced.append("")
        spaced.append(line)
    return spaced


def _height(line: Text, width: int) -> int:
    """Return how many lines of the terminal a line of text takes."""
    return 1 if line.no_wrap else max(1, -(-line.cell_len // width))


def _line(name: str, text: str, *, wraps: bool = False) -> Text:
    line = Text.assemble((f"{name:<11}", "dim"), text)
    line.no_wrap, line.overflow = not wraps, "ellipsis"
    return line


def _self_play(values: Values) -> str:
    """Return the rating of a policy that plays its snapshots, and the win rates against them."""
    get = values.get
    snapshots, elo, sd = (number(get(f"self_play_{n}")) for n in ("snapshots", "elo", "elo_sd"))
    wins, least = (get(f"self_play_win_rate_{name}") for name in ("mean", "min"))
    return (
        f"Elo {elo} ± {sd}, wins {number(wins, '.0%')} against {snapshots} snapshots "
        f"(the hardest {number(least, '.0%')})"
    )


def _figures(left: list[Figure], right: list[Figure], *, wide: bool) -> Table:
    """Return a table of names and values: side by side if ``wide``, else one below the other."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for style in ("dim", "") * (2 if wide else 1):
        table.add_column(style=style, no_wrap=True)
    if not wide:
        for name, value in [*right, *left]:
            table.add_row(f"{name:<10}", value)
        return table
    for i in range(max(len(left), len(right))):
        cells = left[i] if i < len(left) else ("", "")
        name, value = right[i] if i < len(right) else ("", "")
        table.add_row(f"{cells[0]:<10}", f"{cells[1]:<27}", name, value)
    return table


def _progress(values: Values, goal: Goal, width: int) -> list[RenderableType]:
    """Return the lines with env steps and time, under a progress bar if the run has an end."""
    of_steps = f" / {number(goal.env_steps)}" if goal.env_steps else ""
    of_time = f" / {duration(goal.seconds)}" if goal.seconds else ""
    text = f"{number(values['env_steps'])}{of_steps} env steps   "
    text += f"{duration(values['wall_s'])}{of_time}"
    fraction = goal.fraction()
    if fraction is None:
        return [Text(text, no_wrap=True, overflow="ellipsis")]
    left = Text(f"{duration(goal.seconds_left())} left", "cyan")
    line = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(total=1.0, completed=fraction, width=min(BAR, width // 3))
    line.add_row(bar, f"{fraction:4.0%}", left)
    return [line, Text(text, no_wrap=True, overflow="ellipsis")]


def _system(values: Values, *, several: bool) -> list[Figure]:
    """Return the figures of throughput and of the queues between workers; with ``several`` policies
    some of them stand on the other side."""
    get = values.get
    now, average = get("env_steps_per_s"), get("env_steps_average")
    figures = [("env steps/s", f"{short(now)} now, {short(average)} average")]
    if get("frames_per_s") != now and not several:
        figures.append(("frames/s", short(get("frames_per_s"))))
    figures += [("trained/s", short(get("trained_per_s"))), ("updates", number(get("updates")))]
    figures += _experience(values)
    return figures if several else [*figures, *_health(values)]


def _health(values: Values) -> list[Figure]:
    """Return the figures of rows that are too old to learn from, and of restarts."""
    stale = ("stale", f"{number(values.get('stale_fraction'), '.0%')} of the rows")
    fresh = has_replay(values) or reads_data(values)
    return [*([] if fresh else [stale]), ("restarts", restarts(values))]


def _experience(values: Values) -> list[Figure]:
    """Return the figures of what is learned from: a replay, recorded data, or new rollouts."""
    if reads_data(values):
        return [("data", f"{number(values['data_passes'], '.1f')} passes")]
    return _replay(values) if has_replay(values) else _exchange(values)


def _exchange(values: Values) -> list[Figure]:
    """Return the figures of the policy lag and of the slots that wait for the learner."""
    get = values.get
    mean, largest = get("policy_lag_batches_mean"), get("policy_lag_batches_max")
    lag = f"mean {short(mean)}, max {short(largest)} updates"
    return [
        ("policy lag", lag),
        ("queue", f"{number(get('ready_slots_fill'), '.0%')} waiting for learner"),
    ]


def _replay(values: Values) -> list[Figure]:
    """Return the figures of the replay: how much it stores, and the replay ratio."""
    get = values.get
    stored, fill = short(get("replay_transitions")), number(get("replay_fill"), ".0%")
    return [
        ("replay", f"{stored} steps ({fill} full)"),
        ("ratio", f"{number(get('samples_per_insert'), '.2f')} samples per insert"),
        ("queue", f"{number(get('ready_slots_fill'), '.0%')} waiting for replay"),
    ]


def _learning(values: Values, *, several: bool) -> list[Figure]:
    """Return the figures of learning: returns, episodes and losses, which ``several`` policies have
    in their own table."""
    get = values.get
    spread = get("return_std")
    spread_text = "" if spread is None else f" ± {number(spread, ',.2f')}"
    length = number(get("length_mean"), ",.1f")
    returns = [
        ("return", f"{mean_return(values)}{spread_text}"),
        ("best return", number(get("return_best"), ",.2f")),
        ("episodes", f"{short(get('episodes'))} (mean length {length})"),
    ]
    if several:
        return [*returns, *_health(values)]
    return [
        *returns,
        *(_q_losses(values) if has_replay(values) else _policy_losses(values)),
        ("grad norm", number(get("grad_norm"), ".3g")),
    ]


def _table_of(policies: Mapping[str, Values], width: int, rows: int) -> Table:
    """Return the table of the policies, or of the members of a population, with at most ``rows``
    rows: if there are more policies, those with the highest returns, and how many were left out."""
    is_population = any("member_env_steps" in own for own in policies.values())
    shown = list(policies.items())
    if rows < len(shown):
        shown = sorted(shown, key=lambda each: _objective(each[1]), reverse=True)[: rows - 1]
    table = (_population if is_population else _table)(policies, dict(shown), width)
    if rows < len(policies):
        table.add_row(f"... {len(policies) - len(shown)} more", style="dim")
    return table


def _objective(values: Values) -> float:
    return values.get("pbt_objective", values.get("return_mean", -math.inf))


POPULATION_NAMES = {
    "pbt_learning_rate": "lr",
    "pbt_exploration_coeff": "exploration",
    "pbt_gamma": "gamma",
    "pbt_clip_ratio": "clip",
    "pbt_max_grad_norm": "grad norm",
    "pbt_value_coeff": "value",
}
"""Hyperparameters with a column of their own in the table of a population, as far as there is room,
and their headings."""
LOSS = 11
"""Columns of the terminal that the loss of a member takes."""


def _population(policies: Mapping[str, Values], shown: Mapping[str, Values], width: int) -> Table:
    """Return a table with a row for each of the members ``shown``: its return, the hyperparameters
    that differ most often, its loss, and the member that it has copied last."""
    names, losses = list(policies), width >= WIDE
    known = [n for n in POPULATION_NAMES if any(n in own for own in policies.values())]
    longest = max([6, *map(len, names)])
    # For policy, copied from, return and episodes.
    room = width - 2 * longest - 26 - (LOSS if losses else 0)
    taken = 0
    columns = []
    for name in known:
        taken += max(7, len(POPULATION_NAMES[name])) + 2
        if taken <= room:
            columns.append(name)
    table = Table.grid(padding=(0, 2, 0, 0))
    headings = ["policy", "return", "episodes", *(POPULATION_NAMES[n] for n in columns)]
    headings += ["loss", "from"] if losses else ["from"]
    for heading in headings:
        left = heading in ("policy", "from")
        table.add_column(justify="left" if left else "right", no_wrap=True)
    table.add_row(*headings, style="dim")
    for policy, own in shown.items():
        donor = own.get("copied_from")
        table.add_row(
            policy,
            number(own.get("pbt_objective", own.get("return_mean")), ",.2f"),
            short(own.get("episodes")),
            *(number(own.get(name), ".2g") for name in columns),
            *([number(own.get("loss"), ".3g")] if losses else []),
            "-" if donor is None else names[int(donor)],
        )
    return table


PARTS = {"policy_loss": "policy loss", "value_loss": "value loss"}
Q_PARTS = {"td_error_mean": "TD error"}
"""Metrics that the table of the policies has on a wide terminal, and their headings."""


def _table(policies: Mapping[str, Values], shown: Mapping[str, Values], width: int) -> Table:
    """Return a table with a row for each of the policies ``shown``."""
    replay = any(has_replay(own) for own in policies.values())
    parts = (Q_PARTS if replay else PARTS) if width >= WIDER else {}
    table = Table.grid(padding=(0, 2, 0, 0))
    names = ["policy", "return", "episodes", "updates", "loss", *parts.values()]
    names.append("Q" if replay else "entropy")
    for name in names:
        table.add_column(justify="left" if name in ("policy", "return") else "right", no_wrap=True)
    table.add_row(*names, style="dim")
    for policy, own in shown.items():
        spread = "" if "return_std" not in own else f" ± {short(own['return_std'])}"
        last = number(own.get("q_mean"), ".3g") if replay else number(own.get("entropy"), ".3f")
        table.add_row(
            policy,
            f"{number(own.get('return_mean'), ',.2f')}{spread}",
            short(own.get("episodes")),
            short(own.get("updates")),
            number(own.get("loss"), ".3g"),
            *(number(own.get(name), ".3g") for name in parts),
            last,
        )
    return table


def _policy_losses(values: Values) -> list[Figure]:
    get = values.get
    return [
        ("policy loss", number(get("policy_loss"), ".3g")),
        ("value loss", number(get("value_loss"), ".3g")),
        ("explained", f"{number(get('explained_variance'), '.2f')} of the variance"),
        ("entropy", f"{number(get('entropy'), '.3f')}, KL {number(get('approx_kl'), '.1g')}"),
    ]


def _q_losses(values: Values) -> list[Figure]:
    get = values.get
    figures = [
        ("loss", number(get("loss"), ".4g")),
        ("Q", f"mean {number(get('q_mean'), '.3g')}"),
        ("TD error", f"mean {number(get('td_error_mean'), '.2g')}"),
    ]
    if "temperature" in values:
        entropy = number(get("entropy"), ".3f")
        figures.append(("entropy", f"{entropy}, temperature {number(get('temperature'), '.2g')}"))
    return figures


STYLES: dict[State, str] = {
    "starting": "cyan",
    "running": "green",
    "waiting": "dim",
    "stalled": "bold red",
    "ended": "dim",
}
COLUMN = 62
"""Columns of the terminal that one row needs; rows stand beside each other where more fit."""
NARROW = 72
"""Width of the terminal below which names of units are left out."""
NAMED = 3
"""Stalled workers of a role that are named."""


def workers_table(workers: Sequence[WorkerState], width: int, lines: int) -> Table | None:
    """Return the table of ``workers``, at most ``width`` columns wide and ``lines`` high with its
    heading: a row for each worker if they fit, else for each role; None if neither fits."""
    roles = list(dict.fromkeys(worker.role for worker in workers))
    beside = max(1, min(width // COLUMN, len(workers)))
    if workers and -(-len(workers) // beside) + 1 <= lines:
        return _of_each(workers, beside, width)
    if roles and len(roles) + 1 <= lines:
        return _of_roles([[w for w in workers if w.role == role] for role in roles], width)
    return None


def _of_each(workers: Sequence[WorkerState], beside: int, width: int) -> Table:
    """Return a table with a row for each worker, ``beside`` workers in a line."""
    table = _empty_table(("worker", "state", "busy", "rate", "restarts"), beside)
    height = -(-len(workers) // beside)
    for line in range(height):
        cells: list[Text | str] = []
        for worker in workers[line::height]:
            cells += [
                worker.name,
                _state(worker),
                _percent(worker.busy),
                _rate(worker.rate, worker.unit, width),
                _restarts(worker.restarts),
            ]
        table.add_row(*cells)
    return table


def _of_roles(groups: Sequence[Sequence[WorkerState]], width: int) -> Table:
    """Return a table with a row for each role: how many of its workers are in which state, their
    mean time without waiting, the sum of their rates and of their restarts."""
    table = _empty_table(("workers", "states", "busy", "rate", "restarts"), 1)
    for workers in groups:
        busy = [worker.busy for worker in workers if worker.busy is not None]
        rates = [worker.rate for worker in workers if worker.rate is not None]
        table.add_row(
            f"{len(workers)} x {workers[0].role}",
            _states(workers),
            _percent(sum(busy) / len(busy) if busy else None),
            _rate(sum(rates) if rates else None, workers[0].unit, width),
            _restarts(sum(worker.restarts for worker in workers)),
        )
    return table


def _empty_table(headings: tuple[str, ...], beside: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for heading in headings * beside:
        right = heading in ("busy", "rate", "restarts")
        table.add_column(justify="right" if right else "left", no_wrap=True)
    table.add_row(*headings * beside, style="dim")
    return table


def _state(worker: WorkerState) -> Text:
    """Return a worker's state; of a stalled or starting one also since when."""
    text = Text(worker.state, STYLES[worker.state])
    if worker.state == "stalled":
        text.append(f" {duration(worker.seconds)}")
    elif worker.detail:
        text.append(f" ({worker.detail})", "dim")
    return text


def _states(workers: Sequence[WorkerState]) -> Text:
    """Return how many workers of a role are in each state, and the names of stalled ones."""
    parts = []
    for state, style in STYLES.items():
        having = [worker for worker in workers if worker.state == state]
        if not having:
            continue
        text = Text(f"{len(having)} {state}", style)
        if state == "stalled":
            named = ", ".join(worker.name for worker in having[:NAMED])
            more = ", ..." if len(having) > NAMED else ""
            text.append(f" ({named}{more})", "red")
        parts.append(text)
    return Text(", ").join(parts)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _rate(rate: float | None, unit: str, width: int) -> str:
    if rate is None:
        return "-"
    return f"{short(rate)} {unit}" if width >= NARROW else f"{short(rate)}/s"


def _restarts(count: int) -> Text:
    return Text(f"{count} times" if count > 1 else "once", "yellow") if count else Text("-", "dim")
