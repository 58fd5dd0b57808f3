"""Environments that a program gives as Python objects, not by a name that others can import.

A config holds a name in any case: `GivenEnv`, a text that carries the object. It reaches the
workers of the run with the config that they are handed, and no file: a run folder has the text.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from sampleforge.config import ConfigError
from sampleforge.runtime import by_value

C = TypeVar("C", bound=Any)
PREFIX = "object:"
"""The beginning of the name of an object; what follows is for the eye."""


class GivenEnv(str):
    """The name of an environment that is made of a Python object, which the text carries as bytes
    of cloudpickle: a factory (a function, class or `functools.partial`, also of a notebook), an
    instance, or the `gymnasium.envs.registration.EnvSpec` of an id."""

    pickled: bytes
    given: Any
    """The object, in the process that was given it, if it makes environments and is none itself."""

    def __new__(cls, name: str, pickled: bytes, given: Any = None) -> GivenEnv:
        self = super().__new__(cls, name)
        self.pickled, self.given = pickled, given
        return self

    def __reduce__(self) -> tuple[type[GivenEnv], tuple[str, bytes]]:
        return GivenEnv, (str(self), self.pickled)

    def factory(self) -> Callable[..., Any] | None:
        """Return the factory, for `sampleforge.env.registry.resolve`; None if the text is an id,
        which then is registered. An instance is copied for each row."""
        import gymnasium as gym

        given = by_value.loads(self.pickled)
        if isinstance(given, gym.envs.registration.EnvSpec):
            gym.registry.setdefault(given.id, given)
            return None
        if is_instance(given):
            return lambda: by_value.loads(self.pickled)
        factory: Callable[..., Any] = given
        return factory


def as_now(config: C) -> C:
    """Return ``config`` with the environments that are classes or functions as these are now, with
    what they use: a notebook may have changed that since the config was made. Raises ConfigError
    for one that cannot be sent to other processes."""
    envs = {name: getattr(config, name, None) for name in ("env", "evaluate_env")}
    new = {
        name: GivenEnv(env, _pickled(env.given), env.given)
        for name, env in envs.items()
        if isinstance(env, GivenEnv) and env.given is not None
    }
    return dataclasses.replace(config, **new) if new else config


def is_instance(env: Any) -> bool:
    """Return whether ``env`` is an environment itself, not what makes one."""
    return not isinstance(env, type) and hasattr(env, "reset") and hasattr(env, "step")


def name_of_env(env: Any) -> Any:
    """Return the name of ``env``, a Python object, for a config: that of a module's function or
    class if there is one, else a `GivenEnv`. A text stays one; if it is an id that is registered in
    this process by another package than gymnasium, it carries the registration. What is no
    environment is returned as it is.

    Raises ConfigError for an object that cannot be sent to other processes."""
    if isinstance(env, str):
        own = by_value.of_main(env)
        return _registered(env) if own is None else name_of_env(own)
    if not callable(env) and not is_instance(env):
        return env
    if (found := _importable(env)) is not None:
        return found
    label = re.sub(r"\W+", "", _label(env)) or "environment"
    given = _of_rows(env) if hasattr(env, "num_envs") else env
    kept = None if is_instance(given) else given
    return GivenEnv(f"{PREFIX}{label}", _pickled(given), kept)


def lost(name: str) -> ConfigError:
    """Return the error for an environment whose object is not there."""
    return ConfigError(
        f"--env {name}: this environment was given to a program as a Python object, which a run "
        "folder does not hold. Give it again, in Python, as the env of the config; or put its "
        "class or function into a module, and name it as --env package.module:factory"
    )


def _registered(env_id: str) -> str:
    gymnasium = sys.modules.get("gymnasium")  # without it nothing is registered
    spec = None if gymnasium is None else gymnasium.registry.get(env_id)
    if spec is None or isinstance(env_id, GivenEnv):
        return env_id
    if str(spec.entry_point).startswith("gymnasium."):
        return env_id
    try:
        return GivenEnv(env_id, _pickled(spec), spec)
    except ConfigError:
        return env_id  # the script or a plugin may register it in the workers, too


def _importable(env: Any) -> str | None:
    """Return module:name of a function or class that is in a module of that name, or None."""
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "")
    if module in (None, "__main__", "__mp_main__") or not name.isidentifier():
        return None
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return f"{module}:{name}" if found is env else None


def _label(env: Any) -> str:
    if is_instance(env):
        return type(getattr(env, "unwrapped", env)).__name__
    function = getattr(env, "func", env)  # of a partial
    return str(getattr(function, "__name__", type(env).__name__))


def _of_rows(envs: Any) -> Callable[..., Any]:
    """Return a factory of the environments in a SyncVectorEnv or AsyncVectorEnv: for row k the
    function that it has been given for that row, over again for more rows. Raises ConfigError for
    any other VectorEnv: it cannot be had with another number of rows."""
    makers = getattr(envs, "env_fns", None)
    if not makers:
        raise ConfigError(
            f"env: {_label(envs)} is a VectorEnv of {envs.num_envs} rows, but workers and "
            "evaluations need others, of as many rows as each steps; give a function with the "
            "parameter num_envs that makes it"
        )
    return lambda vector_index: makers[vector_index % len(makers)]()


def _pickled(env: Any) -> bytes:
    try:
        return by_value.dumps(env)
    except Exception as error:
        what = "give a function that makes it" if is_instance(env) else "make that inside it"
        raise ConfigError(
            f"the environment {_label(env)} cannot be sent to the workers of a run, because it "
            f"holds what cannot be pickled ({error!r}): {what}"
        ) from error
