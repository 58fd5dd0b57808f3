"""Names of environments: what is found, and what is answered otherwise."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sampleforge.config import ConfigError
from sampleforge.env import registry
from sampleforge.env.config import EnvConfig
from sampleforge.env.scratch import scratch_directory
from sampleforge.env.seeding import row_seeds


def vector(env: str, **kwargs: object) -> object:
    return registry.make_vector(EnvConfig(env=env, **kwargs), 1, [0])  # type: ignore[arg-type]


def test_the_bundled_families_are_found_through_their_entry_points() -> None:
    assert {f.name for f in registry.families()} >= {"atari", "classic", "minatar", "mujoco"}
    known = registry.known_ids()
    for env_id in (
        "CartPole-v1",
        "ALE/Pong-v5",
        "MinAtar/Breakout",
        "HalfCheetah-v5",
        "Acrobot-v1",
    ):
        assert env_id in known


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ALE/Brekout-v5", "did you mean ALE/Breakout-v5"),
        ("CartPole-v7", "did you mean CartPole-v1"),
        ("MinAtar/breakout", "did you mean MinAtar/Breakout"),
        ("HalfCheeta-v5", "did you mean HalfCheetah-v5"),
        ("nosuch.module:make", "there is no module 'nosuch'"),
        ("tests.fakes.envs:CodeEnvs", "has no factory 'CodeEnvs'; did you mean CodeEnv"),
        ("tests.fakes.envs:code_reward", "missing 3 required positional"),
        (f"{__name__}:not_an_env", "returned a int, but must return a gymnasium Env"),
        (f"{__name__}:not_a_vector", "a factory that takes num_envs returns a VectorEnv"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(name: str, message: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=message):
        vector(name)


def not_an_env() -> int:
    return 3


def not_a_vector(num_envs: int) -> int:
    return num_envs


def test_a_missing_library_is_answered_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "sampleforge\[atari\]"'):
        vector("ALE/Breakout-v5")


def test_a_module_that_fails_to_import_another_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_env_module.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        vector("broken_env_module:make")


def test_backends_that_there_are_not_are_refused() -> None:
    with pytest.raises(ConfigError, match="no vector env of its own"):
        vector("Acrobot-v1", env_backend="vector")
    with pytest.raises(ConfigError, match="--max-episode-steps do not reach"):
        vector("tests.fakes.envs:CountingVectorEnv", max_episode_steps=5)


def test_single_environments_have_the_limit() -> None:
    config = EnvConfig(
        env="tests.fakes.envs:CodeEnv", max_episode_steps=2, env_kwargs={"length": 9}
    )
    env = registry.make_single(config)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]
    env.close()


def test_row_seeds_differ_and_repeat() -> None:
    seeds = {
        (worker, split, resumes): tuple(row_seeds(7, worker, split, 16, resumes))
        for worker in range(3)
        for split in range(2)
        for resumes in range(2)
    }
    assert len({seed for row in seeds.values() for seed in row}) == 3 * 2 * 2 * 16
    assert tuple(row_seeds(7, 2, 1, 16, 1)) == seeds[2, 1, 1]
    assert row_seeds(8, 2, 1, 16, 1) != row_seeds(7, 2, 1, 16, 1)
    assert all(0 <= seed < 2**31 for row in seeds.values() for seed in row)


def test_scratch_keeps_imports_and_takes_the_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "my_scratch_env.py").write_text("from tests.fakes.envs import CodeEnv as make\n")
    with scratch_directory() as folder:
        assert Path.cwd() == folder.resolve() != tmp_path
        Path("litter").touch()
        assert registry.load_factory("my_scratch_env:make").__name__ == "CodeEnv"
    assert not folder.exists()
    assert Path.cwd() == tmp_path
    assert os.listdir(tmp_path).count("litter") == 0
