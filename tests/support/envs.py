"""Fake environments: each class is a factory, e.g. `--env tests.support.envs:CodeEnv`.

`CodeEnv` and `CountingVectorEnv` write into every observation and reward where it belongs, so that
any row of any batch can be traced to its env, episode and step; `code_reward` is the reward that
belongs to an observation's step.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Info = dict[str, Any]
Step = tuple[Any, float, bool, bool, Info]


def code_reward(env_id: Any, episode: Any, step: Any) -> Any:
    """Reward of the ``step``-th step (from 1) of an episode: exact in float32."""
    return env_id * 64 + episode % 8 * 8 + step % 8 + 0.25


def episode_length(env_id: int, episode: int, longest: int) -> int:
    """Lengths 1..``longest`` that differ between envs and episodes."""
    return 1 + (3 * env_id + 5 * episode) % longest


class CodeEnv(gym.Env[Any, Any]):
    """Observation: float32 [env id, episode, step, last action]; a step's reward is
    `code_reward`. The env id is the seed of the first reset modulo 1000 (``env_id`` sets it).

    Episodes have ``length`` steps (0: lengths vary, see `episode_length`) and end by ``ending``:
    "terminate", "truncate" or "alternate" (by episode). ``sleep``: seconds per step.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(
        self,
        env_id: int | None = None,
        length: int = 0,
        longest: int = 9,
        ending: str = "alternate",
        sleep: float = 0.0,
    ) -> None:
        self.env_id = env_id
        self.length, self.longest, self.ending, self.sleep = length, longest, ending, sleep
        self.episode, self.steps, self.action = -1, 0, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if self.env_id is None:
            self.env_id = (seed or 0) % 1000
        self.episode += 1
        self.steps = 0
        self.action = 0
        return self.observation(), {}

    def observation(self) -> Any:
        return np.array([self.env_id, self.episode, self.steps, self.action], np.float32)

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), action
        assert self.env_id is not None, "reset comes first"
        if self.sleep:
            time.sleep(self.sleep)
        self.steps += 1
        self.action = int(action)
        length = self.length or episode_length(self.env_id, self.episode, self.longest)
        assert self.steps <= length, "an ended episode was stepped"
        ended = self.steps == length
        truncates = self.ending == "truncate" or (self.ending == "alternate" and self.episode % 2)
        reward = float(code_reward(self.env_id, self.episode, self.steps))
        return self.observation(), reward, ended and not truncates, ended and bool(truncates), {}


class SleepEnv(CodeEnv):
    """CodeEnv whose steps take 10 ms."""

    def __init__(self, sleep: float = 0.01, **kwargs: Any) -> None:
        super().__init__(sleep=sleep, **kwargs)


class UnevenEnv(CodeEnv):
    """CodeEnv whose steps take no time, or, seldom, long."""

    def step(self, action: Any) -> Any:
        assert self.env_id is not None
        draw = np.random.default_rng([self.env_id, self.episode, self.steps]).random()
        time.sleep(0.03 if draw < 0.05 else 0.0005)
        return super().step(action)


class RaisingEnv(CodeEnv):
    """Raises ValueError("deliberate: ..."): in the constructor or reset (``where``), or at every
    ``every``-th step of an instance."""

    made = 0

    def __init__(self, where: str = "init", every: int = 5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        type(self).made += 1
        self.where, self.every, self.left = where, every, every
        if where == "init":
            raise ValueError("deliberate: the factory raises")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        if self.where == "reset":
            raise ValueError("deliberate: reset raises")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        self.left -= 1
        if self.where == "step" and self.left <= 0:
            raise ValueError("deliberate: step raises")
        return super().step(action)


class LonelyEnv(CodeEnv):
    """Raises ValueError in the constructor, or in reset (``where``), as long as another one in the
    process is not closed; as emulators do."""

    open_ones = 0

    def __init__(self, where: str = "init", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.where = where
        self.check("init")
        LonelyEnv.open_ones += 1

    def check(self, where: str) -> None:
        if self.where == where and LonelyEnv.open_ones > (where != "init"):
            raise ValueError("deliberate: one per process")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.check("reset")
        return super().reset(seed=seed, options=options)

    def close(self) -> None:
        LonelyEnv.open_ones -= 1


class BrokenLonelyEnv(LonelyEnv):
    """A `LonelyEnv` whose step fails."""

    def step(self, action: Any) -> Any:
        raise ValueError("deliberate: in step")


class HangingEnv(CodeEnv):
    """Sleeps for ever: in "init", "reset", or "step" (``where``), there at step ``after``; with
    ``alone``, only the first env of a process."""

    made = 0

    def __init__(
        self, where: str = "init", after: int = 1, alone: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        type(self).made += 1
        self.where, self.after = "" if alone and self.made > 1 else where, after
        self.hang("init")

    def hang(self, where: str) -> None:
        while self.where == where:
            time.sleep(3600)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.hang("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        self.after -= 1
        if self.after <= 0:
            self.hang("step")
        return super().step(action)


class WrongDtypeEnv(CodeEnv):
    """Returns what its space does not say: ``wrong`` is "dtype", "shape", "nan" or "bounds", from
    step ``after`` on (0: from the reset on)."""

    observation_space = spaces.Box(-1000, 1000, (4,), np.float32)

    def __init__(self, wrong: str = "dtype", after: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wrong, self.after = wrong, after

    def observation(self) -> Any:
        good = super().observation()
        if self.steps < self.after:
            return good
        return {
            "dtype": good.astype(np.float64),
            "shape": good[:3],
            "nan": good * np.float32(np.nan),
            "bounds": good + np.float32(5000),
        }[self.wrong]


class MemoryTMaze(gym.Env[Any, Any]):
    """A cue (+1 or -1) is seen at the first step only; after ``length`` steps along the corridor
    the junction asks for it. Observation: float32 [cue, at the junction]. Action 0 / 1 at the
    junction answers -1 / +1: reward 1 if right, -1 if wrong; anywhere else actions do nothing.
    Without memory the best mean return is 0."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 5) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.cue = int(self.np_random.integers(2)) * 2 - 1
        self.steps = 0
        return np.array([self.cue, 0], np.float32), {}

    def step(self, action: Any) -> Step:
        if self.steps == self.length:
            right = int(action) * 2 - 1 == self.cue
            return np.zeros(2, np.float32), 1.0 if right else -1.0, True, False, {}
        self.steps += 1
        return np.array([0, self.steps == self.length], np.float32), 0.0, False, False, {}


class MaskedEnv(gym.Env[Any, Any]):
    """Discrete(``actions``) with a mask that changes at every step, in the info (``where`` "info")
    or in a Dict observation ("obs"). Asserts that no masked action is ever taken. The reward is 1
    for the lowest allowed action. Final observations have an empty mask."""

    def __init__(self, actions: int = 5, where: str = "info", length: int = 7) -> None:
        self.where, self.length = where, length
        self.action_space = spaces.Discrete(actions)
        plain = spaces.Box(0, 1, (actions,), np.float32)
        self.observation_space: spaces.Space[Any] = plain
        if where == "obs":
            mask = spaces.MultiBinary(actions)
            self.observation_space = spaces.Dict({"state": plain, "action_mask": mask})

    def _look(self, final: bool = False) -> tuple[Any, Info]:
        n = int(self.action_space.n)  # type: ignore[attr-defined]
        self.mask = self.np_random.random(n) < 0.5
        self.mask[self.np_random.integers(n)] = True
        self.mask &= not final
        state = self.mask.astype(np.float32)
        if self.where == "obs":
            return {"state": state, "action_mask": self.mask.astype(np.int8)}, {}
        return state, {"action_mask": self.mask.astype(np.int8)}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look()

    def step(self, action: Any) -> Step:
        assert self.mask[action], f"action {action} is masked by {self.mask}"
        reward = float(action == np.flatnonzero(self.mask)[0])
        self.steps += 1
        ended = self.steps == self.length
        observation, info = self._look(final=ended)
        return observation, reward, ended, False, info


class MixedActionEnv(gym.Env[Any, Any]):
    """A Dict of every action kind and a Dict observation of every observation kind.

    The observation asks for one value of every action leaf; the reward is the share that is right.
    """

    action_space = spaces.Dict(
        {
            "move": spaces.Discrete(3, start=-1),
            "body": spaces.Tuple(
                (spaces.MultiDiscrete([2, 4]), spaces.Box(-1.0, 1.0, (2,), np.float32))
            ),
            "buttons": spaces.MultiBinary(3),
        }
    )
    observation_space = spaces.Dict(
        {
            "asked": spaces.Discrete(3, start=-1),
            "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "vector": spaces.Tuple(
                (spaces.Box(-1.0, 1.0, (2,), np.float64), spaces.MultiDiscrete([2, 4]))
            ),
            "buttons": spaces.MultiBinary(3),
        }
    )

    def __init__(self, length: int = 6) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self._ask(), {}

    def _ask(self) -> Any:
        self.asked = self.observation_space.sample()
        return self.asked

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), action
        wheels, target = action["body"]
        right = [
            action["move"] == self.asked["asked"],
            np.array_equal(wheels, self.asked["vector"][1]),
            np.abs(target - self.asked["vector"][0]).max() < 0.3,
            np.array_equal(action["buttons"], self.asked["buttons"]),
        ]
        self.steps += 1
        return self._ask(), float(np.mean(right)), False, self.steps == self.length, {}


class PushEnv(gym.Env[Any, Any]):
    """A mass on a line, pushed to a target by a force in [-1, 1], with friction. Observation:
    float32 [distance, velocity]; reward: 1 - abs(distance). Episodes are cut at ``length`` steps;
    the best mean return is about ``length`` - 4, that of random forces about half of it."""

    observation_space = spaces.Box(-4, 4, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, length: int = 40) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.distance = float(self.np_random.uniform(-1, 1))
        self.velocity, self.steps = 0.0, 0
        return self._look(), {}

    def _look(self) -> Any:
        return np.array([self.distance, self.velocity], np.float32)

    def step(self, action: Any) -> Step:
        self.velocity = 0.7 * self.velocity + 0.1 * float(action[0])
        self.distance = min(max(self.distance + self.velocity, -2.0), 2.0)
        self.steps += 1
        reward = 1.0 - abs(self.distance)
        return self._look(), reward, False, self.steps == self.length, {}


class AimEnv(gym.Env[Any, Any]):
    """Two actions in a Box from ``low`` to ``high`` that shall hit two targets. Observation:
    float32 [2], the targets as -1..1 of the range; reward: 1 - the mean distance on that scale, so
    that nothing but the actions depends on the bounds. Random: about 1/3; perfect: 1."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, low: float = -1.0, high: float = 1.0, length: int = 8) -> None:
        self.low, self.high, self.length = low, high, length
        self.action_space = spaces.Box(low, high, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def _look(self) -> Any:
        self.target = self.np_random.uniform(-0.8, 0.8, 2).astype(np.float32)
        return self.target

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), action
        self.steps += 1
        centre, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        reached = (action.astype(np.float64) - centre) / half
        reward = 1.0 - float(np.abs(reached - self.target).mean())
        return self._look(), reward, False, self.steps == self.length, {}


class CountingVectorEnv(VectorEnv[Any, Any, Any]):
    """CodeEnvs as a VectorEnv in autoreset ``mode`` "next_step", "same_step", "disabled", or
    "unsaid" (no metadata). Env ids are the rows. ``stacked``: final_obs is one array, as ALE's."""

    row: type[CodeEnv] = CodeEnv

    def __init__(
        self, num_envs: int = 1, mode: str = "next_step", stacked: bool = False, **kwargs: Any
    ) -> None:
        self.num_envs, self.mode, self.stacked = num_envs, mode, stacked
        if mode != "unsaid":
            self.metadata = {"autoreset_mode": AutoresetMode[mode.upper()]}
        self.envs = [self.row(env_id=row, **kwargs) for row in range(num_envs)]
        self.single_observation_space = CodeEnv.observation_space
        self.single_action_space = CodeEnv.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.ended = np.zeros(num_envs, np.bool_)
        self.obs = np.zeros((num_envs, 4), np.float32)

    def reset(self, *, seed: Any = None, options: Info | None = None) -> tuple[Any, Info]:
        rows = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        for row in np.flatnonzero(rows):
            self.obs[row] = self.envs[row].reset()[0]
        self.ended[rows] = False
        return self.obs.copy(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Info]:
        assert self.mode != "disabled" or not self.ended.any(), "an ended row was not reset"
        reward = np.zeros(self.num_envs)
        flags = np.zeros((2, self.num_envs), np.bool_)
        final = np.full(self.num_envs, None, dtype=object)
        for row, env in enumerate(self.envs):
            if self.ended[row] and self.mode == "next_step":
                self.obs[row] = env.reset()[0]
                continue
            self.obs[row], reward[row], *flags[:, row], _ = env.step(actions[row])
            if flags[:, row].any() and self.mode == "same_step":
                final[row] = self.obs[row].copy()
                self.obs[row] = env.reset()[0]
        self.ended = np.asarray(flags.any(axis=0))
        return self.obs.copy(), reward, flags[0], flags[1], self._final_info(final)

    def _final_info(self, final: Any) -> Info:
        if self.mode != "same_step" or not self.ended.any():
            return {}
        if self.stacked:
            nothing = np.full(4, -1, np.float32)
            final = np.stack([nothing if f is None else f for f in final])
        return {"final_obs": final, "_final_obs": self.ended.copy()}


class EngineVectorEnv(CountingVectorEnv):
    """CountingVectorEnv on an engine: a process of its own, which a signal to the group ends. A
    step without it raises RuntimeError."""

    def __init__(self, num_envs: int = 1, **kwargs: Any) -> None:
        super().__init__(num_envs, **kwargs)
        pipe = subprocess.PIPE
        self.engine = subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, bufsize=0)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Info]:
        assert self.engine.stdin is not None and self.engine.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.engine.stdin.write(b".")
        if self.engine.stdout.read(1) != b".":
            raise RuntimeError("deliberate: the engine is gone")
        return super().step(actions)

    def close_extras(self, **kwargs: Any) -> None:
        self.engine.kill()
        self.engine.communicate()


class FlakyEnv(CodeEnv):
    """CodeEnv with episodes of ``length`` steps. Of the steps of all instances in this process,
    every ``every``-th raises ValueError("deliberate: fault <how many so far>"), ``most`` times."""

    steps_taken = 0
    faults = 0

    def __init__(
        self, every: int = 1000, length: int = 20, most: int = sys.maxsize, **kwargs: Any
    ) -> None:
        super().__init__(length=length, **kwargs)
        self.every, self.most = every, most

    def step(self, action: Any) -> Step:
        cls = type(self)
        cls.steps_taken += 1
        if cls.steps_taken % self.every == 0 and cls.faults < self.most:
            cls.faults += 1
            raise ValueError(f"deliberate: fault {cls.faults}")
        return super().step(action)


class StragglerEnv(CodeEnv):
    """CodeEnv whose steps take 3 ms, in rank 0 ``factor`` times as long."""

    def __init__(self, factor: float = 8) -> None:
        import setproctitle

        slow = setproctitle.getproctitle().endswith("rank 0")
        super().__init__(sleep=0.003 * (factor if slow else 1))


def limited(limit: int = 6) -> gym.Env[Any, Any]:
    """A factory whose environment has a time limit of its own."""
    return gym.wrappers.TimeLimit(CodeEnv(longest=50), limit)
