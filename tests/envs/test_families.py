"""The bundled families against their originals."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.family import Family
from sampleforge.env.interface import shorter_limit
from sampleforge.env.registry import families, find, make_single, make_vector
from tests.support.env_vectors import rollout


def test_cartpole_equals_gymnasiums_bit_by_bit() -> None:
    rows, steps = 6, 400
    actions = np.random.default_rng(0).integers(0, 2, (steps, rows))
    config = EnvConfig(env="CartPole-v1", max_episode_steps=40, decorrelate=False)
    vector = make_vector(config, rows, list(range(rows)))
    env = CartPoleVectorEnv(rows, max_episode_steps=40)
    env.reset(seed=0)
    env.np_random = np.random.default_rng(list(range(rows)))  # ours is seeded by all rows' seeds
    env.state = env.np_random.uniform(-0.05, 0.05, (4, rows))  # type: ignore[assignment]
    for ours, action in zip(rollout(vector, actions)[1:], actions, strict=True):
        obs, reward, terminated, truncated, _ = env.step(action)
        assert np.array_equal(ours.obs["obs"], obs)
        assert np.array_equal(ours.reward, reward)
        assert np.array_equal(ours.terminated, terminated)
        assert np.array_equal(ours.truncated, truncated)
    vector.close()


def test_cartpole_without_velocities_shows_the_positions_of_cartpole() -> None:
    actions = np.random.default_rng(0).integers(0, 2, (60, 3))
    whole, positions = (
        make_vector(EnvConfig(env=env_id, max_episode_steps=40, decorrelate=False), 3, [0, 1, 2])
        for env_id in ("CartPole-v1", "CartPoleNoVel-v1")
    )
    pairs = zip(rollout(whole, actions), rollout(positions, actions), strict=True)
    for full, seen in pairs:
        assert np.array_equal(full.obs["obs"][:, [0, 2]], seen.obs["obs"])
        assert np.array_equal(full.terminated, seen.terminated)
    for vector in (whole, positions):
        vector.close()
    single = make_single(EnvConfig(env="CartPoleNoVel-v1"))
    obs, _ = single.reset(seed=0)
    assert single.observation_space.contains(obs) and obs.shape == (2,)
    single.close()


def test_cartpole_decorrelation_spreads_the_truncations() -> None:
    config = EnvConfig(env="CartPole-v1", max_episode_steps=8)
    vector = make_vector(config, 4, [0, 1, 2, 3])
    actions = np.tile([[0, 0, 0, 0], [1, 1, 1, 1]], (4, 1))
    truncated = np.array([out.truncated for out in rollout(vector, actions)[1:]])
    assert truncated.argmax(axis=0).tolist() == [1, 3, 5, 7]
    vector.close()


@pytest.mark.long
def test_minatar_games_equal_the_original() -> None:
    minatar = pytest.importorskip("minatar")
    for game, name in (("Breakout", "breakout"), ("Seaquest", "seaquest")):
        original = minatar.Environment(name)
        original.seed(5)
        original.reset()
        env = make_single(EnvConfig(env=f"MinAtar/{game}"))
        obs, _ = env.reset(seed=5)
        rng = np.random.default_rng(1)
        for _ in range(500):
            assert np.array_equal(obs, original.state())
            action = int(rng.integers(env.action_space.n))  # type: ignore[attr-defined]
            reward, ended = original.act(original.minimal_action_set()[action])
            obs, r, terminated, _, _ = env.step(action)
            assert (r, terminated) == (reward, ended)
            if ended:
                original.reset()
                obs, _ = env.reset()
        assert env.unwrapped.render() is not None
        env.close()


def test_mujoco_stores_float32_and_clips_actions(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco")
    config = EnvConfig(env="HalfCheetah-v5", decorrelate=False)
    vector = make_vector(config, 2, [3, 4])
    assert vector.spec.observations["obs"].dtype == "float32"
    wild = np.full((3, 2, 6), 50, np.float32)
    far = rollout(vector, wild)[-1]
    vector.close()
    vector = make_vector(config, 2, [3, 4])
    assert np.array_equal(far.obs["obs"], rollout(vector, np.clip(wild, -1, 1))[-1].obs["obs"])
    vector.close()
    assert capfd.readouterr().err == ""


def test_mujoco_rows_that_share_a_model_do_what_they_did_alone() -> None:
    pytest.importorskip("mujoco")
    vector = make_vector(EnvConfig(env="HalfCheetah-v5", decorrelate=False), 3, [1, 2, 3])
    actions = np.random.default_rng(0).uniform(-1, 1, (30, 3, 6)).astype(np.float32)
    found = rollout(vector, actions)
    vector.close()
    for row, seed in enumerate((1, 2, 3)):
        env = gym.make("HalfCheetah-v5")
        assert np.array_equal(env.reset(seed=seed)[0].astype(np.float32), found[0].obs["obs"][row])
        for out, action in zip(found[1:], actions[:, row], strict=True):
            obs, reward, *_ = env.step(action)
            assert np.array_equal(obs.astype(np.float32), out.obs["obs"][row])
            assert np.float32(reward) == out.reward[row]
        env.close()


WRAPPED: dict[str, dict[str, Any]] = {
    "ALE/Breakout-v5": {"frameskip": 3},
    "InvertedPendulum-v5": {},
    "MinAtar/Breakout": {"sticky_action_prob": 0.2},
    "MiniGrid-Empty-5x5-v0": {},
    "LunarLander-v3": {},
}


@pytest.mark.long
@pytest.mark.parametrize("env_id", WRAPPED)
def test_within_wrappers_an_environment_has_its_frames_protocol_and_limit(env_id: str) -> None:
    family = find(env_id)
    assert family is not None
    for package in (family.requires, "cv2" if family.name == "atari" else "numpy"):
        pytest.importorskip(package or "numpy")
    kwargs, wrappers = WRAPPED[env_id], ["gymnasium.wrappers:RecordEpisodeStatistics"]
    plain = EnvConfig(env=env_id, env_kwargs=kwargs, env_backend="single")
    wrapped = EnvConfig(
        env="sampleforge.env.wrapped:make",
        env_kwargs={"id": env_id, "wrappers": wrappers, **kwargs},
    )
    found, expected = (make_vector(config, 1, [0]) for config in (wrapped, plain))
    assert expected.spec.max_episode_steps is not None
    assert replace(found.spec, env_id=env_id) == expected.spec
    found.close(), expected.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("env_id", "kwargs", "limit"),
    [
        ("MiniGrid-Empty-5x5-v0", {}, 100),
        ("MiniGrid-Empty-5x5-v0", {"max_steps": 30}, 30),
        ("dm_control/cartpole-swingup", {}, 1000),
        ("sampleforge.env.wrapped:make", {"id": "MinAtar/Breakout", "wrappers": []}, 5000),
    ],
)
def test_a_flag_above_the_own_limit_of_a_family_is_told(
    env_id: str, kwargs: dict[str, Any], limit: int
) -> None:
    if env_id.startswith("dm_control/"):
        pytest.importorskip("dm_control")
    config = EnvConfig(env=env_id, env_kwargs=kwargs, decorrelate=False)
    above, below = replace(config, max_episode_steps=6000), replace(config, max_episode_steps=20)
    vector = make_vector(above, 1, [0])
    told = shorter_limit(above, vector.spec)
    assert told is not None and told.startswith("--max-episode-steps 6,000 has no effect: ")
    assert f"a time limit of its own of {limit:,} steps" in told
    assert vector.spec.max_episode_steps == limit
    vector.close()
    vector = make_vector(below, 1, [0])
    assert vector.spec.max_episode_steps == 20 and shorter_limit(below, vector.spec) is None
    vector.close()


def test_single_environments_of_cartpole_without_velocities_have_its_limit() -> None:
    config = EnvConfig(env="CartPoleNoVel-v1", env_backend="single", decorrelate=False)
    vector = make_vector(config, 1, [0])
    assert vector.spec.max_episode_steps == 500 and vector.spec.observations["obs"].shape == (2,)
    vector.close()


@pytest.fixture
def atari() -> EnvConfig:
    pytest.importorskip("ale_py")
    return EnvConfig(env="ALE/Breakout-v5", env_kwargs={"max_num_frames_per_episode": 400})


@pytest.mark.long
def test_atari_protocol_and_seeds(atari: EnvConfig) -> None:
    actions = np.random.default_rng(0).integers(0, 4, (150, 3))
    vector = make_vector(atari, 3, [1, 2, 3])
    assert vector.spec.frame_skip == 4 and vector.spec.max_episode_steps == 100
    assert vector.spec.observations["obs"].shape == (4, 84, 84)
    assert "sticky actions 0" in vector.spec.protocol and "unclipped" in vector.spec.protocol
    first = rollout(vector, actions)
    vector.close()
    vector = make_vector(atari, 3, [1, 2, 3])
    again = rollout(vector, actions)
    vector.close()
    assert all(
        np.array_equal(a.obs["obs"], b.obs["obs"]) for a, b in zip(first, again, strict=True)
    )
    ended = np.array([out.terminated | out.truncated for out in first[1:]])
    invalid = np.array([~out.valid for out in first[1:]])
    assert ended.any(axis=0).all()
    assert np.array_equal(invalid[1:], ended[:-1])


@pytest.mark.long
def test_atari_single_backend_has_the_same_protocol(atari: EnvConfig) -> None:
    pytest.importorskip("cv2")
    vector = make_vector(replace(atari, decorrelate=False), 2, [1, 2])
    single = make_vector(replace(atari, decorrelate=False, env_backend="single"), 2, [1, 2])
    assert replace(single.spec, asynchronous=True) == vector.spec
    actions = np.zeros((30, 2), np.int64)
    for kind in (vector, single):
        found = rollout(kind, actions)
        # The stack of a first observation is empty but for the newest frame, and then moves on.
        assert (found[0].obs["obs"][:, :3] == 0).all() and (found[0].obs["obs"][:, 3] > 0).any()
        assert np.array_equal(found[1].obs["obs"][:, 2], found[0].obs["obs"][:, 3])
        kind.close()


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_no_family_takes_a_keyword_that_it_does_not_know(family: Family) -> None:
    if family.requires is not None:
        pytest.importorskip(family.requires)
    chosen = {"pettingzoo": "PettingZoo/classic/connect_four-v3", "classic": "CartPole-v1"}
    env_id = chosen.get(family.name) or family.ids()[0]
    message = "(unknown env_kwargs 'nonsense'; .|takes no --env-kwargs, but got {'nonsense': 1})"
    with pytest.raises(ConfigError, match=rf"^{re.escape(env_id)}:? {message}"):
        make_vector(EnvConfig(env=env_id, env_kwargs={"nonsense": 1}), 1, [0])
    with pytest.raises(ConfigError, match=f"^{re.escape(env_id)}"):
        make_single(EnvConfig(env=env_id, env_kwargs={"nonsense": 1}))


@pytest.mark.parametrize(
    ("env_id", "key", "meant"),
    [
        ("CartPole-v1", "sutton_barto", "sutton_barto_reward"),
        ("MinAtar/Breakout", "sticky_prob", "sticky_action_prob"),
        ("MiniGrid-Empty-5x5-v0", "agent_view", "agent_view_size"),
    ],
)
def test_a_wrong_keyword_is_answered_with_the_right_one(env_id: str, key: str, meant: str) -> None:
    for make in (lambda config: make_vector(config, 1, [0]), make_single):
        with pytest.raises(
            ConfigError, match=f"^{env_id}: unknown .*{key}'; there is {meant}( or|$)"
        ):
            make(EnvConfig(env=env_id, env_kwargs={key: 0.5}))


def test_atari_refuses_unknown_settings_wrong_types_and_clipping(atari: EnvConfig) -> None:
    with pytest.raises(ConfigError, match="unknown env_kwargs 'framskip'; there is frameskip"):
        make_vector(replace(atari, env_kwargs={"framskip": 2}), 1, [0])
    with pytest.raises(ConfigError, match="--reward-clip"):
        make_vector(replace(atari, env_kwargs={"reward_clipping": True}), 1, [0])
    with pytest.raises(ConfigError, match="env_kwargs: stack_num: 'four' must be a whole number"):
        make_vector(replace(atari, env_kwargs={"stack_num": "four"}), 1, [0])


@pytest.mark.parametrize(
    ("env", "key", "value", "must"),
    [
        ("ALE/Breakout-v5", "frameskip", 0, "at least 1"),
        ("ALE/Breakout-v5", "noop_max", -1, "at least 0"),
        ("ALE/Breakout-v5", "repeat_action_probability", 25, "at least 0 and at most 1"),
        ("MinAtar/Breakout", "sticky_action_prob", 2, "at least 0 and at most 1"),
        ("VizdoomBasic-v1", "frame_skip", 0, "at least 1"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(env: str, key: str, value: int, must: str) -> None:
    pytest.importorskip(next(each for each in families() if each.claims(env)).requires or "numpy")
    with pytest.raises(ConfigError, match=rf"env_kwargs: {key}: {value}(\.0)? must be {must}$"):
        make_vector(EnvConfig(env=env, env_kwargs={key: value}), 1, [0])
