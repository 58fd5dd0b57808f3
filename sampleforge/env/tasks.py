"""Tasks of a curriculum. An environment that has a method ``set_task(task)`` can be given one; it
takes effect where the environment is reset next.

Env vectors are made by many functions, also of other packages. So the source of their tasks is not
an argument: the vectors that are made within `following` find it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from sampleforge.config import ConfigError

T = TypeVar("T")


class TaskSource(Protocol):
    """The newest task, such as a `sampleforge.shared.newest.TaskBoard`."""

    @property
    def number(self) -> int:
        """Number of the newest task, from 1; 0 if none has been set."""

    def read(self) -> tuple[int, Any]:
        """Return the number and the newest task."""


class FixedTask(NamedTuple):
    """A source whose task does not change."""

    number: int
    task: Any

    def read(self) -> tuple[int, Any]:
        return self.number, self.task


_source: ContextVar[TaskSource | None] = ContextVar("source of tasks", default=None)


def following(source: TaskSource | None, make: Callable[..., T], *args: Any) -> T:
    """Return ``make(*args)``, an env vector whose environments take the tasks of ``source``, each
    before its next reset, the first one included (None: they take none)."""
    before = _source.set(source)
    try:
        return make(*args)
    finally:
        _source.reset(before)


def at_newest(source: TaskSource | None, make: Callable[..., T], *args: Any) -> T:
    """Return ``make(*args)``, an env vector whose environments keep the task of ``source`` that is
    the newest one now (None: they take none)."""
    return following(None if source is None else FixedTask(*source.read()), make, *args)


def task_setter(env: Any) -> Callable[[Any], object] | None:
    """Return the function that sets the task of an environment, of gymnasium or PettingZoo, or of
    all rows of a VectorEnv: its own, or that of the environment that it wraps. None if there is
    none."""
    for layer in _layers(env):
        setter = getattr(layer, "set_task", None)
        if callable(setter):
            return setter  # type: ignore[no-any-return]
    innermost = getattr(env, "unwrapped", env)
    if isinstance(innermost, SyncVectorEnv | AsyncVectorEnv) and all(
        innermost.call("has_wrapper_attr", "set_task")
    ):
        return partial(innermost.call, "set_task")
    return None


def _layers(env: Any) -> Iterator[Any]:
    """Yield an environment and those that it wraps, from the outside in."""
    layer = env
    while layer is not None:
        yield layer
        layer = getattr(layer, "env", None)
    yield getattr(env, "unwrapped", env)  # conversions of PettingZoo have no `env`


class RowTasks:
    """Gives the environments of ``rows`` rows the newest task of a source before they are reset.
    A VectorEnv counts as one row."""

    def __init__(self, source: TaskSource, rows: int) -> None:
        self._source = source
        self._given = [0] * rows

    @classmethod
    def of_this_call(cls, rows: int) -> RowTasks | None:
        """Return the tasks of an env vector that is made within `following`; None elsewhere."""
        source = _source.get()
        return None if source is None else cls(source, rows)

    def follow(self, row: int, env: Any) -> None:
        """Give ``env`` the newest task, unless it has it. Raises ConfigError if it takes none."""
        if self._source.number == self._given[row]:
            return
        number, task = self._source.read()
        setter = task_setter(env)
        if setter is None:
            raise ConfigError(f"{env} was given a task, but has no method set_task(task)")
        setter(task)
        self._given[row] = number

    def renew(self, row: int, env: Any) -> None:
        """Give the newest task to ``env``, a new environment of ``row``, which has none yet."""
        self._given[row] = 0
        self.follow(row, env)
