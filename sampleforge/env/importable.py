"""The settings of an environment that can make Python import and run code that they name.

A run folder may come from a foreign source. Its settings are used without --trust only if they
cannot name code; see `sampleforge.run.folder.trust`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym

from sampleforge.env.config import EnvConfig
from sampleforge.env.given import PREFIX
from sampleforge.env.registry import families

PLAIN_PACKAGES = ("classic_control", "box2d", "toy_text", "mujoco", "phys2d", "tabular")
"""The packages of gymnasium's own environments. Their constructors take no string that names a
module; those of its compatibility ids (GymV21Environment-v0) do, and are not in these packages."""


def names_code(env: str) -> bool:
    """Return whether an environment's name causes an import: package.module:factory, or
    gymnasium's module:Id. That of a Python object does not."""
    return ":" in env and not env.startswith(PREFIX)


def importable_kwargs(config: EnvConfig) -> dict[str, Any]:
    """Return the ``env_kwargs`` that could name code, or a file outside the environment's package.

    If the environment is imported by its name, these are all. Numbers and booleans never name code.
    A string may, unless the id's family promises that its environments take plain strings only, or
    the id is gymnasium's own; even then a path or module:attribute does not count as plain.
    """
    if names_code(config.env):
        return dict(config.env_kwargs)
    texts = {key: value for key, value in config.env_kwargs.items() if any(_texts(value))}
    if texts and _takes_plain_strings(config.env):
        return {key: v for key, v in texts.items() if not all(map(_is_plain, _texts(v)))}
    return texts


def _texts(value: Any) -> Iterator[str]:
    """Return the strings in a value, those of lists and dicts with their keys as well."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from (*_texts(key), *_texts(each))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _takes_plain_strings(env: str) -> bool:
    family = next((family for family in families() if family.claims(env)), None)
    if family is not None:
        return family.plain_kwargs
    spec = gym.registry.get(env)
    own = tuple(f"gymnasium.envs.{package}." for package in PLAIN_PACKAGES)
    return spec is not None and str(spec.entry_point).startswith(own)


def _is_plain(text: str) -> bool:
    """Return whether a string is neither a path nor module:attribute. A file's bare name is plain:
    MuJoCo looks for it in gymnasium's own assets."""
    return not text.startswith((".", "~")) and not any(sign in text for sign in "/\\:")
