"""Environments that a program gives as Python objects reach the workers, and no file."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import sampleforge as sf
from sampleforge.cli import main
from sampleforge.config import ConfigError, to_plain
from sampleforge.env.config import EnvConfig
from sampleforge.env.given import GivenEnv
from sampleforge.env.importable import names_code
from sampleforge.env.probe import probe
from sampleforge.env.registry import make_single, make_vector
from sampleforge.env.vector import own_outputs
from tests.support.envs import CodeEnv, CountingVectorEnv

LIMIT = 7


def cell_class() -> Callable[..., gym.Env[Any, Any]]:
    """Return a class like that of a notebook's cell: no module has it."""

    class Cell(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def __init__(self, limit: int = LIMIT, first: float = 0.0) -> None:
            self.limit, self.first = limit, first

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.t = 0
            return np.array([self.first], np.float32), {}

        def step(self, action: Any) -> Any:
            self.t += 1
            return np.array([self.t], np.float32), 1.0, self.t >= self.limit, False, {}

    return Cell


Cell = cell_class()


def named_cell() -> gym.Env[Any, Any]:
    return Cell(limit=5)


LOCK = threading.Lock()


@pytest.fixture
def registered() -> Iterator[Callable[..., None]]:
    names: list[str] = []

    def register(name: str, **given: Any) -> None:
        names.append(name)
        gym.register(name, **given)

    yield register
    for name in names:
        gym.registry.pop(name, None)


def given(name: str) -> Any:
    limit = 5
    makers = [lambda k=k: Cell(9, first=float(k)) for k in range(2)]
    return {
        "class": lambda: Cell,
        "partial": lambda: functools.partial(Cell, limit=8),
        "closure": lambda: lambda: Cell(limit),
        "instance": lambda: Cell(6),
        "rows": lambda: SyncVectorEnv(makers),
        "processes": lambda: AsyncVectorEnv(makers),
    }[name]()


LENGTHS = {"class": LIMIT, "partial": 8, "closure": 5, "instance": 6, "rows": 9}


def lengths(config: EnvConfig, rows: int = 3, steps: int = 12) -> tuple[list[float], list[int]]:
    """Return each row's first observation, and the lengths of the episodes that end."""
    vector = make_vector(config, rows, range(rows))
    out = own_outputs(vector.spec, rows)
    vector.reset(out.obs)
    first, ended = out.obs["obs"][:, 0].tolist(), []
    for _ in range(steps):
        vector.send({"action": np.zeros(rows, np.int64)})
        ended += [episode.length for episode in vector.recv(out)]
    vector.close()
    return first, ended


@pytest.mark.parametrize("kind", LENGTHS)
def test_an_object_makes_the_rows_wherever_the_config_is_sent(kind: str) -> None:
    config = EnvConfig(env=given(kind), decorrelate=False)
    for sent in (config, pickle.loads(pickle.dumps(config))):
        first, ended = lengths(sent)
        assert set(ended) == {LENGTHS[kind]}
        assert first == ([0.0, 1.0, 0.0] if kind == "rows" else [0.0] * 3)
        env = make_single(sent)
        assert isinstance(env, gym.Env)
        env.close()


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", ["class", "rows"])
def test_the_probe_tries_an_object(kind: str) -> None:
    assert probe(EnvConfig(env=given(kind))).observations["obs"].shape == (1,)


def test_environments_in_processes_are_made_anew_as_well() -> None:
    envs = given("processes")
    config = EnvConfig(env=envs, decorrelate=False)
    envs.close()
    assert lengths(config)[1] == [9] * 3


def test_a_function_of_a_module_is_given_by_its_name() -> None:
    assert EnvConfig(env=CodeEnv).env == "tests.support.envs:CodeEnv"  # type: ignore[arg-type]
    assert type(EnvConfig(env=CodeEnv).env) is str  # type: ignore[arg-type]
    assert sf.AppoConfig(env="x", evaluate_env=CodeEnv, evaluate_interval=9).evaluate_env == (  # type: ignore[arg-type]
        "tests.support.envs:CodeEnv"
    )


def test_the_text_of_an_object_is_all_that_a_file_gets() -> None:
    config = EnvConfig(env=given("closure"))
    assert config.env == "object:lambda" and isinstance(config.env, GivenEnv)
    plain = to_plain(config)["env"]
    assert type(plain) is str and plain == "object:lambda"
    with pytest.raises(ConfigError, match=r"--env object:lambda: .* Give it again, in Python"):
        make_vector(EnvConfig(env=plain), 1, [0])
    assert not names_code(plain)  # so that the folder is not refused for another reason


def test_an_id_that_the_program_has_registered_is_known_to_its_workers(
    registered: Callable[..., None],
) -> None:
    registered("Cell-v0", entry_point=Cell, kwargs={"limit": 4})
    sent = pickle.dumps(EnvConfig(env="Cell-v0", decorrelate=False))
    del gym.registry["Cell-v0"]
    config = pickle.loads(sent)
    assert type(to_plain(config)["env"]) is str and config.env == "Cell-v0"
    assert set(lengths(config)[1]) == {4}


def test_ids_of_gymnasium_itself_are_plain_texts() -> None:
    assert type(EnvConfig(env="CartPole-v1").env) is str


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (lambda lock=LOCK: lock, "cannot be sent to the workers .*: make that inside"),
        (CountingVectorEnv(2), "CountingVectorEnv is a VectorEnv of 2 rows.* parameter num_envs"),
        (3, "env: 3 must be a text"),
    ],
)
def test_what_cannot_be_an_environment_is_refused(env: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EnvConfig(env=env)


def test_a_run_is_resumed_by_giving_the_object_again(tmp_path: Path) -> None:
    def run(steps: int, env: Any = None) -> sf.Result:
        return sf.train(
            sf.AppoConfig(
                env=env or given("closure"),
                run_dir=str(tmp_path),
                serial=True,
                num_envs_per_worker=4,
                train_for_env_steps=steps,
                evaluate_interval=2000,
                evaluate_episodes=2,
            )
        )

    assert run(2000).summary["return_mean"] == 5
    assert "\nenv: object:lambda\n" in (tmp_path / "config.yaml").read_text()
    again = run(4000)
    assert again.summary["env_steps"] >= 4000
    log = (tmp_path / "log.txt").read_text()
    assert "object:lambda is a Python object: resume this run from Python" in log
    assert sf.load_policy(tmp_path).act([0.0])[0] in (0, 1)
    with pytest.raises(ConfigError, match="Give it again"):
        run(6000, "object:lambda")
    # Once a module has it, commands find it by its name, and so does the next part of the run.
    assert main(["eval", str(tmp_path), "--trust", "--episodes", "2"]) == 2
    name = f"{__name__}:named_cell"
    assert main(["eval", str(tmp_path), "--env", name, "--episodes", "2"]) == 0
    assert run(6000, name).summary["env_steps"] >= 6000
    assert f"\nenv: {name}\n" in (tmp_path / "config.yaml").read_text()


@pytest.mark.multiprocess
def test_workers_step_an_object(tmp_path: Path) -> None:
    config = sf.AppoConfig(
        env=given("partial"),
        run_dir=str(tmp_path),
        num_workers=2,
        num_envs_per_worker=8,
        train_for_env_steps=4000,
    )
    assert sf.train(config).summary["return_mean"] == 8


def test_a_run_begins_with_the_object_as_it_is_then(tmp_path: Path) -> None:
    """A notebook may change what it uses after the config was made."""
    limits = {"limit": 8}
    config = sf.AppoConfig(
        env=lambda: Cell(**limits),  # type: ignore[arg-type]
        run_dir=str(tmp_path),
        serial=True,
        num_envs_per_worker=8,
        train_for_env_steps=1000,
    )
    limits["limit"] = 3
    assert sf.train(config).summary["return_mean"] == 3
