"""An environment within wrappers that the config of a run names:

--env sampleforge.env.wrapped:make
--env-kwargs id=Pendulum-v1 wrappers='["gymnasium.wrappers:TimeAwareObservation"]'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.place import SOMEWHERE, Place
from sampleforge.env.registry import make_single
from sampleforge.env.user_code import import_function


def make(
    id: str = "",
    wrappers: Sequence[str | Mapping[str, Mapping[str, Any] | None]] = (),
    render_mode: str | None = None,
    _place: Place = SOMEWHERE,
    **env_kwargs: Any,
) -> gym.Env[Any, Any]:
    """Return the environment ``id``, of any name that ``--env`` takes, within ``wrappers``, the
    innermost first: package.module:Class each, or, with arguments, {package.module:Class:
    {argument: value}}; a single one needs no list. They change observations, rewards and actions
    where the environment is stepped. ``env_kwargs``: those of the environment. ``_place``: that
    of the row, for a factory that asks for it.

    Raises ConfigError without an ``id``, for a wrapper that does not exist, or does not return an
    environment, and for what names none."""
    if not isinstance(id, str) or not id:
        given = f"id={id!r} is no name of an environment" if id else "there is no id"
        raise ConfigError(
            f"--env {__name__}:make: {given}; name the environment within the wrappers, as in "
            "--env-kwargs id=Pendulum-v1"
        )
    env = make_single(EnvConfig(env=id, env_kwargs=env_kwargs), render_mode, _place)
    for each in wrappers if isinstance(wrappers, list | tuple) else [wrappers]:
        named = {each: None} if isinstance(each, str) else each
        if not isinstance(named, Mapping) or not all(
            isinstance(arguments, Mapping | None) for arguments in named.values()
        ):
            raise ConfigError(
                f"--env-kwargs wrappers: {each!r} must be package.module:Class or "
                "{package.module:Class: {argument: value}}; give a list of such"
            )
        for name, arguments in named.items():
            wrapper = import_function("--env-kwargs wrappers:", name)
            env = wrapper(env, **(arguments or {}))
            if not isinstance(env, gym.Env):
                raise ConfigError(
                    f"--env-kwargs wrappers: {name} returned a {type(env).__name__}, but must "
                    "return a gymnasium Env; give classes derived from gymnasium.Wrapper"
                )
    return env
