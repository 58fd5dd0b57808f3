"""The callbacks of sessions that are tracked (--track).

This module imports no tracking library: a sink does when it starts.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.run.callback import Callback
from sampleforge.tools.tracking.csv_file import CsvFile
from sampleforge.tools.tracking.sink import Sink, Tracking
from sampleforge.tools.tracking.trackio_run import TrackioRun
from sampleforge.tools.tracking.wandb_run import WandbRun

SINKS: dict[str, type[Sink]] = {"csv": CsvFile, "wandb": WandbRun, "trackio": TrackioRun}
PACKAGES = ("wandb", "trackio")
"""The sinks that are packages of their own, each with an extra of the same name."""


def tracking_callbacks(config: Any) -> list[Callback]:
    """Return a callback for each sink of ``config.track``. A benchmark reports nothing, so it has
    none. Raises ConfigError if the package of a sink is missing."""
    if config.benchmark:
        return []
    for name in config.track:
        if name in PACKAGES and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"--track {name} needs the package {name}, which is not installed: "
                f'pip install "sampleforge[{name}]"'
            )
    return [Tracking(SINKS[name]()) for name in dict.fromkeys(config.track)]
