"""Fake environments whose values are not finite now and then."""

from __future__ import annotations

from typing import Any

from tests.support.envs import CodeEnv, CountingVectorEnv, Info, Step


class NotFiniteEnv(CodeEnv):
    """A CodeEnv whose values are not finite now and then. ``where``: "obs", "reward" (of any step),
    "final" (the final observation), "final_reward", "first" (the first observation), or "all"
    (every element of every observation); ``value``: what is there instead.

    It happens at the ``after``-th step (or end, or reset) of the instance, and then at each
    ``every``-th (0: never again); ``alone``: only where the env id is a multiple of 3.
    """

    def __init__(
        self,
        where: str = "obs",
        value: float = float("nan"),
        after: int = 20,
        every: int = 0,
        alone: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.where, self.value, self.every, self.alone = where, value, every, alone
        self.left = after

    def is_bad(self, here: bool) -> bool:
        if not here or (self.alone and self.env_id is not None and self.env_id % 3):
            return False
        self.left -= 1
        if self.left:
            return False
        self.left = self.every
        return True

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        obs, info = super().reset(seed=seed, options=options)
        if self.where == "all" or self.is_bad(self.where == "first"):
            obs.fill(self.value)
        return obs, info

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = super().step(action)
        ended = terminated or truncated
        if self.where == "all":
            obs.fill(self.value)
        final = ended and self.where.startswith("final")
        if self.is_bad(final or (not ended and self.where == "obs") or self.where == "reward"):
            if "reward" in self.where:
                reward = self.value
            else:
                obs[2] = self.value
        return obs, reward, terminated, truncated, info


class NotFiniteVectorEnv(CountingVectorEnv):
    """Of NotFiniteEnvs."""

    row = NotFiniteEnv
