"""gymnasium's interface: checked, so that environments written for gym before 0.26 are refused with
the remedy and not with an error of unpacking; its time limits, and what a family says of an
environment beside it; and the notices of rows that have started, because many take long, and a
worker reports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.tasks import RowTasks
from sampleforge.spec import EnvSpec

E = TypeVar("E", bound=gym.Env[Any, Any])
Stage = Literal["created", "reset", "stepped", "closed"]
"""What was done to an environment."""

_AS_BEFORE = (
    "as environments for gym before 0.26 do. Change the environment, or wrap it in a factory of "
    "your own (the package shimmy has GymV21CompatibilityV0 for this)"
)


@contextmanager
def stage(name: Stage) -> Iterator[None]:
    """Mark an error in the body, unless it is marked, for `stage_of`."""
    try:
        yield
    except BaseException as error:
        if stage_of(error) is None:
            error.env_stage = name  # type: ignore[attr-defined]
        raise


def stage_of(error: BaseException) -> Stage | None:
    """Return what was done to the environment that has raised ``error``; None if that is not
    known."""
    found: Stage | None = getattr(error, "env_stage", None)
    return found


def check_apart(envs: Sequence[Any]) -> None:
    """Raise RuntimeError if an environment is in two rows, each of which would step and reset that
    of the other one: of such there is one per process."""
    within = [getattr(env, "unwrapped", env) for env in envs]  # kept: an id may be used again
    if len({id(env) for env in within}) < len(envs):
        raise RuntimeError(
            "two env rows were given the same environment; return a new one at each call, and not "
            "one that was made before (rows of one simulator: each an Env of its own, no Wrapper)"
        )


def _check_spaces(env: gym.Env[Any, Any], env_id: str) -> None:
    """Raise ConfigError unless an environment has spaces."""
    for name in ("observation_space", "action_space"):
        if not isinstance(given := getattr(env, name, None), gym.Space):
            raise ConfigError(
                f"{env_id}: its {name} must be a space of gymnasium, but is {given!r:.80}; set "
                f"self.{name} in the constructor, such as to gymnasium.spaces.Discrete(4)"
            )


def first_resets(
    envs: Sequence[Any], tasks: RowTasks | None, seeds: Sequence[int], env_id: str
) -> list[tuple[Any, dict[str, Any]]]:
    """Return (observation, info) of the first ``reset`` of each row's environment, with its task.
    Raises ConfigError if one has no spaces, or its ``reset`` takes no seed or gives something else,
    and RuntimeError if one is in two rows."""
    check_apart(envs)
    found = []
    for row, (env, seed) in enumerate(zip(envs, seeds, strict=True)):
        if tasks is not None:
            tasks.follow(row, env)
        found.append(_first_reset(env, seed, env_id, row))
        _check_spaces(env, env_id)  # an environment may know them from its first reset on
        tell_of_row()
    return found


def _first_reset(env: Any, seed: int, env_id: str, row: int) -> tuple[Any, dict[str, Any]]:
    try:
        with stage("reset"):
            result = env.reset(seed=seed)
    except TypeError as error:
        if "unexpected keyword argument 'seed'" not in str(error):
            raise
        raise ConfigError(
            f"{env_id}, row {row}: reset() must take the keyword argument seed, but {error}, "
            f"{_AS_BEFORE}"
        ) from error
    return checked_reset(result, env_id, f"row {row}")


def checked_reset(result: Any, env_id: str, where: str) -> tuple[Any, dict[str, Any]]:
    """Return ``result``, what ``reset`` has returned. Raises ConfigError, naming the environment
    and ``where``, if it is not (observation, info)."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result
    raise ConfigError(
        f"{env_id}, {where}: reset() must return (observation, info), info a dict, but returned "
        f"{_shown(result)}, {_AS_BEFORE}"
    )


def refuse_step(result: Any, env_id: str, where: str) -> NoReturn:
    """Raise ConfigError for what ``step`` has returned: not five values."""
    raise ConfigError(
        f"{env_id}, {where}: step() must return 5 values (observation, reward, terminated, "
        f"truncated, info), but returned {_shown(result)}, {_AS_BEFORE}"
    )


def _shown(result: Any) -> str:
    """Return a short description of a value: of a tuple, the types of its elements."""
    if isinstance(result, tuple):
        types = ", ".join(type(element).__name__ for element in result)
        return f"{len(result)} values ({types})"
    return f"a {type(result).__name__}"


class Description(NamedTuple):
    """What is known of a single environment, as in `EnvSpec`: the frames of a step, the settings
    that scores depend on, and the time limit, in steps, that it has whatever is asked for."""

    frame_skip: int = 1
    protocol: str = ""
    max_episode_steps: int | None = None


def describe(env: E, description: Description) -> E:
    """Attach a description to ``env``, which wrappers around it keep, and return ``env``."""
    env.unwrapped.sampleforge_description = description  # type: ignore[attr-defined]
    return env


def description_of(env: gym.Env[Any, Any]) -> Description:
    """Return the description of an environment, with the shortest time limit among that and its
    wrappers."""
    found = getattr(env.unwrapped, "sampleforge_description", None)
    described = found if isinstance(found, Description) else Description()
    limits = [described.max_episode_steps]
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit):
            limits.append(int(env._max_episode_steps))
        env = env.env
    return described._replace(max_episode_steps=min(filter(None, limits), default=None))


def own_limit_of_rows(env: VectorEnv[Any, Any, Any]) -> int | None:
    """Return the time limit of the environments in a SyncVectorEnv; None if they have none, and for
    other VectorEnvs, which do not show their environments."""
    rows = env.unwrapped
    if not isinstance(rows, SyncVectorEnv):
        return None
    return description_of(rows.envs[0]).max_episode_steps


def shorter_limit(config: EnvConfig, spec: EnvSpec) -> str | None:
    """Return in words that the environment's own time limit ends episodes before
    ``config.max_episode_steps`` does; None if it does not."""
    asked, holds = config.max_episode_steps, spec.max_episode_steps
    if asked is None or holds is None or holds >= asked:
        return None
    return (
        f"--max-episode-steps {asked:,} has no effect: the environment has a time limit of its own "
        f"of {holds:,} steps, which holds; raise that one, or leave the flag out"
    )


_told: list[Callable[[], None]] = []


@contextmanager
def told_of_rows(tell: Callable[[], None]) -> Iterator[None]:
    """Call ``tell`` in the body whenever an env row of this process has been constructed or reset
    for the first time, in whichever thread."""
    _told.append(tell)
    try:
        yield
    finally:
        _told.remove(tell)


def tell_of_row() -> None:
    """Tell that another row has been constructed, or reset for the first time."""
    for tell in list(_told):
        tell()
