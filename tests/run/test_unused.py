"""Settings that were given and have no effect: each is named, with the reason, and none other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sampleforge.config import ConfigError, from_plain
from sampleforge.models.config import ModelConfig
from sampleforge.presets import preset_names, preset_values
from sampleforge.run import unused
from sampleforge.run.beginning import wired
from sampleforge.run.folder.stored_config import flat_fields
from sampleforge.run.session import Session
from sampleforge.run.unused import RULES, Resolved, crowded, without_effect
from sampleforge.topologies.config import (
    ALGOS,
    AnyConfig,
    ApexConfig,
    AppoConfig,
    DdppoConfig,
    MarwilConfig,
    Td3Config,
)
from sampleforge.topologies.pairings.critics_config import SacConfig
from tests.support.callbacks import Warnings
from tests.support.envs import CodeEnv
from tests.support.graphs import spec_of
from tests.support.recorded import recorded, write_dataset

CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "device": "cpu"}
PIXELS: dict[str, Any] = {"env": f"{__name__}:Pixels", "device": "cpu", "num_workers": 1}
BOX: dict[str, Any] = {"env": "Pendulum-v1", "device": "cpu"}


class Pixels(CodeEnv):
    """A CodeEnv that shows one picture."""

    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)  # type: ignore[arg-type]

    def observation(self) -> Any:
        return np.zeros((36, 36, 3), np.uint8)


def between(progress: float) -> float:
    """A schedule that is 0 at both ends."""
    return progress * (1.0 - progress)


def annealed(settings: Mapping[str, Any], **schedules: str) -> AppoConfig:
    """A run whose hyperparameters follow these schedules until its end."""
    return AppoConfig(**settings, anneal=schedules, train_for_env_steps=10_000)


def duel(**settings: Any) -> AppoConfig:
    """A run with self-play, by default against three snapshots."""
    return AppoConfig(env="PaddleDuel-v0", device="cpu", **{"opponent_pool": 3, **settings})


def told(config: AnyConfig) -> list[str]:
    """The settings that are named, without the reasons."""
    _, resolved, plan, spec = wired(config)
    texts = list(without_effect(config, Resolved(resolved, plan, spec)))
    assert all(" has no effect: " in text for text in texts)
    return [text.partition(" has no effect: ")[0] for text in texts]


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (AppoConfig(**CARTPOLE, lr_target_kl=0.1), ["--lr-target-kl 0.1"]),
        (AppoConfig(**CARTPOLE, lr_target_kl=0.1, lr_schedule="kl_adaptive"), []),
        (AppoConfig(**CARTPOLE, vtrace_rho=2.0), ["--vtrace-rho 2.0"]),
        (AppoConfig(**CARTPOLE, vtrace_rho=2.0, async_rl=True), []),
        (AppoConfig(**CARTPOLE, advantage_floor=0.5), []),
        (
            AppoConfig(**CARTPOLE, advantage_floor=0.5, normalise_returns=False),
            ["--advantage-floor 0.5"],
        ),
        (
            AppoConfig(**CARTPOLE, exploration="symmetric_kl", exploration_coeff=0.0),
            ["--exploration symmetric_kl"],
        ),
        (AppoConfig(**CARTPOLE, reward_scale=0.1), ["--reward-scale 0.1"]),
        (AppoConfig(**CARTPOLE, reward_scale=0.1, normalise_returns=False), []),
        (AppoConfig(**CARTPOLE, reward_scale=0.1, reward_clip=1.0), []),
        (AppoConfig(**CARTPOLE, reward_scale=0.1, rnd_coeff=0.5), []),
        (AppoConfig(**CARTPOLE, reward_scale=0.1, reward_clip="sign"), ["--reward-scale 0.1"]),
        (SacConfig(**BOX, reward_scale=0.1, reward_clip="sign"), ["--reward-scale 0.1"]),
        (ApexConfig(**CARTPOLE, reward_scale=0.1), ["--reward-scale 0.1"]),
        (SacConfig(**BOX, reward_scale=0.1), []),
        (AppoConfig(**CARTPOLE, noise_correlation=0.1), ["--noise-correlation 0.1"]),
        (AppoConfig(**BOX, noise_correlation=0.1), []),
        (SacConfig(**BOX, noise_correlation=0.1), []),
        (
            SacConfig(**BOX, noise_correlation=0.1, num_envs_per_worker=3, num_workers=1),
            ["--noise-correlation 0.1"],
        ),
        (
            AppoConfig(**CARTPOLE, model=ModelConfig(initial_log_std=-1.0, core_size=8)),
            ["--model.initial-log-std -1.0", "--model.core-size 8"],
        ),
        (AppoConfig(**BOX, model=ModelConfig(initial_log_std=-1.0, squash_actions=True)), []),
        (AppoConfig(**CARTPOLE, model=ModelConfig(cnn_features=64)), ["--model.cnn-features 64"]),
        (AppoConfig(**CARTPOLE, model=ModelConfig(hidden_sizes=(8,))), []),
        (
            AppoConfig(**PIXELS, model=ModelConfig(hidden_sizes=(8,), embedding_size=4)),
            ["--model.hidden-sizes 8", "--model.embedding-size 4"],
        ),
        (
            AppoConfig(**PIXELS, model=ModelConfig(normalise_observations=False)),
            ["--model.no-normalise-observations"],
        ),
        (AppoConfig(**PIXELS, model=ModelConfig(cnn_features=8)), []),
        (AppoConfig(**CARTPOLE, num_policy_workers=2), ["--num-policy-workers 2"]),
        (AppoConfig(**CARTPOLE, num_policy_workers=2, inference="worker"), []),
        (AppoConfig(**CARTPOLE, serial=True, max_worker_restarts=9), ["--max-worker-restarts 9"]),
        (AppoConfig(**CARTPOLE, pbt_period=1000), ["--pbt-period 1000"]),
        (AppoConfig(**CARTPOLE, pbt_period=1000, pbt=True, num_policies=2), []),
        (AppoConfig(**CARTPOLE, evaluate_episodes=50), ["--evaluate-episodes 50"]),
        (AppoConfig(**CARTPOLE, evaluate_episodes=50, evaluate_interval=1000), []),
        (AppoConfig(**CARTPOLE, benchmark_seconds=3.0), ["--benchmark-seconds 3.0"]),
        (AppoConfig(**CARTPOLE, benchmark=True, stop=("loss<0",)), ["--stop 'loss<0'"]),
        (AppoConfig(**CARTPOLE, benchmark=True, train_for_env_steps=9), []),
        (AppoConfig(**CARTPOLE, benchmark=True, report_interval=1.0), ["--report-interval 1.0"]),
        (AppoConfig(**CARTPOLE, benchmark=True, lr_schedule="linear"), ["--lr-schedule linear"]),
        (
            AppoConfig(**CARTPOLE, benchmark=True, lr_schedule="cooldown"),
            ["--lr-schedule cooldown"],
        ),
        (AppoConfig(**CARTPOLE, benchmark=True, lr_schedule="kl_adaptive"), []),
        (
            annealed(
                {**CARTPOLE, "benchmark": True}, exploration_coeff="linear", kl_coeff="constant"
            ),
            ["--anneal exploration_coeff=linear"],
        ),
        (
            AppoConfig(**CARTPOLE, benchmark=True, pbt=True, num_policies=2, pbt_period=9),
            ["--pbt-period 9"],
        ),
        (
            AppoConfig(
                **CARTPOLE,
                benchmark=True,
                pbt=True,
                num_policies=2,
                pbt_initial={"learning-rate": "1e-5..1e-1"},
            ),
            [],
        ),
        (AppoConfig(**CARTPOLE, sampler_only=True, keep_checkpoints=9), ["--keep-checkpoints 9"]),
        (DdppoConfig(**CARTPOLE, num_ranks=1, rank_timeout=9.0), ["--rank-timeout 9.0"]),
        (DdppoConfig(**CARTPOLE, num_ranks=2, rank_timeout=9.0), []),
        (ApexConfig(**CARTPOLE, rmsprop_decay=0.9), ["--rmsprop-decay 0.9"]),
        (ApexConfig(**CARTPOLE, rmsprop_decay=0.9, optimiser="rmsprop"), []),
        (
            ApexConfig(
                **CARTPOLE, value_distribution="c51", v_min=0.0, v_max=500.0, huber_delta=2.0
            ),
            ["--huber-delta 2.0"],
        ),
        (
            ApexConfig(**CARTPOLE, noisy_sigma=0.1, num_atoms=9),
            ["--noisy-sigma 0.1", "--num-atoms 9"],
        ),
        (
            ApexConfig(**CARTPOLE, noisy_nets=True, epsilon_exponent=3.0),
            ["--epsilon-exponent 3.0"],
        ),
        (
            ApexConfig(**CARTPOLE, priority_alpha=0.0, priority_beta=0.5),
            ["--priority-beta 0.5"],
        ),
        (
            ApexConfig(**CARTPOLE, samples_per_insert=None, samples_per_insert_tolerance=9.0),
            ["--samples-per-insert-tolerance 9.0"],
        ),
        (
            ApexConfig(**CARTPOLE, priority_alpha=0.0, priority_epsilon=0.5),
            ["--priority-epsilon 0.5"],
        ),
        (
            Td3Config(**BOX, model=ModelConfig(action_std="state", initial_log_std=-3.0)),
            ["--model.action-std state", "--model.initial-log-std -3.0"],
        ),
        (
            Td3Config(**BOX, exploration_noise=0.0, exploration_spread=3.0),
            ["--exploration-spread 3.0"],
        ),
        (
            Td3Config(**BOX, target_noise=0.0, target_noise_clip=0.3),
            ["--target-noise-clip 0.3"],
        ),
        (
            AppoConfig(
                env="tests.support.envs:CodeEnv", clip_observations=True, rescale_actions=False
            ),
            ["--no-rescale-actions", "--clip-observations"],
        ),
        (AppoConfig(env=f"{__name__}:Pixels", clip_observations=True), ["--clip-observations"]),
        (AppoConfig(env="Pendulum-v1", clip_observations=True), []),
        (ApexConfig(**CARTPOLE, replay_compression_ratio=3.0), ["--replay-compression-ratio 3.0"]),
        (
            duel(opponent_latest=1.0, opponent_draw="hard", opponent_power=9.0, opponent_window=2),
            ["--opponent-draw hard", "--opponent-power 9.0", "--opponent-window 2"],
        ),
        (
            duel(opponent_power=9.0, opponent_window=50),
            ["--opponent-power 9.0", "--opponent-window 50"],
        ),
        (duel(opponent_window=3), ["--opponent-window 3"]),
        (duel(opponent_draw="hard", opponent_power=9.0, opponent_window=2), []),
        (duel(opponent_latest=1.0, opponent_interval=9), []),
        (duel(opponent_draw="even", opponent_window=1), ["--opponent-draw even"]),
        (
            duel(opponent_pool=1, opponent_draw="hard", opponent_power=9.0),
            ["--opponent-draw hard", "--opponent-power 9.0"],
        ),
        (annealed(CARTPOLE, vtrace_rho="linear:1:0.1"), ["--anneal vtrace_rho=linear:1:0.1"]),
        (
            annealed(CARTPOLE, lr_target_kl="linear:0.01:0.001"),
            ["--anneal lr_target_kl=linear:0.01:0.001"],
        ),
        (annealed({**CARTPOLE, "async_rl": True}, vtrace_rho="linear:1:0.1"), []),
        (annealed(CARTPOLE, vtrace_rho="constant"), []),
        (annealed(BOX, exploration_coeff="linear"), ["--anneal exploration_coeff=linear"]),
        (annealed(BOX, kl_coeff="cosine"), []),
        (annealed(CARTPOLE, exploration_coeff="linear", kl_coeff="cosine"), []),
        (
            annealed({**BOX, "exploration": "symmetric_kl"}, exploration_coeff="linear:0.01:0"),
            [],
        ),
        (
            Td3Config(
                **BOX,
                target_noise=0.0,
                target_noise_clip=0.3,
                anneal={"target_noise": f"{__name__}:between"},
                train_for_env_steps=10_000,
            ),
            ["--target-noise 0.0"],
        ),
    ],
)
def test_settings_without_effect_are_named(config: AnyConfig, expected: list[str]) -> None:
    assert told(config) == expected


def of_data(config: type[AnyConfig], path: Path) -> dict[str, Any]:
    """Return the settings of a run that learns from an episode of CartPole, which is written to
    ``path``."""
    settings: dict[str, Any] = {**CARTPOLE, "input": (str(path),)}
    spec = spec_of(config(**settings))
    (episode,) = recorded([8], spec.actions)
    seen = {"obs": np.zeros((9, 4), np.float32)}
    write_dataset(path, spec, [dataclasses.replace(episode, observations=seen)])
    return settings


def test_behaviour_cloning_reads_no_rewards(tmp_path: Path) -> None:
    settings = of_data(MarwilConfig, tmp_path / "data")
    settings |= {"gamma": 0.9, "decorrelate": False}
    assert told(MarwilConfig(**settings)) == ["--no-decorrelate"]
    clones = MarwilConfig(**settings, advantage_exponent=0.0)
    assert told(clones) == ["--gamma 0.9", "--no-decorrelate"]


@pytest.mark.long
def test_from_data_alone_no_actor_explores_and_rewards_have_no_unit(tmp_path: Path) -> None:
    settings = of_data(ApexConfig, tmp_path / "data")
    acting: dict[str, Any] = {
        "num_workers": 1,
        "inference": "worker",
        "num_policy_workers": 2,
        "epsilon_base": 0.3,
        "epsilon_exponent": 3.0,
        "decorrelate": False,
    }
    alone = ApexConfig(**settings, **acting)
    assert {text.split()[0].removeprefix("--no-") for text in told(alone)} >= {
        "--num-workers",
        "--inference",
        "--num-policy-workers",
        "--epsilon-base",
        "--epsilon-exponent",
        "decorrelate",
    }
    live = dataclasses.replace(alone, input=("live", *alone.input))
    assert told(live) == []
    assert told(MarwilConfig(**settings, reward_scale=0.1)) == ["--reward-scale 0.1"]
    assert told(MarwilConfig(**settings, reward_scale=0.1, reward_clip=1.0)) == []


def test_every_rule_names_fields_that_there_are() -> None:
    fields = {name for cls in ALGOS.values() for name in flat_fields(cls())}
    assert {name for names, _, _ in RULES for name in names.split()} <= fields


@pytest.mark.parametrize(
    ("algo", "name"),
    [
        (algo, name)
        for algo in ("appo", "apex", "ddppo")
        for name in preset_names(algo)
        if preset_values(algo, name)["env"] in ("CartPole-v1", "Acrobot-v1")
    ],
)
def test_a_preset_has_no_setting_without_effect(algo: str, name: str) -> None:
    config = from_plain(ALGOS[algo], {**preset_values(algo, name), "device": "cpu"})
    assert told(config) == []


def test_the_user_is_told_of_settings_without_effect(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**CARTPOLE, "serial": True, "run_dir": str(tmp_path)}
    told = Warnings()
    with Session(AppoConfig(**settings, vtrace_c=2.0), [told]):
        expected = "--vtrace-c 2.0 has no effect: it is for --advantage vtrace, and gae was chosen"
        assert told.warnings == [expected]


def test_a_reward_scale_that_changes_has_an_effect_while_it_does(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**CARTPOLE, "serial": True}

    class Rescale(Warnings):
        def on_start(self, session: Session) -> None:
            session.set_hyperparameter("reward_scale", 0.1)  # as the rewards become larger

    told: Warnings = Rescale()
    with Session(AppoConfig(**settings, run_dir=str(tmp_path / "set")), [told]):
        assert told.warnings == []
    told, settings["run_dir"] = Warnings(), str(tmp_path / "annealed")
    with Session(annealed(settings, reward_scale="linear:1:0.1"), [told]):
        (text,) = told.warnings
        flag = "--anneal reward_scale=linear:1:0.1"
        assert text.startswith(f"{flag} has an effect only while it changes: returns are divided")


def test_no_change_of_a_reward_scale_has_an_effect_on_signs(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**CARTPOLE, "serial": True, "reward_clip": "sign"}

    class Rescale(Warnings):
        def on_start(self, session: Session) -> None:
            session.set_hyperparameter("reward_scale", 0.1)

    told, reason = Warnings(), "has no effect: a reward of any size has the same sign"
    falling = annealed({**settings, "run_dir": str(tmp_path / "1")}, reward_scale="linear:1:0.1")
    with Session(falling, [told]):
        (text,) = told.warnings
        assert text.startswith(f"--anneal reward_scale=linear:1:0.1 {reason}")
    with (
        pytest.raises(ConfigError, match=reason),
        Session(AppoConfig(**settings, run_dir=str(tmp_path / "2")), [Rescale()]),
    ):
        pass


@pytest.mark.parametrize(
    ("workers", "cores", "warns"), [(6, 2, False), (7, 2, True), (64, 2, True), (64, 32, False)]
)
def test_more_than_three_workers_per_core_are_warned_of(
    workers: int, cores: int, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = AppoConfig(**CARTPOLE, num_workers=workers, num_envs_per_worker=1)
    _, resolved, plan, spec = wired(config)
    monkeypatch.setattr(unused, "available_cores", lambda: list(range(cores)))
    text = crowded(Resolved(resolved, plan, spec))
    assert (text is not None) is warns
    if workers == 64 and warns:
        assert text is not None
        assert text.startswith("--num-workers 64: 32 processes per core (2 cores) take turns")
