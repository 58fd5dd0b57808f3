"""Keyword arguments in ``env_kwargs`` that an environment does not take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.names import nearest

REFUSED = re.compile(r"unexpected keyword argument '(\w+)'")


def unknown_keyword(env_id: str, key: str, names: Sequence[str]) -> ConfigError:
    """Return the error of a ``key`` of ``env_kwargs``. ``names``: those that there are, or those of
    them that are meant; empty if they are not known."""
    there_is = " or ".join(nearest(key, names) or names)
    remedy = f"there is {there_is}" if there_is else "correct the name, or leave it out"
    return ConfigError(f"{env_id}: unknown env_kwargs {key!r}; {remedy}")


@contextmanager
def refusing_keywords(config: EnvConfig) -> Iterator[None]:
    """Raise ConfigError, with the names that there are, in the place of the TypeError by which code
    in the body refuses a key of ``config.env_kwargs``. Other errors pass."""
    try:
        yield
    except TypeError as error:
        found = REFUSED.search(str(error))
        if found is None or found[1] not in config.env_kwargs:
            raise
        raise unknown_keyword(config.env, found[1], keywords_of(config.env)) from error


def keywords_of(env_id: str) -> list[str]:
    """Return the names of the arguments of a registered id's constructor, and, as far as it passes
    others on, of its base classes'; empty for an id that gymnasium does not know."""
    entry_point = gym.registry[env_id].entry_point if env_id in gym.registry else None
    if entry_point is None:
        return []
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    functions = [creator]
    if inspect.isclass(creator):
        functions = [each.__init__ for each in creator.__mro__ if "__init__" in vars(each)]
    names: list[str] = []
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        names += [each.name for each in parameters if each.kind not in _OF_MANY]
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            break
    return [name for name in dict.fromkeys(names) if name not in ("self", "render_mode")]


_OF_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
