"""Results and statistics of episodes are taken from the infos of every kind of environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.gymnasium_vector import TruncatedVector
from sampleforge.env.random_play import random_actions
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import EnvVector, Episode, StepOut, own_outputs
from tests.support.envs import CodeEnv, CountingVectorEnv
from tests.support.multi_agent import CodeParallelEnv, Dicts

ROWS, LENGTH = 3, 4
own_info: Any = {}
"""What `OwnInfos` adds to each info; set before it is made, whose arguments are plain."""


class Results(CodeEnv):
    """The result so far is 1000 x env id + step; at the end the length is a statistic."""

    def step(self, action: Any) -> Any:
        *step, terminated, truncated, info = super().step(action)
        assert self.env_id is not None
        success = self.env_id > 0 and self.steps == LENGTH
        info = {"true_objective": 1000.0 * self.env_id + self.steps, "is_success": success}
        if terminated or truncated:
            info["episode_extra_stats"] = {"steps": self.steps, "row": self.env_id}  # type: ignore[assignment]
        return *step, terminated, truncated, info

    def reset(self, **kwargs: Any) -> Any:
        observation, _ = super().reset(**kwargs)
        return observation, {"true_objective": -1.0}


def single(length: int) -> gym.Env[Any, Any]:
    return Results(length=length)


class EarlySuccess(Results):
    """Only the second step of its episodes says whether it was a success: it was."""

    def step(self, action: Any) -> Any:
        *step, info = super().step(action)
        del info["is_success"]
        return *step, info | ({"is_success": True} if self.steps == 2 else {})


def early_success(length: int) -> gym.Env[Any, Any]:
    return EarlySuccess(length=length)


def of_gymnasium(num_envs: int, length: int, mode: str) -> Any:
    return SyncVectorEnv(
        [lambda: Results(length=length) for _ in range(num_envs)],
        autoreset_mode=AutoresetMode[mode.upper()],
    )


class OwnInfos(CountingVectorEnv):
    """A VectorEnv with infos of its own form."""

    def __init__(self, num_envs: int, length: int, mode: str = "next_step") -> None:
        super().__init__(num_envs, mode=mode, length=length)
        self.reward_shaping = {"bonus": 1.0}

    def step(self, actions: Any) -> Any:
        *step, info = super().step(actions)
        return *step, {**info, **own_info}


class Agents(CodeParallelEnv):
    def step(self, actions: dict[str, Any]) -> Dicts:
        *step, infos = super().step(actions)
        for agent, info in infos.items():
            info["true_objective"] = 1000.0 * self.possible_agents.index(agent) + self.steps
            info["success"] = agent == self.possible_agents[0]
        return *step, infos  # type: ignore[return-value]


def made(name: str, **kwargs: Any) -> EnvVector:
    env_kwargs = {"length": LENGTH, **kwargs}
    config = EnvConfig(env=f"{__name__}:{name}", env_kwargs=env_kwargs, decorrelate=False)
    return make_vector(config, ROWS, list(range(ROWS)))


def check_infos(seat: EnvVector, out: StepOut) -> None:
    """Each row's info is that of its step, of whatever kind the environment is; a row that was only
    reset has none of a step."""
    for row in range(ROWS):
        info, ended = seat.row_info(row), out.terminated[row] or out.truncated[row]
        step = LENGTH if ended else out.obs["obs"][row, 2]
        assert not out.valid[row] or info["true_objective"] % 1000 == step
        assert out.valid[row] or info.get("true_objective", -1.0) == -1.0


def played(vector: EnvVector, steps: int = 2 * LENGTH + 2) -> list[list[Episode]]:
    """The episodes of each seat, in the order in which they end."""
    outs = [own_outputs(seat.spec, ROWS) for seat in vector.seats]
    rng, found = np.random.default_rng(0), [list[Episode]() for _ in outs]
    for seat, out in zip(vector.seats, outs, strict=True):
        seat.reset(out.obs)
    for _ in range(steps):
        for seat in vector.seats:
            seat.send(random_actions(seat.spec, ROWS, rng))
        for seat, out, episodes in zip(vector.seats, outs, found, strict=True):
            episodes += seat.recv(out)
            if not own_info:
                check_infos(seat, out)
    vector.close()
    return found


def results(episodes: list[Episode]) -> list[tuple[int, float, float | None]]:
    """(row, return, success) of episodes."""
    return [(each.row, each.ret, each.success) for each in episodes]


@pytest.mark.parametrize("mode", ["", "next_step", "same_step", "disabled"])
def test_rows_of_a_vector_env_are_reported_as_single_environments_are(mode: str) -> None:
    vector = made("of_gymnasium", mode=mode) if mode else made("single")
    (episodes,) = played(vector)
    expected = [(row, 1000.0 * row + LENGTH, float(row > 0)) for row in range(ROWS)] * 2
    assert results(episodes) == expected
    stats = [dict(each.stats) for each in episodes]
    assert stats == [{"steps": LENGTH, "row": row} for row in range(ROWS)] * 2


def test_only_the_last_step_of_an_episode_says_whether_it_was_a_success() -> None:
    (episodes,) = played(made("early_success"))
    assert [each.success for each in episodes] == [None] * 2 * ROWS


def test_agents_have_results_of_their_own() -> None:
    found = played(made("Agents"))
    assert [results(episodes) for episodes in found] == [
        [(row, 1000.0 * seat + LENGTH, float(seat == 0)) for row in range(ROWS)] * 2
        for seat in (0, 1)
    ]


def test_a_vector_env_may_give_all_rows_a_value_at_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = {
        "true_objective": [5.0, 6.0, 7.0],
        "episode_extra_stats": {"x": np.arange(3)},
        "success": np.array([True, False, True]),
        "is_success": "in words",
    }
    monkeypatch.setattr(f"{__name__}.own_info", info)
    for mode in ("next_step", "same_step"):
        (episodes,) = played(made("OwnInfos", mode=mode))
        assert results(episodes) == [(0, 5, 1), (1, 6, 0), (2, 7, 1)] * 2
        assert [dict(each.stats) for each in episodes] == [{"x": 0}, {"x": 1}, {"x": 2}] * 2


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"true_objective": 5.0}, "all 3 rows: info['true_objective'] must be an array"),
        ({"true_objective": [1.0, None, 2.0]}, "row 1: info['true_objective'] must be a number"),
        ({"episode_extra_stats": {"x": 1.0}}, "all 3 rows: info['x'] must be an array"),
        ({"episode_extra_stats": [1, 2, 3]}, "row 0: info['episode_extra_stats'] must be a dict"),
    ],
)
def test_what_is_no_such_value_is_refused(
    monkeypatch: pytest.MonkeyPatch, info: Any, words: str
) -> None:
    monkeypatch.setattr(f"{__name__}.own_info", info)
    with pytest.raises(ConfigError) as refusal:
        played(made("OwnInfos"))
    assert words in str(refusal.value), refusal.value


def test_a_vector_env_offers_reward_shaping_numbers() -> None:
    vector = made("OwnInfos")
    assert vector.spec.reward_shaping == {"bonus": 1.0}
    vector.set_reward_shaping({"bonus": 2.0})
    assert vector.row_env(0).unwrapped.reward_shaping == {"bonus": 2.0}
    vector.close()


class Succeeds(CodeEnv):
    """Says at each step whether it was a success: the even steps are, of env 0 in words only."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        success = "yes" if self.env_id == 0 else self.steps % 2 == 0
        return obs, reward, terminated, truncated, {"is_success": success}


def succeeds() -> gym.Env[Any, Any]:
    return Succeeds()


def test_an_episode_is_a_success_if_its_last_step_is() -> None:
    vector = make_vector(EnvConfig(env=f"{__name__}:succeeds"), 3, [0, 1, 2])
    out, action = own_outputs(vector.spec, 3), {"action": np.zeros(3, np.int64)}
    vector.reset(out.obs)
    ended = []
    for _ in range(60):
        vector.send(action)
        ended += vector.recv(out)
    assert len(ended) > 20
    for episode in ended:
        assert episode.success == (None if episode.row == 0 else episode.length % 2 == 0)
    vector.close()


class InTime(CodeEnv):
    """Every second episode is a success at its third step; the others have no end."""

    def __init__(self) -> None:
        super().__init__(length=100)

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        done = self.steps == 3 and self.episode % 2 == 0
        return (
            obs,
            reward,
            done,
            False,
            {
                "is_success": done,
                "episode_extra_stats": {"done": float(done)},
            },
        )


def in_time(num_envs: int | None = None, mode: str = "NEXT_STEP") -> Any:
    if num_envs is None:
        return InTime()
    return SyncVectorEnv([InTime] * num_envs, autoreset_mode=AutoresetMode[mode])


@pytest.mark.parametrize("mode", [None, *AutoresetMode.__members__])
def test_an_episode_whose_time_is_over_is_no_success(mode: str | None) -> None:
    config = EnvConfig(env=f"{__name__}:in_time", max_episode_steps=5)
    if mode is None:
        vector: EnvVector = make_vector(config, ROWS, [0, 1, 2])
    else:
        vector = TruncatedVector(config, in_time(ROWS, mode), [0, 1, 2])
    out, action = own_outputs(vector.spec, ROWS), {"action": np.zeros(ROWS, np.int64)}
    vector.reset(out.obs)
    found = []
    for _ in range(40):
        vector.send(action)
        found += vector.recv(out)
    vector.close()
    assert {e.length for e in found} == {3, 5}
    for episode in found:
        done = float(episode.length == 3)
        assert (episode.success, episode.stats) == (done, {"done": done})
