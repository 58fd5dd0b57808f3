"""A tabular task whose trajectories can be enumerated, for estimates of a policy's return."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sampleforge.tools.estimate.estimates import Trajectories

Floats = npt.NDArray[np.float64]
STATES, ACTIONS, END = 3, 2, 3
"""END is the state that follows the end of an episode."""


@dataclass(frozen=True)
class TabularTask:
    """Random transitions and rewards among 3 states with 2 actions, at most ``horizon`` steps.

    ``next_state`` [3, 2, 4]: probability of each next state, the last being the end of the episode;
    ``reward`` [3, 2]; ``target`` and ``behaviour`` [3, 2]: the policies. ``q`` [horizon, 3, 2]: any
    function, which is not that of the target policy."""

    next_state: Floats
    reward: Floats
    target: Floats
    behaviour: Floats
    q: Floats
    gamma: float = 0.9

    @classmethod
    def random(cls, seed: int = 0, horizon: int = 4) -> TabularTask:
        rng = np.random.default_rng(seed)
        behaviour = rng.dirichlet(np.full(ACTIONS, 4.0), STATES)
        target = 0.1 * behaviour + 0.9 * rng.dirichlet(np.full(ACTIONS, 1.0), STATES)
        return cls(
            next_state=rng.dirichlet(np.ones(STATES + 1), (STATES, ACTIONS)),
            reward=rng.normal(1.0, 1.0, (STATES, ACTIONS)),
            target=target,
            behaviour=behaviour,
            q=rng.normal(1.0, 1.0, (horizon, STATES, ACTIONS)),
        )

    @property
    def horizon(self) -> int:
        return len(self.q)

    def truth(self) -> float:
        """The target policy's return, by dynamic programming."""
        value = np.zeros(STATES + 1)
        for _ in range(self.horizon):
            ahead = self.reward + self.gamma * self.next_state @ value
            value = np.append((self.target * ahead).sum(1), 0.0)
        return float(value[0])

    def enumerated(self) -> tuple[Trajectories, Floats]:
        """Every trajectory that the behaviour policy can have, and its probability."""
        paths: list[tuple[float, list[tuple[int, int]], int]] = [(1.0, [], 0)]
        complete: list[tuple[float, list[tuple[int, int]]]] = []
        while paths:
            probability, steps, state = paths.pop()
            if state == END or len(steps) == self.horizon:
                complete.append((probability, steps))
                continue
            for action in range(ACTIONS):
                of_action = probability * self.behaviour[state, action]
                for following in range(STATES + 1):
                    p = of_action * self.next_state[state, action, following]
                    paths.append((p, [*steps, (state, action)], following))
        return self._of([steps for _, steps in complete]), np.array([p for p, _ in complete])

    def sampled(self, episodes: int, rng: np.random.Generator) -> Trajectories:
        """Episodes of the behaviour policy."""
        state = np.zeros(episodes, np.int64)
        states, actions = (np.full((episodes, self.horizon), END) for _ in range(2))
        for t in range(self.horizon):
            (on,) = np.nonzero(state != END)
            action = (rng.random(len(on)) > self.behaviour[state[on], 0]).astype(np.int64)
            states[on, t], actions[on, t] = state[on], action
            edges = self.next_state[state[on], action].cumsum(-1)
            following = (rng.random(len(on))[:, None] > edges).sum(-1)
            state[on] = np.minimum(following, END)
        return self._columns(states, np.minimum(actions, ACTIONS - 1))

    def _of(self, paths: list[list[tuple[int, int]]]) -> Trajectories:
        states, actions = (np.full((len(paths), self.horizon), END) for _ in range(2))
        for row, steps in enumerate(paths):
            for t, (state, action) in enumerate(steps):
                states[row, t], actions[row, t] = state, action
        return self._columns(states, np.minimum(actions, ACTIONS - 1))

    def _columns(
        self, states: npt.NDArray[np.int64], actions: npt.NDArray[np.int64]
    ) -> Trajectories:
        taken, s = states != END, np.minimum(states, STATES - 1)
        time = np.arange(self.horizon)
        return Trajectories(
            taken=taken,
            log_ratio=np.log(self.target[s, actions] / self.behaviour[s, actions]),
            reward=self.reward[s, actions],
            q=self.q[time, s, actions],
            v=(self.target[s] * self.q[time, s]).sum(-1),
        )
