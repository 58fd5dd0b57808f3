"""Self-play in training: the policy that learns plays against snapshots of itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from sampleforge.config import ConfigError
from sampleforge.populations.league import LEARNER
from sampleforge.populations.ratings import Results
from sampleforge.reporting.win_rates_plot import WinRates


def read_win_rates(path: Path, title: str) -> WinRates:
    """Return what is drawn of a self_play.json, the oldest snapshot first. Raises ConfigError if
    the file is damaged."""
    try:
        plain = json.loads(path.read_bytes())
        results = Results.from_state(plain["results"])
        taken = {str(each["number"]): int(each["env_steps"]) for each in plain["snapshots"]}
        names = [LEARNER if p == LEARNER else _short(taken[p]) for p in results.players]
        elo, errors = np.array(plain["elo"], float), np.array(plain["elo_error"], float)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}") from error
    return WinRates(
        title, names, results.win_rates, results.games, elo, errors, what="snapshot at env steps"
    )


def _short(env_steps: int) -> str:
    """Return a number of env steps with three significant digits, such as 1.25M."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if env_steps >= size:
            return f"{env_steps / size:.3g}{letter}"
    return str(env_steps)
