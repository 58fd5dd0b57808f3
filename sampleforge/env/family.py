"""What a package tells SampleForge about the environments it brings.

A module with a `Family` named ``FAMILY``, in the entry-point group ``sampleforge.envs``, is all it
takes; see the bundled ones. Such a module imports its simulator inside its functions only, so that
naming the environments works without it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from sampleforge.config import ConfigError, nearest
from sampleforge.env.config import EnvConfig
from sampleforge.env.vector import EnvVector

# With the two that a family answers a bad setting with: it imports sampleforge.env only.
__all__ = ["ConfigError", "Family", "nearest"]


@dataclass(frozen=True)
class Family:
    """``claims`` says whether an id is one of this family's by its form, typing errors included;
    ``ids`` lists those there are (also without the simulator, if it can). ``requires`` is the
    simulator's module, and ``extra`` what `pip install "sampleforge[extra]"` brings it with.
    ``make_vector(config, rows, seeds)`` honours ``config.env_backend``. ``plain_kwargs`` promises
    that no string in env_kwargs is taken for code to import or for a file to load it from: a run
    folder's strings then need no --trust."""

    name: str
    claims: Callable[[str], bool]
    ids: Callable[[], Sequence[str]]
    make_vector: Callable[[EnvConfig, int, Sequence[int]], EnvVector]
    make_single: Callable[[EnvConfig, str | None], gym.Env[Any, Any]]
    requires: str | None = None
    extra: str | None = None
    plain_kwargs: bool = False

    @property
    def installed(self) -> bool:
        return self.requires is None or importlib.util.find_spec(self.requires) is not None
