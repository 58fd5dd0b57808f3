"""Every cell of many episodes is where the layout says, in every autoreset mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import EnvVector
from tests.support.env_vectors import play
from tests.support.envs import code_reward, episode_length

ROWS, STEPS, LONGEST = 5, 120, 9
CODE = "tests.support.envs:CodeEnv"
COUNTING = "tests.support.envs:CountingVectorEnv"


def expected(env_id: int, actions: Any, layout: str) -> Iterator[dict[str, Any]]:
    """The literal layout of one row: what each step must write."""
    episode, step, ended = 0, 0, False
    for action in actions:
        if ended and layout == "next_step":
            episode, step, ended = episode + 1, 0, False
            zero = {"reward": 0, "terminated": False, "truncated": False, "valid": False}
            yield {**zero, "obs": [env_id, episode, 0, 0], "first": True, "final": None}
            continue
        step += 1
        ended = step == episode_length(env_id, episode, LONGEST)
        cell = {
            "reward": code_reward(env_id, episode, step),
            "terminated": ended and episode % 2 == 0,
            "truncated": ended and episode % 2 == 1,
            "valid": True,
            "obs": [env_id, episode, step, action],
            "first": False,
            "final": None,
        }
        if ended and layout == "same_step":
            episode, step = episode + 1, 0
            cell.update(final=cell["obs"], obs=[env_id, episode, 0, 0], first=True)
        yield cell


def returns(env_id: int, episodes: int) -> Iterator[tuple[float, int]]:
    for episode in range(episodes):
        length = episode_length(env_id, episode, LONGEST)
        rewards = [code_reward(env_id, episode, step) for step in range(1, length + 1)]
        yield sum(rewards), length


def make(env: str, rows: int = ROWS, **kwargs: Any) -> EnvVector:
    config = EnvConfig(env=env, env_kwargs={"longest": LONGEST, **kwargs}, decorrelate=False)
    return make_vector(config, rows, list(range(rows)))


@pytest.mark.parametrize(
    ("env", "kwargs", "layout"),
    [
        (CODE, {}, "next_step"),
        (COUNTING, {"mode": "next_step"}, "next_step"),
        (COUNTING, {"mode": "same_step"}, "same_step"),
        (COUNTING, {"mode": "same_step", "stacked": True}, "same_step"),
        (COUNTING, {"mode": "disabled"}, "same_step"),
    ],
)
def test_every_cell_is_where_the_layout_says(env: str, kwargs: Any, layout: str) -> None:
    vector = make(env, **kwargs)
    assert vector.spec.autoreset == layout
    cells, actions, episodes = play(vector, STEPS)
    for row in range(ROWS):
        found = [step[row] for step in cells]
        assert found == list(expected(row, [a[row] for a in actions], layout))
        mine = [(e.ret, e.length) for e in episodes if e.row == row]
        assert len(mine) > 10
        assert mine == list(returns(row, len(mine)))
    vector.close()


def test_a_vector_that_does_not_say_its_autoreset_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"autoreset_mode.*is None.*Set it in the class"):
        make(COUNTING, mode="unsaid")


@pytest.mark.multiprocess
def test_gymnasiums_own_vectors_agree_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same seeds, same actions: our rows and gymnasium's Sync and Async vectors, cell by cell."""
    ours = play(make(CODE, rows=2), 40)
    for kind in ("gymnasium_sync", "gymnasium_async"):
        vector = make(f"{__name__}:{kind}", rows=2)
        assert repr(play(vector, 40)) == repr(ours)
        vector.close()


def gymnasium_sync(num_envs: int, longest: int) -> Any:
    return gym.vector.SyncVectorEnv([code_env(longest)] * num_envs)


def gymnasium_async(num_envs: int, longest: int) -> Any:
    return gym.vector.AsyncVectorEnv([code_env(longest)] * num_envs, context="forkserver")


def code_env(longest: int) -> Any:
    import functools

    from tests.support.envs import CodeEnv

    return functools.partial(CodeEnv, longest=longest)
