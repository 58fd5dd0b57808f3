"""The child process of the probe, and of other work on an environment: it does the work and answers
in lines of JSON, of which the last one is an error or is "done"."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import importlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import spawn
from typing import Any, cast

from sampleforge.config import ConfigError, from_plain
from sampleforge.env.config import EnvConfig
from sampleforge.env.given import GivenEnv
from sampleforge.env.goals import GoalRule
from sampleforge.env.guard import NotFiniteError
from sampleforge.env.interface import stage, stage_of, tell_of_row, told_of_rows
from sampleforge.env.random_play import RandomPlay
from sampleforge.env.registry import make_single
from sampleforge.env.spec_json import spec_to_plain
from sampleforge.runtime.processes import MissingMainGuard

STEPS = 4
CLOSE_S = 5.0
"""Seconds that the environments have to close; the answer has been given by then."""
ALIVE = b" "
"""Written before the answer, whenever the time-out begins anew; JSON ignores it."""


def main(payload: dict[str, Any]) -> None:
    """Do ``payload["work"]``, a `ChildWork`, with ``payload["options"]`` on ``payload["config"]``,
    write the messages to ``payload["fd"]``, and end the process.

    It ends with ``os._exit``, because a simulator's exit handlers may hang.
    """
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    config = from_plain(EnvConfig, payload["config"])
    if "pickled" in payload:
        given = GivenEnv(config.env, bytes.fromhex(payload["pickled"]))
        config = dataclasses.replace(config, env=given)
    faulthandler.enable()

    def wait_for_next() -> None:
        os.write(payload["fd"], ALIVE)
        faulthandler.dump_traceback_later(config.env_timeout, exit=True)

    def tell(message: dict[str, Any]) -> None:
        left = memoryview(json.dumps(message).encode() + b"\n")
        while left:
            left = left[os.write(payload["fd"], left) :]

    wait_for_next()
    name, function = payload["work"]
    answer: dict[str, Any]
    try:
        import_main(payload["main"])
        work = _imported(function)
        with told_of_rows(wait_for_next):
            rest = work(
                config, lambda message: tell({**message, "goes_on": True}), **payload["options"]
            )
        answer = {"done": True, **(rest or {})}
    except (ConfigError, NotFiniteError) as error:
        answer = {"error": str(error)}
    except MissingMainGuard:
        answer = {"unguarded": True}
    except BaseException as error:
        text = f"{config.env} failed in the {name}"
        answer = {"error": f"{text}\n{traceback.format_exc().strip()}", "stage": stage_of(error)}
    tell(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _imported(function: str) -> Callable[..., dict[str, Any] | None]:
    """Return the function "module:name"."""
    module, _, name = function.partition(":")
    found: Callable[..., dict[str, Any] | None] = getattr(importlib.import_module(module), name)
    return found


def try_rows(
    config: EnvConfig, tell: Callable[[dict[str, Any]], None], *, rows: int, goals: bool
) -> dict[str, Any]:
    """The work of the probe: tell that the first of the rows was made, then the spec of the rows
    that were tried out, and what there is to warn of; return what their ``close`` raised.
    ``goals``: rewards are computed for other goals, so that this is tried, too."""
    warnings: list[str] = []
    first = [True]  # until it is told

    def made() -> None:
        if first:
            first.clear()
            tell({"made": True})

    with told_of_rows(made):
        play = try_out(config, rows, warnings.append)
    if goals and play.vector.spec.has_goals:
        with contextlib.closing(make_single(config)) as env:
            GoalRule(env, config.env)
    tell({"spec": spec_to_plain(play.vector.spec), "warnings": warnings, "stage": "closed"})
    return {"closing": close(play)}


def import_main(where: dict[str, Any]) -> None:
    """Import the parent's main module in its working directory, as multiprocessing's children
    do."""
    own = os.getcwd()
    this = cast("Any", multiprocessing.current_process())
    this._inheriting = True  # makes multiprocessing refuse to start processes in this import
    try:
        spawn.prepare(where)
    finally:
        del this._inheriting
        os.chdir(own)


def _leave_with_parent() -> None:
    """End this process when the parent has ended, which closes our stdin. The read is not
    ``sys.stdin``'s own: that one holds a lock which processes forked by the environment need."""
    while os.read(0, 1 << 12):
        pass
    os.killpg(0, signal.SIGKILL)  # with what the environment has started


def try_out(config: EnvConfig, rows: int, warn: Callable[[str], None]) -> RandomPlay:
    """Construct, reset and step the rows with random actions, check every observation, and return
    them. ``warn`` is told, once, of numbers that are beyond the bounds of their Box, and of
    observations that are converted to the type of their space.

    Raises the environment's exceptions, and ConfigError for a bad observation.
    """
    with stage("created"):
        play = RandomPlay(config, rows)
    with stage("reset"):
        play.reset()
    outside = [_check(play)]
    for _ in range(STEPS):
        tell_of_row()  # the time-out begins anew
        with stage("stepped"):
            play.step()
        outside.append(_check(play))
    for text in (*list(filter(None, outside))[:1], *play.converted()):
        warn(text)
    return play


def close(play: RandomPlay) -> str:
    """Close the environments within `CLOSE_S`, and return the traceback of what ``close`` has
    raised, or an empty text."""
    faulthandler.dump_traceback_later(CLOSE_S, exit=True)
    try:
        play.close()
    except BaseException:
        return traceback.format_exc().strip()
    return ""


def _check(play: RandomPlay) -> str | None:
    """Return in words which of the newest observations is beyond the bounds of its Box, or None.
    Raises ConfigError if a value was not finite, or is a category that its space does not have."""
    if (value := play.not_finite()) is not None:
        raise ConfigError(
            f"{value} as float32, which has numbers up to 3.4e38, but must be finite; correct the "
            "environment, or scale what is larger"
        )
    fault = play.out_of_bounds()
    if fault is not None and fault.category:
        raise ConfigError(fault.text)
    return None if fault is None else fault.text
