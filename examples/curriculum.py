"""Train with a curriculum: a callback makes the task harder as soon as the agent has mastered it.

    python examples/curriculum.py

The environment has a method ``set_task``. `Curriculum` has hooks of two kinds: those with a
``session`` run in this process, and `on_episode_end` runs in the actors, beside the environments.
From the command line the same training is

    cd examples
    python ../train.py appo --env curriculum:make --callbacks curriculum:Curriculum
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

import sampleforge as sf

DISTANCES = (2, 4, 8, 16, 32)
"""Of the goal: the tasks, in their order."""
MASTERED = 0.9
"""Share of the last 100 episodes that must arrive before the next task is set."""


class Corridor(gym.Env[npt.NDArray[np.float32], np.int64]):
    """A corridor with a goal on one side, at a ``distance`` that the task sets. Only the way from
    the start is seen, so that a far goal is hardly ever found by chance.

    Observations: float32 [2], the place from -1 to 1, and the side of the goal, -1 or 1.
    Actions: 0 left, 1 right. An episode ends at the goal, with reward 1, or after twice as many
    steps as the way has.
    """

    def __init__(self) -> None:
        self.distance = DISTANCES[0]
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def set_task(self, task: int) -> None:
        """Set the distance of the goal. SampleForge calls this before an episode begins."""
        self.distance = task

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._steps = 0, 0
        self._side = int(self.np_random.choice([-1, 1]))
        return self._observation(), {}

    def step(
        self, action: np.int64
    ) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._place += 2 * int(action) - 1
        self._steps += 1
        arrived = self._place == self._side * self.distance
        late = self._steps == 2 * self.distance
        return self._observation(), float(arrived), arrived, late, {}

    def _observation(self) -> npt.NDArray[np.float32]:
        return np.array([self._place / (2 * DISTANCES[-1]), self._side], np.float32)


def make() -> gym.Env[Any, Any]:
    return Corridor()


class Curriculum(sf.Callback):
    """Sets the next distance when the present one is mastered, and stops after the last one."""

    mastered = 0

    def on_wire(self, session: sf.Session) -> None:
        """Set the tasks that the run begins with. A resumed run has its task already."""
        if session.task is None:
            session.set_task(DISTANCES[0])
        session.set_evaluation_task(DISTANCES[-1])

    def on_episode_end(self, episode: sf.EpisodeHandle) -> None:
        """In the actor: report the share of episodes that arrive, for each distance by itself."""
        episode.custom_metrics[f"arrived_{episode.env.distance}"] = episode.terminated

    def on_report(self, session: sf.Session, report: Mapping[str, float]) -> None:
        """In the session's process: go on to the next distance."""
        distance = session.task
        if distance == self.mastered:
            return  # the last report of the run
        if report.get(f"custom_arrived_{distance}_mean", 0.0) < MASTERED:
            return
        self.mastered = distance
        print(f"{report['env_steps']:9,.0f} env steps: a distance of {distance} is mastered")
        if distance == DISTANCES[-1]:
            session.stop()
        else:
            session.set_task(DISTANCES[DISTANCES.index(distance) + 1])


def main() -> None:
    config = sf.AppoConfig(
        env="curriculum:make",
        train_for_env_steps=400_000,  # at the latest
        evaluate_interval=2_000,
        report_interval=0.5,
        seed=1,
    )
    curriculum = Curriculum()
    result = sf.train(config, callbacks=[curriculum])
    print(f"distances up to {curriculum.mastered} are mastered; the run is in {result.run_dir}")


if __name__ == "__main__":  # workers are processes that import this file
    main()
