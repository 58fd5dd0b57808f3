"""The description by which a package adds its environments to SampleForge.

The package needs a module with a `Family` named ``FAMILY``, in the entry-point group
``sampleforge.envs``; see the bundled ones. Such a module imports its simulator only inside its
functions, so that its environments can be listed without the simulator.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from sampleforge.config import ConfigError, from_plain
from sampleforge.env.config import EnvConfig
from sampleforge.env.interface import Description, describe, description_of
from sampleforge.env.keywords import unknown_keyword
from sampleforge.env.vector import EnvVector

# ConfigError is for a family's error messages: it imports sampleforge.env only.
__all__ = [
    "ConfigError",
    "Description",
    "Family",
    "describe",
    "description_of",
    "refuse_kwargs",
    "settings_of",
]

S = TypeVar("S")


def settings_of(
    cls: type[S],
    config: EnvConfig,
    flags: Mapping[str, str] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> S:
    """Return a family's settings, a dataclass ``cls``: its defaults, overridden by env_kwargs.

    ``flags``: part of a key -> the flag that does what such a key asks for; ``ranges``: the least
    and the largest value of a key. Raises ConfigError for an unknown key, a value of the wrong type
    or out of its range."""
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in config.env_kwargs:
        if key not in names:
            elsewhere = [flag for part, flag in (flags or {}).items() if part in key]
            raise unknown_keyword(config.env, key, elsewhere or names)
    where = f"{config.env}, env_kwargs"
    settings = from_plain(cls, config.env_kwargs, where)
    for key, (low, high) in (ranges or {}).items():
        value = getattr(settings, key)
        if not low <= value <= high:
            most = "" if high == math.inf else f" and at most {high:g}"
            raise ConfigError(f"{where}: {key}: {value} must be at least {low:g}{most}")
    return settings


def refuse_kwargs(config: EnvConfig) -> None:
    """Raise ConfigError if there are ``env_kwargs``, for a family that has no settings."""
    if config.env_kwargs:
        raise ConfigError(f"{config.env} takes no --env-kwargs, but got {config.env_kwargs}")


def no_other_names(env_id: str) -> None:
    """Return None: nothing else than its ids names an environment of the family."""


def as_in_training(config: EnvConfig) -> EnvConfig:
    """Return ``config``: episodes of evaluations are those of training."""
    return config


@dataclass(frozen=True)
class Family:
    """A family of environments.

    ``claims`` returns whether an id has the form of this family's ids, even with a typing error;
    ``ids`` returns the existing ids (also without the simulator, if possible). ``meant`` returns
    the id of this family that an id of another library, or of an earlier version of the simulator,
    means, or None; it answers without the simulator, too. ``requires`` is the simulator's module,
    and ``extra`` the extra of `pip install "sampleforge[extra]"` that installs it.
    ``make_single(config, render_mode)`` returns one environment, of gymnasium or PettingZoo;
    `describe` adds what its interface does not tell. ``make_vector(config, rows, seeds)`` obeys
    ``config.env_backend``; if it has a parameter ``threads``, it is given the number of threads in
    which the rows may step. ``plain_kwargs`` promises that no string in env_kwargs names code to
    import or a file to load code from: a run folder's strings then need no --trust.
    ``needs_memory`` says that observations leave out what a policy has to remember.
    ``for_evaluation(config)`` returns the config of evaluation episodes: without what changes
    episodes as an aid to learning."""

    name: str
    claims: Callable[[str], bool]
    ids: Callable[[], Sequence[str]]
    make_vector: Callable[..., EnvVector]
    make_single: Callable[[EnvConfig, str | None], Any]
    requires: str | None = None
    extra: str | None = None
    plain_kwargs: bool = False
    needs_memory: bool = False
    meant: Callable[[str], str | None] = no_other_names
    for_evaluation: Callable[[EnvConfig], EnvConfig] = as_in_training

    @property
    def installed(self) -> bool:
        return self.requires is None or importlib.util.find_spec(self.requires) is not None
