"""Which settings of an environment can make Python import and run code that they name.

A run folder may come from somewhere else, so that what it says about the environment is used only
as far as it cannot do that; see `sampleforge.folder.trust`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import families

PLAIN_PACKAGES = ("classic_control", "box2d", "toy_text", "mujoco", "phys2d", "tabular")
"""gymnasium's own environments. Their constructors take no string that names a module; the entry
points of its compatibility ids (GymV21Environment-v0) do, and are none of these."""


def names_code(env: str) -> bool:
    """Whether an environment's name is an import: package.module:factory, or gymnasium's
    module:Id."""
    return ":" in env


def importable_kwargs(config: EnvConfig) -> dict[str, Any]:
    """Those of ``env_kwargs`` that could name code, or a file outside the environment's package.

    Of an environment that is imported by its name: all. Numbers and truth values never can. A
    string can, unless the id's family says that its environments take plain strings only, or the id
    is gymnasium's own; and even there a path or module:attribute is not taken for a plain string.
    """
    if names_code(config.env):
        return dict(config.env_kwargs)
    strings = {key: v for key, v in config.env_kwargs.items() if isinstance(v, str)}
    if strings and _takes_plain_strings(config.env):
        return {key: value for key, value in strings.items() if not _is_plain(value)}
    return strings


def _takes_plain_strings(env: str) -> bool:
    family = next((family for family in families() if family.claims(env)), None)
    if family is not None:
        return family.plain_kwargs
    spec = gym.registry.get(env)
    own = tuple(f"gymnasium.envs.{package}." for package in PLAIN_PACKAGES)
    return spec is not None and str(spec.entry_point).startswith(own)


def _is_plain(text: str) -> bool:
    """Whether a string is neither a path nor module:attribute. A file's bare name is plain: MuJoCo
    looks for one in gymnasium's own assets."""
    return not text.startswith((".", "~")) and not any(sign in text for sign in "/\\:")
