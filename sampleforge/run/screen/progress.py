"""The progress of a run towards its stop condition, and the formats of numbers on the screen."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

Values = Mapping[str, float]
"""The scalars of one report by name; env_steps and wall_s (seconds) are always there."""


@dataclass
class Goal:
    """The stop condition of a run (env steps or seconds, whichever is first), and the progress
    towards it, at the rate of the last minute."""

    env_steps: int | None
    seconds: float | None
    _past: deque[tuple[float, float]] = field(default_factory=deque)

    def observe(self, values: Values) -> None:
        """Record the progress of a report."""
        self._past.append((values["wall_s"], values["env_steps"]))
        while values["wall_s"] - self._past[0][0] > 60 and len(self._past) > 2:
            self._past.popleft()

    def fraction(self) -> float | None:
        """Return the fraction of the run that is done, 0 to 1; None without a stop condition."""
        wall_s, env_steps = self._past[-1]
        shares = [env_steps / self.env_steps] if self.env_steps else []
        shares += [wall_s / self.seconds] if self.seconds else []
        return min(1.0, max(shares)) if shares else None

    def seconds_left(self) -> float | None:
        """Return the seconds until the nearer stop condition; None without one, or if no rate is
        known yet."""
        (before_s, before), (wall_s, env_steps) = self._past[0], self._past[-1]
        ends = [self.seconds - wall_s] if self.seconds else []
        if self.env_steps and env_steps > before:
            ends.append((self.env_steps - env_steps) * (wall_s - before_s) / (env_steps - before))
        return max(0.0, min(ends)) if ends else None


def number(value: float | None, form: str = ",.0f") -> str:
    """Return a value in the format ``form``, or "-" if it is None or not finite."""
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def mean_return(values: Values) -> str:
    """Return the mean return of a report as text; in parentheses while it is that of the first
    episodes, of which the short ones end first."""
    if "return_mean" in values or "return_mean_early" not in values:
        return number(values.get("return_mean"), ",.2f")
    return f"({number(values['return_mean_early'], ',.2f')})"


def short(value: float | None) -> str:
    """Return a value with three digits and a unit, such as 45.2k; "-" if it is None or not
    finite."""
    if value is None or not math.isfinite(value):
        return "-"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def evaluation(values: Values) -> str:
    """Return the result of an evaluation as text, from the values of its report."""
    get = values.get
    return (
        f"{number(get('eval_return_mean'), ',.2f')} ± {number(get('eval_return_std'), ',.2f')} "
        f"({number(get('eval_episodes'))} episodes, weights of {number(get('eval_env_steps'))} "
        f"env steps)"
    )


def env_restarts(values: Values) -> str:
    """Return how often environments raised an error as text, from the values of a report."""
    count = values["env_restarts"]
    episodes = count + values.get("episodes", 0.0)
    return (
        f"env restarts {number(count)}: {number(count / episodes, '.1%')} of the episodes were "
        "lost by errors of the environment"
    )


def restarts(values: Values) -> str:
    """How many workers of which role were restarted, from the values of a report."""
    name = "restarts_"
    counts = {key.removeprefix(name): values[key] for key in values if key.startswith(name)}
    parts = [f"{role} {number(count)}" for role, count in counts.items() if count]
    return ", ".join(parts) or f"{number(values.get('restarts'))} workers"


def duration(seconds: float | None) -> str:
    """Return a duration as hours, minutes and seconds, such as 1:02:03 or 2:03; "-" for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def has_replay(values: Values) -> bool:
    """Return whether a report is of a run with a replay, which has no policy lag and no policy
    loss."""
    return "replay_fill" in values


def reads_data(values: Values) -> bool:
    """Return whether a report is of a run that learns from recorded data alone, without actors."""
    return "data_passes" in values
