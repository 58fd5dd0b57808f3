"""The probe answers, whatever the environment does, and leaves nothing behind."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import time
import tracemalloc
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from sampleforge.config import ConfigError
from sampleforge.env.bounds import Bounds
from sampleforge.env.config import EnvConfig
from sampleforge.env.interface import told_of_rows
from sampleforge.env.probe import EnvFailed, EnvProbeError, probe
from sampleforge.env.registry import make_vector
from sampleforge.env.single import SyncVector
from sampleforge.env.vector import own_outputs
from tests.support.envs import CodeEnv, CountingVectorEnv

pytestmark = pytest.mark.multiprocess
FAKES = "tests.support.envs"
ENDING = "tests.support.ending_envs:EndingEnv"


def config(name: str, timeout: float = 20.0, **kwargs: Any) -> EnvConfig:
    env = name if "/" in name or "-v" in name or ":" in name else f"{FAKES}:{name}"
    return EnvConfig(env=env, env_kwargs=kwargs, env_timeout=timeout)


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "MixedActionEnv", "MaskedEnv", "CountingVectorEnv"]
)
def test_the_spec_is_the_one_of_the_rows(name: str) -> None:
    vector = make_vector(config(name), 2, [0, 1])
    assert probe(config(name)) == vector.spec
    vector.close()


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("nosuch.module:make", {}, "there is no module 'nosuch'"),
        ("ALE/Brekout-v5", {}, "Did you mean ALE/Breakout-v5"),
        ("RaisingEnv", {}, r"(?s)Traceback.*\nValueError: deliberate: the factory raises$"),
        ("RaisingEnv", {"where": "reset"}, r"(?s)Traceback.*ValueError: deliberate: reset raises$"),
        (
            "RaisingEnv",
            {"where": "step", "every": 1},
            r"(?s)Traceback.*ValueError: deliberate: step raises\n.*first of 4 errors in a row",
        ),
        ("WrongDtypeEnv", {"wrong": "shape"}, r"row 0: .*float32 of shape \(4,\).*gave .*\(3,\)"),
        ("WrongDtypeEnv", {"wrong": "nan"}, "row 0: observation leaf 'obs' holds nan"),
        (f"{__name__}:too_large", {}, r"holds inf at \[0\] as float32, .* up to 3.4e38"),
        (
            f"{__name__}:wrong_category",
            {},
            r"row 0: .*must be in \[0, 2\] at \[\], .* is 3; correct",
        ),
        (f"{__name__}:without_actions", {}, "its action_space must be a space .* but is None; set"),
        (f"{__name__}:dies", {}, "ended its process in the probe, with signal SIGSEGV"),
    ],
)
def test_a_bad_environment_is_an_error_message(name: str, kwargs: Any, message: str) -> None:
    with pytest.raises(EnvProbeError, match=message):
        probe(config(name, **kwargs))


@pytest.mark.parametrize(
    ("kwargs", "warning"),
    [
        (
            {"wrong": "bounds"},
            r"row 0: .*must be in \[-1000, 1000\] at \[0\].*--clip-observations$",
        ),
        ({"wrong": "dtype"}, "leaf 'obs' is given as float64, and converted to float32"),
        ({"wrong": "shape", "after": 9}, ""),
    ],
)
def test_what_training_can_work_with_is_a_warning(kwargs: Any, warning: str) -> None:
    told = list[str]()
    assert probe(config("WrongDtypeEnv", **kwargs), told.append).observations["obs"].shape == (4,)
    assert len(told) == bool(warning)
    assert not told or re.search(warning, told[0])


@pytest.mark.parametrize(("where", "verb"), [("init", "created"), ("reset", "reset")])
def test_a_process_that_can_have_one_row_only_is_no_error(where: str, verb: str) -> None:
    told = list[str]()
    spec = probe(config("LonelyEnv", where=where), told.append)
    assert spec.one_per_process and not probe(config("CodeEnv")).one_per_process
    (text,) = told
    assert f"could not be {verb} (ValueError: deliberate: one per process)" in text


@functools.cache
def made_once() -> CodeEnv:
    return CodeEnv()


def the_same_in_all_rows(num_envs: int) -> SyncVectorEnv:
    env = CodeEnv()
    return SyncVectorEnv([lambda: TimeLimit(env, 9)] * num_envs)


def test_a_factory_that_returns_the_same_environment_again_has_one_row() -> None:
    """Two rows would step and reset it in turns."""
    told = list[str]()
    assert probe(config(f"{__name__}:made_once"), told.append).one_per_process
    assert "two env rows were given the same environment; return a new one" in told[0]
    with pytest.raises(EnvProbeError, match="two env rows were given the same environment"):
        probe(config(f"{__name__}:the_same_in_all_rows"))


@functools.cache
def rows_made_once(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([CodeEnv] * num_envs)


def test_a_factory_that_returns_the_same_vector_env_again_is_refused() -> None:
    """Two splits of a worker would step it in turns."""
    once = config(f"{__name__}:rows_made_once")
    first = make_vector(once, 2, [0, 1])
    with pytest.raises(ConfigError, match="returned the same VectorEnv again"):
        make_vector(once, 2, [0, 1])
    first.close()
    make_vector(once, 2, [0, 1]).close()


def test_spaces_may_be_known_from_the_first_reset_on() -> None:
    spec = probe(config(f"{__name__}:SpacesOfTheFirstReset"))
    assert spec.observations["obs"].categories == (3,)


def test_what_fails_with_one_row_too_is_told_by_the_error_of_one_row() -> None:
    """And not by that of the second row, which is corrected by nothing."""
    with pytest.raises(EnvFailed, match="deliberate: in step") as caught:
        probe(config("BrokenLonelyEnv"))
    assert caught.value.what == "could not be stepped"
    assert "one per process" not in str(caught.value)


@pytest.mark.parametrize(
    ("raises", "where", "stage"),
    [
        ("ValueError", "init", "created"),
        ("SystemExit", "reset", "reset"),
        ("KeyboardInterrupt", "step", "stepped"),
        ("GeneratorExit", "step", "stepped"),
    ],
)
def test_the_error_says_what_was_done_and_every_cause(raises: str, where: str, stage: str) -> None:
    with pytest.raises(EnvFailed) as failed:
        probe(config(ENDING, raises=raises, where=where))
    assert failed.value.stage == stage
    cause, error = failed.value.cause, str(failed.value)
    assert "Traceback" in error
    if raises == "ValueError":
        assert cause.startswith("ValueError: no such level")
        assert "caused by KeyError: 'level 7'" in cause
    else:
        assert f"caused by {raises}" in cause or cause.startswith(raises)


def test_the_error_of_a_process_that_has_printed_nothing_has_no_empty_line() -> None:
    with pytest.raises(EnvFailed) as failed:
        probe(config(ENDING, raises="exit", where="init"))
    assert str(failed.value) == f"{ENDING} ended its process in the probe, with exit code 3"


@pytest.mark.parametrize(
    ("raises", "told"),
    [
        (
            "ValueError",
            "its close() raised ValueError: no such level, caused by KeyError: 'level 7'",
        ),
        ("SystemExit", "its close() raised SystemExit: 3"),
        ("exit", "its close() ended its process, with exit code 3"),
        ("crash", "its close() ended its process, with signal SIGSEGV"),
        ("hang", "its close() hangs"),
    ],
)
def test_a_close_that_fails_is_a_warning(raises: str, told: str) -> None:
    warned: list[str] = []
    spec = probe(config(ENDING, raises=raises, where="close"), warned.append)
    assert spec.env_id == ENDING
    (text,) = warned
    assert told in text and text.endswith("correct close()")


def dies() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize("where", ["init", "step"])
def test_a_hang_ends_at_the_time_out_with_the_stacks(where: str) -> None:
    """The first row has to import its environment within the time-out."""
    with pytest.raises(
        EnvProbeError,
        match=r"(?s)in hang.*HangingEnv hangs.*\(the stacks are above\); --env-timeout",
    ):
        probe(config("HangingEnv", timeout=4.0, where=where))


def test_each_row_may_take_as_long_as_the_time_out() -> None:
    """Two constructions and two resets of 1.2 s within a time-out of 4.5 s each."""
    assert probe(config(f"{__name__}:SlowStart", timeout=4.5)).env_id.endswith("SlowStart")


class SlowStart(CodeEnv):
    def __init__(self) -> None:
        super().__init__()
        time.sleep(1.2)

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(1.2)
        return super().reset(**kwargs)


def test_who_waits_for_rows_is_told_of_each() -> None:
    told: list[None] = []
    with told_of_rows(lambda: told.append(None)):
        make_vector(config("CodeEnv"), 3, [0, 1, 2]).close()
    make_vector(config("CodeEnv"), 1, [0]).close()
    assert len(told) == 6, "three constructions, three resets"


def test_a_stopped_process_is_killed() -> None:
    """It cannot show its stacks, and the message does not say that it has."""
    with pytest.raises(EnvProbeError, match=r"stops hangs: .* took more than 1 s; --env-timeout"):
        probe(config(f"{__name__}:stops", timeout=1.0))


def stops() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSTOP)


def test_environments_may_fork_in_their_constructor() -> None:
    """gymnasium's AsyncVectorEnv does by default; a forked process closes its stdin."""
    assert probe(config(f"{__name__}:forks")).asynchronous


def forks(num_envs: int) -> AsyncVectorEnv:
    return AsyncVectorEnv([lambda: gym.make("CartPole-v1")] * num_envs, context="fork")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "FourValues",
            r"row 0: step\(\) must return 5 values .*returned 4 values \(ndarray, float",
        ),
        ("NoInfo", r"row 0: reset\(\) must return \(observation, info\).*returned a ndarray"),
        ("NoSeed", r"row 0: reset\(\) must take the keyword argument seed"),
        ("OldVector", r"all 2 rows: step\(\) must return 5 values .*returned 4 values"),
    ],
)
def test_environments_of_old_gym_are_refused_with_the_reason_and_the_remedy(
    name: str, message: str
) -> None:
    with pytest.raises(EnvProbeError, match=message) as caught:
        probe(config(f"{__name__}:{name}"))
    assert "Traceback" not in str(caught.value)
    assert "gym before 0.26" in str(caught.value)


class FourValues(CodeEnv):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class NoInfo(CodeEnv):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


class NoSeed(CodeEnv):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset(seed=1)


class OldVector(CountingVectorEnv):
    def step(self, actions: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(actions)
        return observation, reward, terminated | truncated, info


class LargeEnv(gym.Env[Any, Any]):
    """Observations of ``size`` bytes, of which the last one is 7 at step ``wrong``; bounds 1, 5."""

    action_space = spaces.Discrete(2)

    def __init__(self, size: int, wrong: int = -1) -> None:
        self.observation_space = spaces.Box(1, 5, (size,), np.uint8)
        self.wrong = wrong

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self._look(), {}

    def _look(self) -> Any:
        assert self.observation_space.shape is not None
        look = np.ones(self.observation_space.shape, np.uint8)
        look[-1] = 7 if self.steps == self.wrong else 1
        return look

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._look(), 0.0, False, False, {}


def test_the_check_of_a_large_observation_takes_little_memory_and_time() -> None:
    """As float64 at once, observations of 200 MB took so long that they counted as a hang."""
    size = 20_000_000
    vector = make_vector(config(f"{__name__}:LargeEnv", size=size), 2, [0, 1])
    obs = {"obs": np.ones((2, size), np.uint8)}
    bounds = Bounds(vector)
    tracemalloc.start()
    assert bounds.fault(obs) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    vector.close()
    assert peak < 2 * size


def test_one_element_outside_of_its_bounds_is_found_in_a_large_observation() -> None:
    size = 1_000_000
    where = rf"row 0: .* must be in \[1, 5\] at \[{size - 1}\], .* but is 7; correct the space"
    told = list[str]()
    probe(config(f"{__name__}:LargeEnv", size=size, wrong=2), told.append)
    assert len(told) == 1 and re.search(where, told[0])


@pytest.mark.parametrize(
    ("space", "wrong", "message"),
    [
        (spaces.Discrete(3, start=5), 8, r"must be in \[5, 7\] at \[\], .* but is 8"),
        (spaces.MultiDiscrete([2, 4]), np.array([0, 4]), r"must be in \[0, 3\] at \[1\], .* is 4"),
        (spaces.MultiBinary(2), np.array([0, 2], "int8"), r"must be in \[0, 1\] at \[1\], .* is 2"),
        (spaces.Discrete(20_000), 20_000, r"must be in \[0, 19999\] at \[\], .* but is 20000;"),
        (
            spaces.Discrete(10**7, start=-1),
            10**7 - 1,
            r"must be in \[-1, 9999998\] at \[\], .* but is 9999999;",
        ),
        (
            spaces.MultiDiscrete([20_000, 4]),
            np.array([20_000, 3]),
            r"must be in \[0, 19999\] at \[0\], .* but is 20000;",
        ),
    ],
)
def test_categories_that_a_space_does_not_have_are_out_of_bounds(
    space: Any, wrong: Any, message: str
) -> None:
    vector = SyncVector(EnvConfig(env="Looks"), lambda row: LooksEnv(space, wrong), 2, [0, 1])
    out, bounds = own_outputs(vector.spec, 2), Bounds(vector)
    vector.reset(out.obs)
    assert bounds.fault(out.obs) is None
    vector.send({"action": np.zeros(2, np.int64)})
    vector.recv(out)
    vector.close()
    found = bounds.fault(out.obs)
    assert found is not None and re.search(f"^Looks, row 0: .*{message}", found.text)
    assert found.category
    rollout = {name: np.stack([leaf] * 3) for name, leaf in out.obs.items()}
    assert bounds.fault_of_rollout(rollout) == found


@pytest.mark.parametrize(
    ("space", "inside", "outside"),
    [
        (spaces.Box(0, 30_000, (2,), np.int32), [0, 30_000], [0, 30_001]),
        (spaces.Box(0, 9, (2,), np.uint8), [0, 9], [0, 10]),
        (spaces.Box(0, 30_000, (2,), np.float32), [-1e-5, 30_001], [0, 30_010]),
    ],
)
def test_only_floats_may_be_rounded_beyond_their_bounds(
    space: spaces.Box, inside: Any, outside: Any
) -> None:
    vector = SyncVector(EnvConfig(env="Looks"), lambda row: LooksEnv(space, outside), 1, [0])
    bounds = Bounds(vector)
    vector.close()
    assert bounds.fault({"obs": np.array([inside], space.dtype)}) is None
    found = bounds.fault({"obs": np.array([outside], space.dtype)})
    assert found is not None and not found.category
    assert f"at [1], as its observation_space says, but is {outside[1]};" in found.text


def wrong_category() -> LooksEnv:
    return LooksEnv(spaces.Discrete(3), 3)


def without_actions() -> LooksEnv:
    env = LooksEnv(spaces.Discrete(3), 3)
    env.action_space = None  # type: ignore[assignment]
    return env


def too_large() -> LooksEnv:
    return LooksEnv(spaces.Box(-np.inf, np.inf, (2,), np.float64), np.array([1e300, 0.0]))


class LooksEnv(gym.Env[Any, Any]):
    """Gives samples of ``space``, and ``wrong`` at the first step."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: Any, wrong: Any) -> None:
        self.observation_space, self.wrong = space, wrong

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.wrong, 0.0, False, False, {}


class SpacesOfTheFirstReset(LooksEnv):
    """Its simulator says what it is when it has begun."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(3), 2)
        self._space = self.observation_space
        self.observation_space = None  # type: ignore[assignment]

    def reset(self, **kwargs: Any) -> Any:
        self.observation_space = self._space
        return super().reset(**kwargs)


def test_environments_and_their_probe_know_no_torch() -> None:
    """It takes seconds to import, and the probe has a time limit."""
    code = (
        "import sys; from sampleforge.env import probe, probe_child, registry; "
        "registry.known_ids(); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
