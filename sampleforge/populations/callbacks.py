"""The callbacks of sessions whose policies are a population, or follow the schedule of one.

This module imports torch only where there is such a session.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sampleforge.session.callback import Callback


def population_callbacks(config: Any) -> list[Callback]:
    """Return the callbacks that a session with this config needs beside its other ones."""
    if getattr(config, "pbt", False):
        from sampleforge.populations.pbt import Pbt

        return [Pbt()]
    if getattr(config, "schedule", None) is not None:
        from sampleforge.populations.schedule import FollowSchedule

        return [FollowSchedule()]
    return []


def with_schedule_seed(config: Any) -> Any:
    """Return the config of a run with the seed of its schedule, if it has a schedule and no seed of
    its own. Raises ConfigError for a schedule that cannot be used."""
    if getattr(config, "schedule", None) is None or config.seed is not None:
        return config
    from sampleforge.populations.schedule import read_schedule

    return dataclasses.replace(config, seed=read_schedule(Path(config.schedule)).seed)
