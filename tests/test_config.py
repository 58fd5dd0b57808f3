"""Configs: checked when made, stored and read as plain values."""

import math

import pytest

from sampleforge.config import ConfigError, from_plain, to_plain
from sampleforge.models.config import ModelConfig
from sampleforge.topologies.config import AppoConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rollout": 0}, "--rollout 0: must be at least 1"),
        ({"num_workers": 0}, "--num-workers 0: must be at least 1"),
        ({"num_envs_per_worker": 3, "num_splits": 4}, "raise it to 4 or lower --num-splits to 3"),
        ({"worker_niceness": 20}, "at most 19"),
        ({"gamma": 1.01}, "--gamma 1.01: must be at least 0 and at most 1"),
        ({"gamma": math.nan}, "--gamma nan: must"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0: must be above 0"),
        ({"train_for_seconds": math.inf}, "--train-for-seconds inf: must"),
        ({"adam_betas": (0.9, 1.0)}, "--adam-betas 0.9 1.0: both must"),
        ({"minibatch_size": 512, "batch_size": 256}, "a batch has only 256 env steps"),
        ({"clip_ratio": 0.0}, "--clip-ratio 0.0: must be above 0"),
        ({"gae_lambda": -0.1}, "--gae-lambda -0.1: must"),
        ({"env_timeout": 0.0}, "--env-timeout 0.0: must"),
        ({"seed": -1}, "--seed -1: must be at least 0"),
        ({"device": "gpu"}, "--device gpu: must be auto, cpu, cuda or cuda:N"),
        ({"resume": "must"}, "there is no --run-dir"),
        ({"lr_schedule": "linear"}, "add --train-for-env-steps or --train-for-seconds"),
    ],
)
def test_settings_that_cannot_run_are_refused(fields, message):
    with pytest.raises(ConfigError) as caught:
        AppoConfig(**fields)
    assert message in str(caught.value)


def test_a_model_without_units_is_refused():
    with pytest.raises(ConfigError, match="at least 1 unit"):
        ModelConfig(hidden_sizes=(64, 0))


@pytest.mark.parametrize(
    "fields",
    [
        {"minibatch_size": 256, "batch_size": 256},
        {"lr_schedule": "linear", "train_for_env_steps": 1},
        {"max_grad_norm": 0.0, "reward_clip": None, "value_clip": None},
        {"device": "cuda:1"},
        {"resume": "must", "run_dir": "x"},
    ],
)
def test_values_at_the_limits_are_accepted(fields):
    AppoConfig(**fields)


def test_a_config_comes_back_from_its_plain_values():
    config = AppoConfig(
        env="a:b", env_kwargs={"n": 1, "f": 0.5, "s": "1", "t": True}, adam_betas=(0.8, 0.9)
    )
    assert from_plain(AppoConfig, to_plain(config)) == config


def test_unknown_keys_are_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"mine\.yaml: unknown key 'learning_rat'. Did you mean"):
        from_plain(AppoConfig, {"learning_rat": 1.0}, "mine.yaml")
    with pytest.raises(ConfigError, match=r"model: unknown key 'cor'. Did you mean core"):
        from_plain(AppoConfig, {"model": {"cor": "gru"}})


def test_yaml_exponents_are_numbers():
    assert from_plain(AppoConfig, {"learning-rate": "1e-4"}).learning_rate == 1e-4
