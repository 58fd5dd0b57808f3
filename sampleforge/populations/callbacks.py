"""The callbacks of sessions whose policies are a population, follow the schedule of one, or play
against snapshots of themselves.

This module imports torch only where there is such a session.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sampleforge.run.callback import Callback
from sampleforge.topologies.config import ReplayRunConfig, SlotsRunConfig


def population_callbacks(config: Any) -> list[Callback]:
    """Return the callbacks that a session with this config needs beside its other ones."""
    if getattr(config, "pbt", False):
        from sampleforge.populations.pbt import Pbt

        return [Pbt()]
    if getattr(config, "schedule", None) is not None:
        from sampleforge.populations.schedule import FollowSchedule

        return [FollowSchedule()]
    if getattr(config, "opponent_pool", 0):
        return [_self_play(config)]
    return []


def _self_play(config: SlotsRunConfig | ReplayRunConfig) -> Callback:
    """Return the self-play of a run. Raises ConfigError if openskill is missing."""
    from sampleforge.populations.league import LeagueRules
    from sampleforge.populations.self_play import SelfPlay

    rules = LeagueRules(
        rule=config.opponent_draw,
        latest=config.opponent_latest,
        power=config.opponent_power,
        window=config.opponent_window,
        size=config.opponent_pool,
    )
    return SelfPlay(rules, config.opponent_interval)


def with_schedule_seed(config: Any) -> Any:
    """Return the config of a run with the seed of its schedule, if it has a schedule and no seed of
    its own. Raises ConfigError for a schedule that cannot be used."""
    if getattr(config, "schedule", None) is None or config.seed is not None:
        return config
    from sampleforge.populations.schedule import read_schedule

    return dataclasses.replace(config, seed=read_schedule(Path(config.schedule)).seed)
