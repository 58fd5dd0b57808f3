"""The command around a session: signals, the screen and the exit code."""

from __future__ import annotations

import sys

from sampleforge.config import ConfigError
from sampleforge.populations.callbacks import population_callbacks
from sampleforge.presets.fit import PresetFit
from sampleforge.run.deployment import Deployment
from sampleforge.run.ending import describe
from sampleforge.run.screen.screen import Screen
from sampleforge.run.session import Session
from sampleforge.runtime.interrupts import Interrupts
from sampleforge.runtime.processes import signal_groups
from sampleforge.tools.tracking import tracking_callbacks
from sampleforge.topologies.config import AnyConfig


def run(
    config: AnyConfig, deployment: Deployment | None = None, *, preset: str | None = None
) -> int:
    """Train, or measure with --benchmark; return the exit code of the command. Raises ConfigError,
    with the exit code 1 once the run has begun: a worker of this process may raise it, too.
    ``preset``: the one that the config was made from.

    The first Ctrl-C, SIGTERM or SIGHUP ends the session in order, with a checkpoint; a second one
    ends it at once. Ctrl-Z pauses it.
    """
    screen = Screen()
    callbacks = [*population_callbacks(config), *tracking_callbacks(config), screen]
    if preset is not None:
        callbacks.append(PresetFit(config.algo, preset))
    session = Session(config, callbacks, deployment=deployment)
    interrupts = Interrupts(
        session.kill,
        session.interrupt,
        lambda number: signal_groups(session.pids().values(), number),
    )
    has_begun = False
    try:
        with interrupts:
            session.open()
            interrupts.defer()
            has_begun = True
            work(session)
    except ConfigError as error:
        if has_begun:
            error.exit_code = 1
        raise
    except Exception as error:
        print(describe(error), file=sys.stderr)
        return 1
    finally:
        screen.close()
    return interrupts.exit_code


def work(session: Session) -> None:
    """Run an open session from its start to its end: train, or measure with --benchmark."""
    if session.config.benchmark:
        from sampleforge.tools.benchmark.benchmark import run_benchmark

        run_benchmark(session)
        return
    with session:
        for _ in session.reports():
            pass
