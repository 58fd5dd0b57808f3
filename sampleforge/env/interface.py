"""gymnasium's interface, checked: environments written for gym before 0.26 are refused with the
remedy, not with an error of unpacking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

from sampleforge.config import ConfigError

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


def first_reset(env: Any, seed: int, env_id: str, row: int) -> tuple[Any, dict[str, Any]]:
    """Return (observation, info) of the first ``reset`` of an environment. Raises ConfigError if
    ``reset`` takes no seed or gives something else."""
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
