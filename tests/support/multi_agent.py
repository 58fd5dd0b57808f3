"""Fake multi-agent environments with PettingZoo's interface: each class is a factory, such as
`--env tests.support.multi_agent:CodeParallelEnv`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from tests.support.envs import code_reward

Dicts = tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]


class CodeParallelEnv:
    """An agent's observation: float32 [env id, episode, step, last action, seat]; the reward of a
    step is `code_reward` + 1000 x seat. The env id is the seed of the first reset modulo 1000.

    Agents are called ``a_0`` .. and, with ``scouts``, ``scout_0`` ..., whose observations have two
    more numbers (-1) and whose actions are others. Agent i leaves after ``lengths[i % len]`` steps,
    by termination in even episodes and truncation in odd ones; ``late``: the second agent joins at
    that step.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "code"}

    def __init__(
        self, agents: int = 2, scouts: int = 0, length: int = 7, shorter: int = 0, late: int = 0
    ) -> None:
        self.possible_agents = [f"a_{i}" for i in range(agents)]
        self.possible_agents += [f"scout_{i}" for i in range(scouts)]
        self.agents: list[str] = []
        self.length, self.shorter, self.late = length, shorter, late
        self.env_id = -1
        self.episode, self.steps = -1, 0
        self.last: dict[str, int] = {}

    def _scout(self, agent: str) -> bool:
        return agent.startswith("scout")

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-np.inf, np.inf, (7 if self._scout(agent) else 5,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(4 if self._scout(agent) else 3)

    def _ends_at(self, seat: int) -> int:
        return self.length - self.shorter * seat

    def _observe(self, agent: str) -> Any:
        seat = self.possible_agents.index(agent)
        values = [self.env_id, self.episode, self.steps, self.last.get(agent, 0), seat]
        if self._scout(agent):
            values += [-1, -1]
        return np.array(values, np.float32)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.env_id < 0:
            self.env_id = (seed or 0) % 1000
        self.episode += 1
        self.steps = 0
        self.last = {}
        self.agents = [a for i, a in enumerate(self.possible_agents) if not (self.late and i == 1)]
        return {a: self._observe(a) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Dicts:
        assert set(actions) == set(self.agents), (actions, self.agents)
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), (agent, action)
        self.steps += 1
        self.last = {agent: int(action) for agent, action in actions.items()}
        acted = self.agents
        rewards, terminated, truncated = {}, {}, {}
        for agent in acted:
            seat = self.possible_agents.index(agent)
            rewards[agent] = code_reward(self.env_id, self.episode, self.steps) + 1000.0 * seat
            ended = self.steps >= self._ends_at(seat)
            terminated[agent] = ended and self.episode % 2 == 0
            truncated[agent] = ended and self.episode % 2 == 1
        self.agents = [a for a in acted if not (terminated[a] or truncated[a])]
        if self.late and self.steps == self.late:
            self.agents.insert(1, self.possible_agents[1])
        observations = {a: self._observe(a) for a in {*acted, *self.agents}}
        return observations, rewards, terminated, truncated, {a: {} for a in observations}

    def close(self) -> None:
        pass


class PaidByAction(CodeParallelEnv):
    """The reward of an agent's step is its action."""

    def step(self, actions: dict[str, Any]) -> Dicts:
        observations, _, terminated, truncated, infos = super().step(actions)
        rewards = {agent: float(action) for agent, action in actions.items()}
        return observations, rewards, terminated, truncated, infos


class PaidByActionAndSeat(PaidByAction):
    """The reward of an agent's step is its action times its place among the agents, from 1."""

    def step(self, actions: dict[str, Any]) -> Dicts:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        places = {agent: place for place, agent in enumerate(self.possible_agents, 1)}
        paid = {agent: reward * places[agent] for agent, reward in rewards.items()}
        return observations, paid, terminated, truncated, infos


class RaisingParallelEnv(CodeParallelEnv):
    """Raises ValueError("deliberate") at every ``every``-th step of an instance."""

    def __init__(self, every: int = 5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.left = every

    def step(self, actions: dict[str, Any]) -> Dicts:
        self.left -= 1
        if self.left <= 0:
            raise ValueError("deliberate")
        return super().step(actions)


class MixedGoals:
    """Two walkers and a caller with other spaces: a walker sees a number in [-1, 1] and is paid for
    the action that is its sign (0 or 1); the caller sees two numbers and is paid for a Box action
    near the first. Episodes have 16 steps; the best return is 16 for each, chance gives 8."""

    metadata: ClassVar[dict[str, Any]] = {"name": "mixed"}
    possible_agents = ("walker_0", "walker_1", "caller")

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2 if agent == "caller" else 1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (1,), np.float32) if agent == "caller" else spaces.Discrete(2)

    def _look(self) -> dict[str, Any]:
        self.seen = {
            agent: self.rng.uniform(-1, 1, 2 if agent == "caller" else 1).astype(np.float32)
            for agent in self.agents
        }
        return self.seen

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.steps = 0
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Dicts:
        rewards = {}
        for agent, action in actions.items():
            seen = float(self.seen[agent][0])
            if agent == "caller":
                rewards[agent] = 1.0 - abs(float(action[0]) - seen) / 2
            else:
                rewards[agent] = float(int(action) == int(seen > 0))
        self.steps += 1
        ended = self.steps == 16
        agents, observations = self.agents, self._look()
        flags = dict.fromkeys(agents, ended)
        if ended:
            self.agents = []
        none = dict.fromkeys(agents, False)
        return observations, rewards, none, flags, {agent: {} for agent in agents}

    def close(self) -> None:
        pass


class BoxGoals(MixedGoals):
    """`MixedGoals` with Box actions of one element for a walker, and of four for the caller. That a
    walker's sign is paid for makes no difference."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (4 if agent == "caller" else 1,), np.float32)

    def step(self, actions: dict[str, Any]) -> Dicts:
        acted = {a: action if a == "caller" else action[0] > 0 for a, action in actions.items()}
        return super().step(acted)


class BoxFirst(MixedGoals):
    """`MixedGoals` with Box actions for the walkers, and two discrete ones for the caller."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2) if agent == "caller" else spaces.Box(-1, 1, (1,), np.float32)

    def step(self, actions: dict[str, Any]) -> Dicts:
        acted = {a: [act] if a == "caller" else act[0] > 0 for a, act in actions.items()}
        return super().step(acted)


class Walkers(MixedGoals):
    """`MixedGoals` whose caller has three discrete actions."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3 if agent == "caller" else 2)

    def step(self, actions: dict[str, Any]) -> Dicts:
        acted = {a: [float(action)] if a == "caller" else action for a, action in actions.items()}
        return super().step(acted)


class Game:
    """A game whose returns ``paid`` are known beforehand, by agent: each is paid when its agent
    leaves, after ``leaves`` steps of the agent (default: when the game ends, after 4 steps, or 6 in
    every second one). ``taller``: agents with observations of another shape."""

    metadata: ClassVar[dict[str, Any]] = {"name": "game"}

    def __init__(
        self,
        paid: dict[str, float],
        leaves: dict[str, int] | None = None,
        taller: tuple[str, ...] = (),
    ) -> None:
        self.possible_agents = list(paid)
        self.agents: list[str] = []
        self._paid, self._leaves, self._taller = paid, leaves or {}, taller
        self._steps, self._games = 0, 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2 + (agent in self._taller),), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def _look(self) -> dict[str, Any]:
        return {a: np.zeros(self.observation_space(a).shape, np.float32) for a in self.agents}

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self._games += 1
        self._steps, self.agents = 0, list(self.possible_agents)
        return self._look(), {a: {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Dicts:
        self._steps += 1
        end = 4 if self._games % 2 else 6
        over = {a: self._steps >= self._leaves.get(a, end) for a in self.agents}
        observations, no = self._look(), dict.fromkeys(self.agents, False)
        rewards = {agent: self._paid[agent] * over[agent] for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        return observations, rewards, over, no, {agent: {} for agent in over}

    def close(self) -> None:
        pass


def zero_sum() -> Game:
    """A game that its first agent always wins."""
    return Game({"player_0": 1.0, "player_1": -1.0})


def hunt(apart: bool = False) -> Game:
    """A game of one against three, of whom one leaves early: 8, and 0, -2 and -4. ``apart``: the
    two sides have other observations."""
    paid = {"hunter_0": 8.0, "prey_0": 0.0, "prey_1": -2.0, "prey_2": -4.0}
    return Game(paid, {"prey_1": 2}, ("hunter_0",) if apart else ())


class StayingParallelEnv(CodeParallelEnv):
    """`CodeParallelEnv` whose agents stay listed after their ends, with their flags set, until all
    have ended, as in environments that were written against an earlier PettingZoo."""

    def step(self, actions: dict[str, Any]) -> Dicts:
        gone = [agent for agent in self.possible_agents if agent not in self.agents]
        playing = [agent for agent in self.agents if not self._has_ended(agent)]
        self.agents = playing
        observations, rewards, terminated, truncated, infos = super().step(
            {agent: actions[agent] for agent in playing}
        )
        if self.agents:
            self.agents = [agent for agent in self.possible_agents if agent not in gone]
            for agent in self.agents:
                if agent not in rewards:
                    rewards[agent], observations[agent] = 0.0, self._observe(agent)
                    terminated[agent], truncated[agent], infos[agent] = True, False, {}
        return observations, rewards, terminated, truncated, infos

    def _has_ended(self, agent: str) -> bool:
        return self.steps >= self._ends_at(self.possible_agents.index(agent))


class ForeignParallelEnv(CodeParallelEnv):
    """An agent that possible_agents does not name joins at step 2."""

    def step(self, actions: dict[str, Any]) -> Dicts:
        result = super().step(actions)
        if self.steps == 2:
            self.agents.append("stranger")
        return result
