"""What a step returns beside the observation, checked: what has another shape, or a type that would
have to be guessed at, is refused with value, expected, got and remedy.

A reward is one number, of Python's or numpy's types or a 0-d array; a flag is True or False, or a
number that is 0 or 1. Nothing else is taken for them: numpy would make 1.5 of the text "1.5", and
every row's reward of a single number, and Python takes None and "False" for truth values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from sampleforge.config import ConfigError

TRUE_OBJECTIVE = "true_objective"
"""Key of ``info``: the result of the episode so far, which is reported as its return in the place
of the sum of its rewards. An environment that offers reward-shaping numbers should give it."""
SUCCESSES = ("is_success", "success")
"""Keys of ``info``: whether the step was a success. An episode is one if its last step is; the
share of such episodes is reported as ``env_success`` and by `sampleforge eval`."""
EPISODE_STATS = "episode_extra_stats"
"""The key in ``info`` of an episode's last step under which an environment reports statistics of
the episode, {name: number}. Their means over the last episodes (--metrics-window) are reported as
``env_<name>``."""
Array = np.ndarray[Any, Any]

NUMBERS = frozenset(
    {bool, int, float, np.bool_}
    | {np.dtype(code).type for code in np.typecodes["AllInteger"] + np.typecodes["Float"]}
)
"""The types of numbers that need no closer look."""
_FLAGS = frozenset({True, False})
_OBJECTIVES = (
    "the rewards of several objectives are weighted by a wrapper, such as LinearReward(env, "
    "weight=...) of mo_gymnasium.wrappers, in a factory of your own: --env package.module:factory"
)
_AGENTS = (
    "an environment that rewards several agents must be a PettingZoo ParallelEnv: wrap it in one, "
    "in a factory of your own: --env package.module:factory"
)


def write_rewards(column: Array, given: Any, env_id: str) -> None:
    """Write the rewards that a step has ``given``, one per row, into ``column`` [rows]. Raises
    ConfigError for one that is not a number. This costs 0.4 us more than the assignment."""
    if isinstance(given, np.ndarray):
        ordinary = given.shape == column.shape and given.dtype.kind in "biuf"
    else:
        ordinary = (
            type(given) is list
            and len(given) == len(column)
            and NUMBERS.issuperset(map(type, given))
        )
    if ordinary:
        try:
            column[:] = given
            return
        except OverflowError:  # an int beyond all floats
            pass
    values = _by_row(given, len(column), "reward", "number", env_id)
    column[:] = [reward_of(value, f"{env_id}, row {row}") for row, value in enumerate(values)]


def write_flags(column: Array, given: Any, name: str, env_id: str) -> None:
    """Write the flags ``name`` that a step has ``given``, one per row, into ``column`` [rows].
    Raises ConfigError for one that is not True or False. This costs 0.2 us more than the
    assignment."""
    if isinstance(given, np.ndarray):
        ordinary = given.shape == column.shape and given.dtype == np.bool_
    else:
        ordinary = type(given) is list and len(given) == len(column) and _are_flags(given)
    if ordinary:
        column[:] = given
        return
    values = _by_row(given, len(column), name, "True or False", env_id)
    column[:] = [flag_of(value, name, f"{env_id}, row {row}") for row, value in enumerate(values)]


def _are_flags(values: list[Any]) -> bool:
    """Return whether all values are equal to True or False; False also where that is not known."""
    try:
        return _FLAGS.issuperset(values)
    except TypeError:  # an array, a list
        return False


def _by_row(given: Any, rows: int, name: str, one: str, env_id: str) -> list[Any]:
    """Return what a VectorEnv has ``given`` as a list of ``rows`` values. Raises ConfigError if it
    is no such column."""
    column = np.asarray(given) if hasattr(given, "__array__") else given
    has_rows = isinstance(column, list | tuple) or (isinstance(column, np.ndarray) and column.shape)
    if has_rows and len(column) == rows:
        return list(column)
    refuse(
        f"{env_id}, all {rows} rows",
        name,
        f"an array of shape ({rows},), one {one} per row",
        given,
        "return one value for each row",
    )


def reward_of(value: Any, where: str) -> float:
    """Return a reward as a float. Raises ConfigError, naming ``where``, if it is not a number."""
    if type(value) is float:
        return value
    number = number_of(value)
    if number is None:
        remedy = "return one number"
        if isinstance(value, np.ndarray) and value.size > 1:
            remedy = _OBJECTIVES
        elif isinstance(value, list | tuple | dict):
            remedy = _AGENTS
        refuse(where, "the reward", "a number", value, remedy)
    return number


def flag_of(value: Any, name: str, where: str) -> bool:
    """Return a flag as a bool. Raises ConfigError, naming ``where``, if it is not True or False."""
    if type(value) is bool:
        return value
    number = number_of(value)
    if number not in (0.0, 1.0):
        refuse(where, name, "True or False", value, "return a bool at every step")
    return bool(number)


def number_of(value: Any) -> float | None:
    """Return a number of any type, or a 0-d array of one, as a float (inf if it is too large for
    that); None for anything else, such as text, a complex number or an array of shape (1,)."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biuf":
            return None
    elif not hasattr(value, "__float__") and not hasattr(value, "__index__"):
        return None
    if getattr(value, "shape", ()) != ():
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):
        return None


def check_info(info: Any, where: str) -> None:
    """Raise ConfigError, naming ``where``, for the info of a step that is not a dict."""
    if not isinstance(info, dict) and not isinstance(info, Mapping):
        refuse(where, "the info of a step", "a dict", info, "return {} where there is none")


def numbers_of(stats: Any, name: str, where: str) -> dict[str, float]:
    """Return what ``info[name]`` holds, a dict of numbers by name, as floats. Raises ConfigError,
    naming ``where``, for something else."""
    if not isinstance(stats, Mapping):
        refuse(where, f"info[{name!r}]", "a dict of numbers by name", stats, "return such a dict")
    what = f"info[{name!r}]"
    return {str(key): result_of(value, f"{what}[{key!r}]", where) for key, value in stats.items()}


def result_of(value: Any, what: str, where: str) -> float:
    """Return the number that is given as ``what``, an entry of an info, as a float. Raises
    ConfigError, naming ``where``, for something else."""
    number = number_of(value)
    if number is None:
        refuse(where, what, "a number", value, "return a float, or leave it out")
    return number


def offered_shaping(env: Any, env_id: str) -> dict[str, float]:
    """Return the reward-shaping numbers that an environment offers: the dict in its attribute
    ``reward_shaping``, which it reads whenever it computes a reward. Raises ConfigError for
    something else there."""
    offered = getattr(env.unwrapped, "reward_shaping", None)
    if offered is None:
        return {}
    try:
        return {str(name): float(number) for name, number in offered.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{env_id}: its reward_shaping is {offered!r}, but must be a dict of numbers by name"
        ) from error


def refuse(where: str, what: str, must: str, value: Any, remedy: str) -> NoReturn:
    """Raise ConfigError for a ``value`` that an environment has given."""
    raise ConfigError(
        f"{where}: {what} must be {must}, but the environment gave {described(value)}; {remedy}"
    )


def described(value: Any) -> str:
    """Return the type and shape of an array, the type and value of anything else."""
    if isinstance(value, np.ndarray | np.generic) and (value.shape or value.dtype.kind in "biuf"):
        return f"{value.dtype} of shape {value.shape}"
    return f"{type(value).__name__} {value!r}"[:80]
