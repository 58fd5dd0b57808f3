"""--max-episode-steps truncates in every kind of environment, with the final observation where the
layout has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from sampleforge.algorithms.windows import MakeWindows
from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.interface import shorter_limit
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import EnvVector
from sampleforge.tools.check_env import verdicts
from tests.support.apex_graphs import apex_config
from tests.support.env_vectors import play, rollout
from tests.support.envs import CodeEnv, code_reward, episode_length
from tests.support.processes import RunCli

ROWS, STEPS, LONGEST, LIMIT = 5, 60, 9, 4


def expected(env_id: int, actions: Any, layout: str, limit: int) -> Iterator[dict[str, Any]]:
    """The literal layout of one row whose episodes have at most ``limit`` steps."""
    episode, step, ended = 0, 0, False
    for action in actions:
        if ended and layout == "next_step":
            episode, step, ended = episode + 1, 0, False
            zero = {"reward": 0, "terminated": False, "truncated": False, "valid": False}
            yield {**zero, "obs": [env_id, episode, 0, 0], "first": True, "final": None}
            continue
        step += 1
        own_end = step == episode_length(env_id, episode, LONGEST)
        ended = own_end or step == limit
        cell = {
            "reward": code_reward(env_id, episode, step),
            "terminated": own_end and episode % 2 == 0,
            "truncated": (own_end and episode % 2 == 1) or step == limit,
            "valid": True,
            "obs": [env_id, episode, step, action],
            "first": False,
            "final": None,
        }
        if ended and layout == "same_step":
            episode, step = episode + 1, 0
            cell.update(final=cell["obs"], obs=[env_id, episode, 0, 0], first=True)
        yield cell


def rows_of(env: str, limit: int, **kwargs: Any) -> EnvVector:
    config = EnvConfig(
        env=env,
        env_kwargs={"longest": LONGEST, **kwargs},
        decorrelate=False,
        max_episode_steps=limit,
    )
    return make_vector(config, ROWS, list(range(ROWS)))


def gymnasium_sync(num_envs: int, longest: int, mode: str) -> Any:
    make = [partial(CodeEnv, longest=longest)] * num_envs
    return gym.vector.SyncVectorEnv(make, autoreset_mode=AutoresetMode[mode])


def gymnasium_async(num_envs: int, longest: int, mode: str) -> Any:
    make = [partial(CodeEnv, longest=longest)] * num_envs
    return gym.vector.AsyncVectorEnv(make, autoreset_mode=AutoresetMode[mode], context="forkserver")


@pytest.mark.parametrize("limit", [1, LIMIT])
@pytest.mark.parametrize(
    ("env", "kwargs", "layout"),
    [
        ("tests.support.envs:CodeEnv", {}, "next_step"),
        ("tests.support.envs:CountingVectorEnv", {"mode": "disabled"}, "same_step"),
        (f"{__name__}:gymnasium_sync", {"mode": "NEXT_STEP"}, "next_step"),
        (f"{__name__}:gymnasium_sync", {"mode": "SAME_STEP"}, "same_step"),
        (f"{__name__}:gymnasium_sync", {"mode": "DISABLED"}, "same_step"),
        pytest.param(
            f"{__name__}:gymnasium_async",
            {"mode": "NEXT_STEP"},
            "next_step",
            marks=pytest.mark.multiprocess,
        ),
    ],
)
def test_every_cell_is_where_the_layout_says_with_a_limit(
    env: str, kwargs: Any, layout: str, limit: int
) -> None:
    vector = rows_of(env, limit, **kwargs)
    try:
        assert vector.spec.autoreset == layout and vector.spec.max_episode_steps == limit
        cells, actions, episodes = play(vector, STEPS)
        for row in range(ROWS):
            found = [step[row] for step in cells]
            assert found == list(expected(row, [a[row] for a in actions], layout, limit))
            mine = [e.length for e in episodes if e.row == row]
            lengths = [min(limit, episode_length(row, k, LONGEST)) for k in range(len(mine))]
            assert mine == lengths and len(mine) > 8
    finally:
        vector.close()


def test_n_step_windows_bootstrap_from_the_observation_at_the_limit() -> None:
    """The task terminates by itself, but later; a horizon is no end of it."""
    gamma, n, limit = 0.9, 3, 4
    config = EnvConfig(
        env="tests.support.envs:CodeEnv",
        env_kwargs={"length": 9, "ending": "terminate"},
        decorrelate=False,
        max_episode_steps=limit,
    )
    vector = make_vector(config, 2, [0, 1])
    steps = rollout(vector, np.zeros((30, 2), np.int64))[1:]
    vector.close()
    columns = ("reward", "terminated", "truncated", "valid")
    reward, terminated, truncated, valid = (
        np.stack([getattr(step, name) for step in steps]) for name in columns
    )
    assert not terminated.any() and truncated.sum() > 8
    chosen = apex_config(n_step=n, gamma=gamma, reward_scale=0.5, value_rescaling=False)
    chosen = dataclasses.replace(chosen, reward_clip=None)
    windows = MakeWindows(chosen, drop_truncated=False)(reward, terminated, truncated, valid)
    for t, row in zip(*np.nonzero(valid[: -n - 1]), strict=True):
        taken = int(steps[t].obs["obs"][row, 2])  # of the episode, with this step
        used = min(n, limit - taken + 1)
        assert windows.steps[t, row] == used
        assert windows.discount[t, row] == pytest.approx(gamma**used), "no end: the value counts"
        rewards = [0.5 * gamma**i * reward[t + i, row] for i in range(used)]
        assert windows.returns[t, row] == pytest.approx(sum(rewards))
        assert steps[t + used - 1].obs["obs"][row, 2] == taken + used - 1, "of the same episode"


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_rows_that_cannot_be_reset_one_by_one_are_refused(mode: str) -> None:
    with pytest.raises(ConfigError, match=rf"--max-episode-steps 4 does not.*{mode.upper()}"):
        rows_of("tests.support.envs:CountingVectorEnv", LIMIT, mode=mode)


def test_a_limit_costs_rows_without_one_nothing() -> None:
    """The env vector without a limit is the class that it was."""
    config = EnvConfig(
        env=f"{__name__}:gymnasium_sync", env_kwargs={"longest": 9, "mode": "DISABLED"}
    )
    vector = make_vector(config, 2, [0, 1])
    assert type(vector).__name__ == "GymnasiumVector"
    np.testing.assert_equal(vector.spec.max_episode_steps, None)
    vector.close()


def lengths_of(vector: EnvVector, steps: int) -> list[int]:
    """The lengths of the episodes that end within so many steps with action 0."""
    episodes: list[Any] = []
    rollout(vector, np.zeros((steps, vector.num_rows), np.int64), episodes)
    return [episode.length for episode in episodes]


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1"])
def test_a_limit_among_the_arguments_of_a_gymnasium_id_is_obeyed(env: str) -> None:
    """gymnasium.make takes it as the time limit, whose wrapper is replaced by our own."""
    config = EnvConfig(env=env, env_kwargs={"max_episode_steps": 4}, decorrelate=False)
    vector = make_vector(config, 2, [0, 1])
    assert vector.spec.max_episode_steps == 4
    assert set(lengths_of(vector, 12)) == {4}


@pytest.mark.parametrize(("asked", "limit"), [(None, 6), (10, 6), (4, 4)])
def test_a_factorys_own_limit_holds_under_a_larger_flag(asked: int | None, limit: int) -> None:
    config = EnvConfig(env="tests.support.envs:limited", max_episode_steps=asked, decorrelate=False)
    vector = make_vector(config, 2, [0, 1])
    assert vector.spec.max_episode_steps == limit
    assert max(lengths_of(vector, 30)) == limit


def limited(length: int = 60) -> gym.Env[Any, Any]:
    return TimeLimit(CodeEnv(length=1000), length)


def limited_rows(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([limited] * num_envs)


@pytest.mark.parametrize("name", ["limited", "limited_rows"])
def test_a_flag_above_the_environments_own_time_limit_is_told(name: str) -> None:
    config = EnvConfig(f"{__name__}:{name}", max_episode_steps=100)
    vector = make_vector(config, 2, [0, 1])
    assert vector.spec.max_episode_steps == 60
    told = shorter_limit(config, vector.spec)
    assert told is not None and told.startswith("--max-episode-steps 100 has no effect")
    assert "60 steps, which holds" in told
    finding = verdicts.time_limit(told)
    assert finding is not None and (finding.verdict, finding.name) == ("warning", "episodes")
    vector.close()


@pytest.mark.parametrize("name", ["limited", "limited_rows"])
def test_a_flag_below_it_holds(name: str) -> None:
    config = EnvConfig(f"{__name__}:{name}", max_episode_steps=50)
    vector = make_vector(config, 2, [0, 1])
    assert vector.spec.max_episode_steps == 50 and shorter_limit(config, vector.spec) is None
    vector.close()
    unlimited = make_vector(EnvConfig(f"{__name__}:{name}"), 2, [0, 1])
    assert unlimited.spec.max_episode_steps == 60
    unlimited.close()


@pytest.mark.multiprocess
def test_the_start_warns_of_it(run_cli: RunCli) -> None:
    done = run_cli(
        *f"train appo --serial --env {__name__}:limited --max-episode-steps 100".split(),
        *["--train-for-env-steps", "100", "--run-dir", "run"],
    )
    assert done.returncode == 0, done.stderr
    assert "--max-episode-steps 100 has no effect" in done.stdout + done.stderr
