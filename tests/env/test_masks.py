"""What the mask of a final observation forbids stays forbidden: after a time limit its best allowed
action is what is bootstrapped from."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import own_outputs
from sampleforge.spec import ACTION_MASK

MASKS = spaces.MultiBinary(5)
ENDS = 3


class Masked(gym.Env[Any, Any]):
    """Episodes of three steps, which ``by_itself`` the environment truncates, with a mask in the
    observation or the info. The masks of final observations are ``last``."""

    def __init__(self, last: str = "11010", *, in_info: bool = False, by_itself: bool = True):
        self.action_space = spaces.MultiDiscrete([2, 3])
        plain = spaces.Box(0, 9, (1,), np.float32)
        self.observation_space = plain if in_info else spaces.Dict(obs=plain, action_mask=MASKS)
        self.last, self.in_info, self.by_itself = last, in_info, by_itself

    def seen(self) -> tuple[Any, dict[str, Any]]:
        obs = np.array([self.time], np.float32)
        mask = np.array([*map(int, self.last if self.time == ENDS else "10001")], np.int8)
        if self.in_info:
            return obs, {ACTION_MASK: mask}
        return {"obs": obs, ACTION_MASK: mask}, {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        obs, info = self.seen()
        return obs, 1.0, False, self.by_itself and self.time == ENDS, info


def of_vectors(num_envs: int, mode: str, **kwargs: Any) -> SyncVectorEnv:
    made = [lambda: Masked(**kwargs)] * num_envs
    return SyncVectorEnv(made, autoreset_mode=AutoresetMode[mode])


class OfAgents:
    """The same for one agent of a ParallelEnv."""

    metadata: dict[str, Any] = {}  # noqa: RUF012
    possible_agents = ("a",)
    render_mode = None

    def __init__(self, **kwargs: Any) -> None:
        self.env = Masked(**kwargs)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.env.observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.env.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents = ["a"]
        obs, info = self.env.reset(seed=seed)
        return {"a": obs}, {"a": info}

    def step(self, actions: Any) -> tuple[Any, ...]:
        obs, reward, terminated, truncated, info = self.env.step(actions["a"])
        self.agents = [] if truncated else ["a"]
        return tuple({"a": value} for value in (obs, reward, terminated, truncated, info))

    def close(self) -> None: ...


BY_THEMSELVES: list[tuple[str, dict[str, Any]]] = [
    ("Masked", {}),
    ("Masked", {"in_info": True}),
    ("of_vectors", {"mode": "NEXT_STEP"}),
    ("of_vectors", {"mode": "SAME_STEP"}),
    ("of_vectors", {"mode": "DISABLED"}),
    ("OfAgents", {}),
    ("OfAgents", {"in_info": True}),
]


@pytest.mark.parametrize(("env", "kwargs"), BY_THEMSELVES)
@pytest.mark.parametrize(
    ("last", "kept", "by_itself"),
    [("11010", "11010", True), ("01000", "01111", True), ("11010", "11010", False)],
    ids=["some", "none of an action", "by the time limit of the run"],
)
def test_the_mask_of_a_final_observation_is_kept_where_it_allows_something(
    env: str, kwargs: dict[str, Any], last: str, kept: str, by_itself: bool
) -> None:
    config = EnvConfig(
        env=f"{__name__}:{env}",
        env_kwargs={**kwargs, "last": last, "by_itself": by_itself},
        max_episode_steps=None if by_itself else ENDS,
        decorrelate=False,
    )
    vector = make_vector(config, 1, [0])
    out = own_outputs(vector.spec, 1)
    vector.reset(out.obs)
    for time in range(1, ENDS + 1):
        vector.send({"action": np.zeros((1, 2), np.int64)})
        vector.recv(out)
        assert out.truncated.all() == (time == ENDS) and not out.terminated.any()
    final = out.obs if vector.spec.autoreset == "next_step" else out.final_obs
    assert final is not None and final["obs"].item() == ENDS
    assert "".join(map(str, final[ACTION_MASK][0].astype(int))) == kept
    vector.close()
