"""The configuration of the environment (EnvConfig). It imports no torch, so that flags parse
fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from sampleforge.config import Checked, check_range
from sampleforge.env.given import as_now, name_of_env


@dataclass(frozen=True)
class EnvConfig(Checked):
    env: str = ""
    """A gymnasium id (CartPole-v1, ALE/Breakout-v5, ...), module:Id for an id that a module
    registers when it is imported, or package.module:factory for your own function or class
    (default: that of the preset)."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the environment's constructor or factory, each in YAML: numbers, texts,
    true, null, lists as [1, 2], dicts as {a: 1}. A factory of your own that
    has the parameters worker_index or vector_index is given them, too: the number of the worker,
    and that of the row in it."""
    env_backend: Literal["auto", "vector", "single"] = "auto"
    """vector: the simulator's own vector env, if it has one; single: one gymnasium env per row."""
    env_timeout: float = 60.0
    """Seconds that making, resetting or stepping an environment may take before it counts as hung.
    Rows that start one after the other have this time each, rows of a VectorEnv together."""
    max_episode_steps: int | None = None
    """Truncate episodes after N env steps, which bootstraps from the last observation (default: the
    environment's own limit)."""
    action_repeat: int = 1
    """Steps of the environment for which an action is repeated, fewer where the episode ends; their
    rewards are summed. One action is one env step, and so counts --max-episode-steps."""
    rescale_actions: bool = True
    """Box actions with bounds: the policy acts in [-1, 1], which is mapped to the bounds. Off: it
    acts in the environment's own units."""
    clip_observations: bool = False
    """Cut numbers of observations that are beyond the bounds of their Box off at the bound. Off:
    they are learned from as they are, and the first one is warned of."""
    decorrelate: bool = True
    """Spread the rows of all workers over the phases of an episode at the start, so that they do
    not all end together."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "env", name_of_env(self.env))
        super().__post_init__()
        check_range(self, "env_timeout", low=0, above=True)
        check_range(self, "max_episode_steps action_repeat", low=1)

    def as_now(self) -> Self:
        """Return the config with the environments that were given as classes or functions as these
        are now."""
        return as_now(self)

    def played_in(self, env: str | None, kwargs: Mapping[str, Any]) -> Self:
        """Return the config with the environment ``env`` and the arguments ``kwargs``, or without
        ``env`` with its own one and ``kwargs`` beside its own arguments."""
        own = {} if env else self.env_kwargs
        return replace(self, env=env or self.env, env_kwargs={**own, **kwargs})

    @property
    def max_episode_frames(self) -> int | None:
        """``max_episode_steps`` in steps of the environment itself."""
        limit = self.max_episode_steps
        return None if limit is None else limit * self.action_repeat
