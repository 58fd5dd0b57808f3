"""Runs with generated observation and action spaces: each trains, or is refused in a sentence. Its
spec is the same when it is read again, its policy gives actions of the space, and the exported
program computes what the policy does."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from sampleforge.api import load_policy, train
from sampleforge.config import ConfigError
from sampleforge.env.spec_json import spec_from_plain, spec_to_plain
from sampleforge.models.config import ModelConfig
from sampleforge.tools.export.program import PolicyProgram, max_error
from sampleforge.topologies.config import ApexConfig, AppoConfig, SacConfig
from tests.support.graphs import spec_of
from tests.support.probes import probe_by

set_hypothesis_home_dir(Path(tempfile.gettempdir(), "hypothesis-of-sampleforge"))  # not in "."
ENV_STEPS = 100
SMALL: dict[str, Any] = {
    **{"serial": True, "quiet": True, "num_workers": 1, "num_envs_per_worker": 2, "rollout": 5},
    **{"train_for_env_steps": ENV_STEPS, "seed": 1, "model": ModelConfig(hidden_sizes=(8,))},
}
OF_REPLAY = {"learning_starts": 20, "replay_capacity": 200, "batch_size": 8}
FLOATS = (np.float32, np.float64, np.float16)
INTEGERS = (np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16)


class Generated(gym.Env[Any, Any]):
    """Observations drawn from one space; every action must be one of the other. Episodes of seven
    steps."""

    def __init__(self, observations: spaces.Space[Any], actions: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observations, actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 7, False, {}


shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple) | st.just((12, 12, 3))


@st.composite
def boxes(draw: Any, dtypes: tuple[Any, ...] = FLOATS + INTEGERS) -> spaces.Box:
    """Bounds of any kind, one pair for all elements or one for each."""
    dtype, shape = np.dtype(draw(st.sampled_from(dtypes))), draw(shapes)
    if dtype.kind == "f":
        ends = st.sampled_from([-np.inf, -1e3, -1.0, 0.0, 0.5, 1.0, 300.0, np.inf])
    else:
        info = np.iinfo(dtype)
        few = [0, 1, 5, 100] + [-3] * (dtype.kind == "i")
        # gymnasium draws no number of 64 bits from their whole range
        widest = [int(info.min), int(info.max)] if dtype.itemsize < 8 else []
        ends = st.sampled_from(few + widest)
    count = int(np.prod(shape)) if draw(st.booleans()) else 1
    pairs = [sorted((draw(ends), draw(ends))) for _ in range(min(count, 8))]
    low, high = (np.resize(np.array(each, dtype), shape) for each in zip(*pairs, strict=True))
    high = np.where(np.isneginf(high), 0, high) if dtype.kind == "f" else high
    low = np.where(np.isposinf(low), 0, low) if dtype.kind == "f" else low
    return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)


discrete = st.builds(
    lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-3, 3)
)
multi_discrete = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(spaces.MultiDiscrete)
multi_binary = st.integers(1, 5).map(spaces.MultiBinary)
strange = st.sampled_from(
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(3)),
        spaces.Graph(spaces.Box(-1, 1, (2,)), None),
        spaces.OneOf([spaces.Discrete(2), spaces.Box(-1, 1, (2,))]),
    ]
)
"""Kinds that have no arrays of one shape."""
keys = st.sampled_from(["obs", "a", "a.b", "a/b", "é", "0", "two words", "x-y", "_", "Obs"])


def nested(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaf,
        lambda inner: (
            st.dictionaries(keys, inner, min_size=1, max_size=3).map(spaces.Dict)
            | st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple)
        ),
        max_leaves=4,
    )


plain = discrete | multi_discrete | multi_binary
observation_spaces = nested(boxes() | plain) | nested(boxes() | strange)
action_spaces = nested(boxes() | plain) | nested(boxes() | strange)


def check(observations: spaces.Space[Any], actions: spaces.Space[Any], folder: Path) -> bool:
    """Train, evaluate and export; return False if the spaces are refused."""

    def env() -> gym.Env[Any, Any]:
        return Generated(observations, actions)

    config: Any = AppoConfig(env=env, run_dir=str(folder), batch_size=20, **SMALL)  # type: ignore[arg-type]
    if isinstance(actions, spaces.Discrete):
        config = ApexConfig(env=env, run_dir=str(folder), **OF_REPLAY, **SMALL)  # type: ignore[arg-type]
    elif isinstance(actions, spaces.Box) and actions.is_bounded() and actions.dtype.kind == "f":
        config = SacConfig(env=env, run_dir=str(folder), **OF_REPLAY, **SMALL)  # type: ignore[arg-type]
    try:
        result = train(config)
    except ConfigError as error:
        said = str(error)
        assert said and "Traceback" not in said and len(said) < 1200, said
        return False
    assert result.summary["env_steps"] >= ENV_STEPS
    policy = load_policy(folder)
    spec = policy.spec
    assert spec_to_plain(spec_from_plain(json.loads(json.dumps(spec_to_plain(spec))))) == (
        spec_to_plain(spec)
    )
    observations.seed(3)
    for _ in range(3):
        action, _ = policy.act(observations.sample())
        assert actions.contains(action), f"{action!r} is not in {actions}"
    program = PolicyProgram(policy)

    def exported(inputs: Any) -> Any:
        outputs = program({name: torch.from_numpy(column) for name, column in inputs.items()})
        return {name: column.numpy() for name, column in outputs.items()}

    assert max_error(policy, exported, 20) < 1e-3
    return True


@pytest.fixture
def probed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process for each probe."""
    probe_by(spec_of, monkeypatch)


def holds(examples: int) -> Any:
    """The test over so many generated pairs of spaces, always the same ones."""

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # a smaller example may take minutes
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(observations=observation_spaces, actions=action_spaces)
    def test(observations: Any, actions: Any, probed_here: None, tmp_path_factory: Any) -> None:
        check(observations, actions, tmp_path_factory.mktemp("run") / "run")

    return test


test_generated_spaces_are_trained_or_refused = pytest.mark.long(holds(25))
test_2000_generated_spaces_are_trained_or_refused = pytest.mark.slow(holds(2000))
