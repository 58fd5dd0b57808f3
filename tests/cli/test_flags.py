"""What a config has after it was given as flags."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from sampleforge.cli.train import parse_config
from sampleforge.config import ConfigError, typed
from sampleforge.run.screen.messages import resume_command
from sampleforge.topologies.config import ALGOS


@pytest.mark.parametrize("algo", ALGOS)
def test_a_flag_that_is_not_given_has_the_default_that_it_has_in_python(algo: str) -> None:
    assert parse_config(algo, ["--env", "E"]) == ALGOS[algo](env="E")


@pytest.mark.parametrize(
    "flags",
    [
        "--stop 'eval_return_mean>=475' 'wall_s>9' --seed 3 --evaluate-interval 5",
        "--stop 'eval_return_mean>=475' --seed 3 --evaluate-interval 5 --stop 'wall_s>9'",
        "--evaluate-interval 5 --stop='eval_return_mean>=475' --stop='wall_s>9' --seed 3",
    ],
)
def test_stop_conditions_may_be_given_in_one_flag_or_in_several(flags: str) -> None:
    config = parse_config("appo", ["--env", "CartPole-v1", *shlex.split(flags)])
    assert config.stop == ("eval_return_mean>=475", "wall_s>9")
    assert (config.seed, config.evaluate_interval) == (3, 5)


def test_the_runs_to_begin_from_are_one_or_one_for_each_policy() -> None:
    given = {
        "runs/lr=0.1@best": "runs/lr=0.1@best",
        "policy_0=a policy_1=b=c:policy_0": {"policy_0": "a", "policy_1": "b=c:policy_0"},
    }
    for words, expected in given.items():
        flags = ["--init-from", *words.split(), "--num-policies", "2"]
        config = parse_config("appo", ["--env", "CartPole-v1", *flags])
        assert config.init_from == expected
        again = shlex.split(typed("init_from", config.init_from))
        assert parse_config("appo", ["--env", "CartPole-v1", *again]).init_from == expected


def test_the_command_that_resumes_a_run_names_all_conditions(tmp_path: Path) -> None:
    given = ["--stop", "loss<1", "--stop", "wall_s>9", "--evaluate-interval", "5"]
    given += ["--evaluate-env-kwargs", "length=3", "--num-evaluators", "2"]
    config = parse_config("appo", ["--env", "CartPole-v1", *given, "--reward-clip", "sign"])
    _, _, algo, *flags = shlex.split(resume_command(config, tmp_path))
    again = parse_config(algo, flags)
    for name in ("stop", "evaluate_env_kwargs", "num_evaluators", "reward_clip"):
        assert getattr(again, name) == getattr(config, name), name
    assert again.evaluate_env_kwargs == {"length": 3} and again.reward_clip == "sign"


def test_a_condition_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--stop loss=1: must be a metric, one of >=, <=, >"):
        parse_config("ddppo", ["--env", "CartPole-v1", "--stop", "loss=1"])


@pytest.mark.parametrize("algo", ["appo", "apex", "ddppo"])
@pytest.mark.parametrize("value", ["sign", "2.5", "None"])
def test_reward_clip_takes_a_number_sign_or_none(algo: str, value: str) -> None:
    clip = parse_config(algo, ["--env", "CartPole-v1", "--reward-clip", value]).reward_clip
    assert clip == {"sign": "sign", "2.5": 2.5, "None": None}[value]


@pytest.mark.parametrize("value", ["none", "None", "null"])
def test_none_takes_back_a_limit_of_a_preset(value: str) -> None:
    given = ["--preset", "breakout", "--train-for-env-steps", "1e7"]
    for flag in ([f"--train-for-seconds={value}"], ["--train-for-seconds", value]):
        config = parse_config("appo", [*given, *flag, "--model.initial-log-std", value])
        assert config.train_for_seconds is None and config.train_for_env_steps == 10_000_000
        assert config.model.initial_log_std is None


def test_a_number_that_must_be_given_is_not_none() -> None:
    with pytest.raises(ConfigError, match="--gamma none: must be a number"):
        parse_config("appo", ["--env", "CartPole-v1", "--gamma", "none"])


def test_infinity_is_refused_for_what_is_wrong_with_it() -> None:
    with pytest.raises(ConfigError, match="--train-for-seconds inf: must be finite"):
        parse_config("appo", ["--env", "CartPole-v1", "--train-for-seconds", "inf"])
