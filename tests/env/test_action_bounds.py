"""Box actions: the policy acts in [-1, 1], whatever the environment's bounds are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import sampleforge as sf
from sampleforge.api import LoadedPolicy
from sampleforge.env.adapter import ActionAdapter
from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.models.critics import check_bounded_boxes
from sampleforge.run.folder.trust import Trust
from sampleforge.spec import (
    ACTION,
    ActionSpec,
    EnvSpec,
    action_specs,
    observation_specs,
    rescaled,
)
from sampleforge.topologies.config import ALGOS, AnyConfig, AppoConfig, DdppoConfig
from sampleforge.topologies.registry import pairing
from tests.support.graphs import spec_of
from tests.support.learning import learn
from tests.support.runs import newest
from tests.support.variants import slow

AIM = "tests.support.envs:AimEnv"
TRUSTED = Trust(everything=True)
INF = float("inf")
LARGEST = float(np.finfo(np.float32).max)


def adapter(space: spaces.Box) -> ActionAdapter:
    specs = {name: rescaled(spec) for name, spec in action_specs(space).items()}
    return ActionAdapter(space, specs)


def given(space: spaces.Box, actions: Any) -> Any:
    """What the environment gets for stored ``actions`` [rows, n]."""
    found = adapter(space)({ACTION: np.array(actions, space.dtype)})[ACTION]
    assert found.dtype == space.dtype
    return found


@pytest.mark.parametrize(
    "low, high", [(-0.01, 0.01), (-1e5, 1e5), (0.0, 255.0), (5.0, 5.5), (1e6, 1e6 + 1), (-3.0, 0.1)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_ends_and_the_middle_are_the_bounds_and_their_centre(
    low: float, high: float, dtype: Any
) -> None:
    space = spaces.Box(low, high, (1,), dtype)
    ends = given(space, [[-1.0], [1.0], [-7.0], [7.0]])[:, 0]
    assert ends.tolist() == [space.low[0], space.high[0]] * 2
    middle = given(space, [[0.0], [0.5]])[:, 0]
    step = (high - low) / 2
    assert middle == pytest.approx([low + step, low + 1.5 * step], rel=1e-6)


def test_every_element_has_its_own_bounds() -> None:
    low = np.array([-1.0, 0.0, -INF, -2.0, 0.0, 3.0, -LARGEST], np.float32)
    high = np.array([1.0, 10.0, INF, 2.0, INF, 3.0, LARGEST], np.float32)
    space = spaces.Box(low, high)
    spec = rescaled(action_specs(space)[ACTION])
    assert spec.low == (-1.0, -1.0, -INF, -1.0, 0.0, -1.0, -INF)
    assert spec.high == (1.0, 1.0, INF, 1.0, INF, 1.0, INF)
    assert given(space, [[0.3, 0.3, 70.0, 0.3, 70.0, 0.3, 70.0]])[0].tolist() == pytest.approx(
        [0.3, 6.5, 70.0, 0.6, 70.0, 3.0, 70.0]
    )
    assert given(space, [[-9.0] * 7])[0].tolist() == [-1.0, 0.0, -9.0, -2.0, 0.0, 3.0, -9.0]


def test_what_needs_no_rescaling_is_left_alone() -> None:
    """To the bit: bounds of +-1, and none."""
    for space in (spaces.Box(-1, 1, (3,)), spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(3)):
        spec = action_specs(space)[ACTION]
        assert rescaled(spec) is spec
    twice = rescaled(action_specs(spaces.Box(-2, 2, (1,)))[ACTION])
    assert rescaled(twice) is twice


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_largest_number_of_the_dtype_is_no_bound(dtype: Any) -> None:
    largest = np.finfo(dtype).max
    space = spaces.Box(-largest, largest, (2,), dtype)
    assert given(space, [[-3.0, 500.0]])[0].tolist() == [-3.0, 500.0]
    spec = rescaled(action_specs(space)[ACTION])
    assert (spec.low, spec.high) == ((-INF, -INF), (INF, INF))


def test_a_scalar_and_a_matrix_keep_their_shape() -> None:
    assert given(spaces.Box(0.0, 4.0, ()), [0.0, 1.0]).tolist() == [2.0, 4.0]
    matrix = spaces.Box(np.array([[0.0, 1.0]], "f"), np.array([[2.0, 5.0]], "f"))
    assert given(matrix, [[[1.0, -1.0]]]).tolist() == [[[2.0, 1.0]]]


def weights(make: Callable[..., AnyConfig], folder: Path, bound: float, **more: Any) -> Any:
    """The tensors after some updates on AimEnv with Box bounds of +-``bound``."""
    config = make(
        **{
            "env": AIM,
            "env_kwargs": {"low": -bound, "high": bound},
            "run_dir": str(folder / f"{bound:g}"),
            "seed": 3,
            "serial": True,
            "quiet": True,
            "num_envs_per_worker": 8,
            "rollout": 16,
            "train_for_env_steps": 2000,
            "model": ModelConfig(hidden_sizes=(16,)),
            **more,
        }
    )
    return newest(sf.train(config).run_dir)


APPO = {"num_workers": 1, "batch_size": 256, "num_epochs": 4, "learning_rate": 3e-3}
DDPPO = {"num_ranks": 1, "minibatch_size": 64, "num_epochs": 4, "learning_rate": 3e-3}
TOPOLOGIES: dict[str, tuple[Callable[..., AnyConfig], dict[str, Any]]] = {
    "appo": (AppoConfig, APPO),
    "ddppo": (DdppoConfig, DDPPO),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "squash"),
    [("appo", True), ("ddppo", False), slow("appo", False), slow("ddppo", True)],
)
def test_weights_do_not_depend_on_the_bounds(name: str, squash: bool, tmp_path: Path) -> None:
    """Equal to the bit for powers of two; else to the rounding of the environment's actions, as
    long as it puts no sample on the other side of a clipped ratio."""
    make, more = TOPOLOGIES[name]
    more = {**more, "model": ModelConfig(hidden_sizes=(16,), squash_actions=squash)}
    plain = weights(make, tmp_path, 1.0, **more)
    for bound in (2.0**-7, 2.0**17):
        other = weights(make, tmp_path, bound, **more)
        assert all(torch.equal(plain[n], other[n]) for n in plain), bound
    more["train_for_env_steps"] = 1000
    plain = weights(make, tmp_path / "short", 1.0, **more)
    for bound in (0.01, 1e5):
        other = weights(make, tmp_path / "short", bound, **more)
        assert all(torch.allclose(plain[n], other[n], atol=1e-5) for n in plain), bound


@pytest.mark.long
@pytest.mark.parametrize("low, high", [(-0.01, 0.01), (-1e5, 1e5), (7.0, 7.5)])
def test_aiming_is_learned_alike_within_any_bounds(low: float, high: float) -> None:
    """Random: 2.7 of 8; in the environment's own units bounds of .01 give no better than that."""
    aim = AppoConfig(
        env=AIM,
        env_kwargs={"low": low, "high": high},
        serial=True,
        device="cpu",
        num_workers=1,
        num_splits=1,
        num_envs_per_worker=32,
        rollout=8,
        batch_size=256,
        minibatch_size=64,
        num_epochs=4,
        clip_ratio=0.2,
        learning_rate=3e-3,
        gamma=0.5,
        model=ModelConfig(initial_log_std=-0.5),
    )
    assert learn(aim, 60_000, until=6.0) > 6.0


def test_a_loaded_policy_gives_the_environments_actions() -> None:
    config = EnvConfig(env=AIM, env_kwargs={"low": 3.0, "high": 5.0})
    spec = spec_of(config)
    model = ActorCritic(ModelConfig(hidden_sizes=(8,)), spec.observations, spec.actions)
    policy = LoadedPolicy(model, spec)
    assert policy.act(np.zeros(2, np.float32))[0] == pytest.approx([4.0, 4.0], abs=0.1)
    space = spaces.Box(3.0, 5.0, (2,), np.float32)
    drawn = [policy.act(np.zeros(2, np.float32), stochastic=True)[0] for _ in range(50)]
    assert all(space.contains(action) for action in drawn)
    assert {3.0, 5.0} <= {float(x) for action in drawn for x in action}


def test_offsets_of_every_discrete_kind_are_added() -> None:
    space = spaces.MultiDiscrete([2, 4], start=[3, -1])
    specs: dict[str, ActionSpec] = action_specs(space)
    assert ActionAdapter(space, specs)({ACTION: np.array([[0, 0]])})[ACTION].tolist() == [[3, -1]]


def test_without_rescaling_actions_are_the_environments_own() -> None:
    config = EnvConfig(env=AIM, env_kwargs={"low": -2.0, "high": 2.0}, rescale_actions=False)
    vector = make_vector(config, 1, [0])
    vector.close()
    assert vector.spec.actions[ACTION].high == (2.0, 2.0)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32])
def test_elements_of_a_box_that_are_no_floats_are_categories(dtype: Any) -> None:
    space = spaces.Box(0, 1, (2,), dtype)
    specs = action_specs(space)
    assert (specs[ACTION].kind, specs[ACTION].categories) == ("multidiscrete", (2, 2))
    chosen = ActionAdapter(space, specs)({ACTION: np.array([[0, 1], [1, 0]])})[ACTION]
    assert chosen.dtype == dtype and chosen.tolist() == [[0, 1], [1, 0]]
    assert all(row in space for row in chosen)


@pytest.mark.parametrize(
    ("algo", "space", "named"),
    [
        ("pqn", spaces.Box(-1, 1, (2,)), "has action (Box); use sac for Box actions, or appo"),
        ("apex", spaces.Tuple((spaces.Discrete(3),)), "which is the whole action space, but this"),
    ],
)
def test_actions_that_an_algorithm_does_not_take_are_named_as_the_environment_has_them(
    algo: str, space: Any, named: str
) -> None:
    config = ALGOS[algo](env="E", serial=True)
    spec = EnvSpec("E", observation_specs(spaces.Box(-1, 1, (2,))), action_specs(space))
    with pytest.raises(sf.ConfigError) as refusal:
        network = pairing(config).network_maker(config, spec, 0)
        network()
    assert named in str(refusal.value) and "Ape-X" not in str(refusal.value)
    with pytest.raises(sf.ConfigError, match="is MultiDiscrete, or a Box of integers"):
        check_bounded_boxes("sac", action_specs(spaces.Box(0, 3, (2,), np.int32)))
