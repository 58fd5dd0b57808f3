"""Environments that return one value of another type or shape than they should, in place of that of
`CodeEnv`: ``column`` is "reward", "terminated", "truncated", "info", or a key of the info."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

from tests.support.envs import CodeEnv, CountingVectorEnv, Step
from tests.support.multi_agent import CodeParallelEnv, Dicts

given: tuple[str, Any] = ("reward", "1.5")
"""The column and the value; set before the environment is made, whose arguments are plain."""
MISSING = object()
"""In place of a value: an agent of `WrongTurns` has none."""
COLUMNS = ("obs", "reward", "terminated", "truncated", "info")


def put(step: Any, column: str, value: Any) -> Any:
    """The five values of a step, with ``value`` in ``column``."""
    if column not in COLUMNS:
        return (*step[:4], {**step[4], column: value})
    return tuple(value if name == column else own for name, own in zip(COLUMNS, step, strict=True))


class WrongEnv(CodeEnv):
    """A `CodeEnv` that returns the value at step ``after``, in rows (by their seeds) from ``row``
    on."""

    def __init__(self, row: int = 1, after: int = 2, length: int = 5) -> None:
        super().__init__(length=length)
        self.row, self.after = row, after

    def step(self, action: Any) -> Step:
        step = super().step(action)
        assert self.env_id is not None
        if self.env_id >= self.row and self.steps == self.after:
            return put(step, *given)  # type: ignore[no-any-return]
        return step


class WrongVectorEnv(CountingVectorEnv):
    """A `CountingVectorEnv` that returns the value for all rows at its second step."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, length=5)
        self.taken = 0

    def step(self, actions: Any) -> Any:
        self.taken += 1
        step = super().step(actions)
        return put(step, *given) if self.taken == 2 else step


class MaskedVectorEnv(CountingVectorEnv):
    """A `CountingVectorEnv` with a mask, which at the second step is the value in row 2."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, length=5)
        mask = spaces.MultiBinary(3)
        self.single_observation_space = spaces.Dict(x=CodeEnv.observation_space, action_mask=mask)
        self.taken = 0

    def _masked(self, observations: Any) -> Any:
        masks = np.ones((self.num_envs, 3), np.int8)
        if self.taken == 2:
            masks[2] = given[1]
        return {"x": observations, "action_mask": masks}

    def reset(self, **kwargs: Any) -> Any:
        observations, info = super().reset(**kwargs)
        return self._masked(observations), info

    def step(self, actions: Any) -> Any:
        self.taken += 1
        observations, *rest = super().step(actions)
        return self._masked(observations), *rest


class WrongParallelEnv(CodeParallelEnv):
    """A `CodeParallelEnv` that returns the value for its agent a_1 (``whole``: in place of the
    dict of all agents) at the second step."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__(length=5)
        self.whole = whole

    def step(self, actions: dict[str, Any]) -> Dicts:
        step = super().step(actions)
        if self.steps != 2:
            return step
        if self.whole:
            return put(step, *given)  # type: ignore[no-any-return]
        dicts = dict(zip(COLUMNS, step, strict=True))
        column, value = given
        if column in COLUMNS:
            dicts[column]["a_1"] = value
        else:
            dicts["info"]["a_1"] = {column: value}
        return step


class WrongTurns(AECEnv):  # type: ignore[misc]
    """Two agents that act one after the other, with the value in the ``given`` dict of a_1
    (``whole``: in place of the dict), from the second turn on, or (``first``) from the reset on.
    ``together``: PettingZoo may convert a round of turns into a step. ``agents``: those of each
    episode."""

    def __init__(
        self, together: bool = False, whole: bool = False, first: bool = False, agents: int = 2
    ) -> None:
        super().__init__()
        self.metadata = {"name": "wrong turns", "is_parallelizable": together}
        self.render_mode = None
        self.possible_agents = ["a_0", "a_1"]
        self.whole, self.first, self.playing = whole, first, agents

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def observe(self, agent: str) -> Any:
        return np.zeros(2, np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = self.possible_agents[: self.playing]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict(self.rewards)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict(self.terminations)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = "a_0"
        self.turns = 0
        if self.first:
            self._spoil()

    def _spoil(self) -> None:
        name, value = given
        if self.whole:
            setattr(self, name, value)
        elif value is MISSING:
            del getattr(self, name)["a_1"]
        else:
            getattr(self, name)["a_1"] = value

    def step(self, action: Any) -> None:
        self.turns += 1
        if self.turns == 2:
            self._spoil()
        self.agent_selection = "a_1" if self.agent_selection == "a_0" else "a_0"
        self._accumulate_rewards()


class RaisingTurns(WrongTurns):
    """Raises an error of its own, while a reward is wrong."""

    def step(self, action: Any) -> None:
        self._spoil()
        raise ZeroDivisionError
