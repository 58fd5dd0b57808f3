"""Train on an environment of your own, then play an episode with the trained policy.

    python examples/custom_env.py

The environment is a gymnasium class, and `make` is its factory. Workers are processes that import
the factory by its name, ``custom_env:make``. From the command line the same training is

    cd examples
    python ../train.py appo --env custom_env:make --env-kwargs size=6
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

import sampleforge as sf

MOVES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])


class Maze(gym.Env[npt.NDArray[np.float32], np.int64]):
    """An open grid of ``size`` x ``size`` cells: walk to the goal, at a cost of 0.01 per step.

    Observations: float32 [4], row and column of the walker and of the goal, in [0, 1].
    Actions: 0 to 3, one cell in one of four directions.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.observation_space = gym.spaces.Box(0.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(len(MOVES))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        cells = self.np_random.choice(self._size**2, 2, replace=False)
        self._walker, self._goal = (np.array(divmod(int(cell), self._size)) for cell in cells)
        return self._observation(), {}

    def step(
        self, action: np.int64
    ) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._walker = (self._walker + MOVES[action]).clip(0, self._size - 1)
        arrived = bool((self._walker == self._goal).all())
        return self._observation(), 1.0 if arrived else -0.01, arrived, False, {}

    def _observation(self) -> npt.NDArray[np.float32]:
        cells = np.concatenate([self._walker, self._goal])
        return (cells / (self._size - 1)).astype(np.float32)


def make(size: int = 5) -> gym.Env[Any, Any]:
    """Return a maze that cuts episodes after 100 steps."""
    return gym.wrappers.TimeLimit(Maze(size), max_episode_steps=100)


def main() -> None:
    config = sf.AppoConfig(
        env="custom_env:make", env_kwargs={"size": 6}, train_for_env_steps=20_000, seed=1
    )
    result = sf.train(config)
    print(f"mean return of the last 100 episodes: {result.summary['return_mean']:.2f}")

    # The folder names code to import, which only a folder that you trust may do.
    policy = sf.load_policy(result.run_dir, trust=True)
    env = make(size=6)
    obs, _ = env.reset(seed=7)
    total, ended = 0.0, False
    while not ended:
        action, _ = policy.act(obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, ended = total + float(reward), terminated or truncated
    print(f"return of one episode with the trained policy: {total:.2f}")


if __name__ == "__main__":  # workers are processes that import this file
    main()
