"""The child process of the probe: it tests the environment and answers in one line of JSON."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from multiprocessing import spawn
from typing import Any, cast

import numpy as np
from gymnasium import spaces

from sampleforge.config import ConfigError, from_plain
from sampleforge.env.config import EnvConfig
from sampleforge.env.not_finite import NotFiniteError
from sampleforge.env.random_actions import random_actions
from sampleforge.env.registry import make_vector
from sampleforge.env.seeding import row_seeds
from sampleforge.env.spec_json import spec_to_plain
from sampleforge.env.starting import tell_of_row, told_of_rows
from sampleforge.env.vector import Array, EnvVector, own_outputs
from sampleforge.spec import ACTION_MASK, OBSERVATION, EnvSpec, leaves

ROWS = 2
STEPS = 4
SLACK = 1e-4
"""Distance by which observations may be outside their bounds, relative to the bound, because of
rounding."""
ALIVE = b" "
"""Written before the answer, whenever the time-out begins anew; JSON ignores it."""
PART = 1 << 16
"""Elements of an observation that are compared with their bounds at once: they fit into a cache."""


def main(payload: dict[str, Any]) -> None:
    """Probe ``payload["config"]``, write the answer to ``payload["fd"]``, and end the process.

    It ends with ``os._exit``, because a simulator's exit handlers may hang.
    """
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    config = from_plain(EnvConfig, payload["config"])
    faulthandler.enable()

    def wait_for_next() -> None:
        os.write(payload["fd"], ALIVE)
        faulthandler.dump_traceback_later(config.env_timeout, exit=True)

    wait_for_next()
    answer: dict[str, Any]
    try:
        import_main(payload["main"])
        with told_of_rows(wait_for_next):
            answer = {"spec": spec_to_plain(try_out(config))}
    except (ConfigError, NotFiniteError) as error:
        answer = {"error": str(error)}
    except BaseException:
        answer = {"error": f"{config.env} failed in the probe\n{traceback.format_exc().strip()}"}
    os.write(payload["fd"], json.dumps(answer).encode() + b"\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def import_main(where: dict[str, Any]) -> None:
    """Import the parent's main module, as multiprocessing's children do."""
    this = cast("Any", multiprocessing.current_process())
    this._inheriting = True  # makes multiprocessing refuse to start processes in this import
    try:
        spawn.prepare(where)
    finally:
        del this._inheriting


def _leave_with_parent() -> None:
    """End this process when the parent has ended, which closes our stdin. The read is not
    ``sys.stdin``'s own: that one holds a lock which processes forked by the environment need."""
    while os.read(0, 1 << 12):
        pass
    os.killpg(0, signal.SIGKILL)  # with what the environment has started


def try_out(config: EnvConfig) -> EnvSpec:
    """Construct, reset and step two rows with random actions, check every observation, and return
    the spec.

    Raises the environment's exceptions, and ConfigError for a bad observation.
    """
    vector = make_vector(config, ROWS, row_seeds(0, 0, 0, ROWS))
    seats = [(seat, own_outputs(seat.spec, ROWS)) for seat in vector.seats]
    rng = np.random.default_rng(0)
    for seat, out in seats:
        seat.reset(out.obs)
        check(seat, out.obs)
    for _ in range(STEPS):
        tell_of_row()  # the time-out begins anew
        for seat, out in seats:
            masks = out.obs.get(ACTION_MASK)
            seat.send(random_actions(seat.spec, ROWS, rng, masks))
        for seat, out in seats:
            seat.recv(out)
            check(seat, out.obs)
    vector.close()
    return vector.spec


def check(vector: EnvVector, obs: dict[str, Array] | Any) -> None:
    """Raise ConfigError if an observation or a reward was not finite, or an observation is not
    within its bounds."""
    if vector.not_finite.first:
        raise ConfigError(f"{vector.not_finite.first}, but must be finite; correct the environment")
    for name, space in leaves(vector.observation_space, OBSERVATION):
        if not isinstance(space, spaces.Box) or name == ACTION_MASK or not _can_be_left(space):
            continue
        for row in range(ROWS):
            at = _outside(obs[name][row], space)
            if at is not None:
                raise ConfigError(
                    f"{vector.spec.env_id}, row {row}: observation leaf {name!r} must be in "
                    f"[{space.low[at]:g}, {space.high[at]:g}] at {list(at)}, as its "
                    f"observation_space says, but is {obs[name][row][at]:g}; correct the space"
                )


def _can_be_left(space: spaces.Box) -> bool:
    """Return whether a value of the space's dtype can be outside of its bounds."""
    if space.dtype is not None and space.dtype.kind in "iu":
        limits = np.iinfo(str(space.dtype))
        return bool((space.low > limits.min).any() or (space.high < limits.max).any())
    return bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())


def _outside(value: Array, space: spaces.Box) -> tuple[int, ...] | None:
    """Return the index of the first element of ``value`` that is outside of the bounds by more than
    `SLACK`, or None. It works on parts, because observations of hundreds of MB are slow as
    float64."""
    flat, lows, highs = value.reshape(-1), space.low.reshape(-1), space.high.reshape(-1)
    for begin in range(0, flat.size, PART):
        part = slice(begin, begin + PART)
        if (flat[part] >= lows[part]).all() and (flat[part] <= highs[part]).all():
            continue
        low, high = lows[part].astype(np.float64), highs[part].astype(np.float64)
        below = flat[part] < low - SLACK * (1 + np.abs(low))
        above = flat[part] > high + SLACK * (1 + np.abs(high))
        if (below | above).any():
            first = begin + int(np.argmax(below | above))
            return tuple(int(i) for i in np.unravel_index(first, value.shape))
    return None
