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


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--model.hidden-sizes 64,64", "64,64: must be whole numbers, separated by spaces: 64 64"),
        ("--model.hidden-sizes=64,64", "64,64: must be whole numbers, separated by spaces: 64 64"),
        ("--model.hidden-sizes 64 x", "64 x: must be whole numbers, separated by spaces: 64 64"),
        ("--pbt-factors 0.5,2", "0.5,2: must be numbers, separated by spaces: 0.5 2"),
        ("--pbt-factors 0.5 x", "0.5 x: must be numbers, separated by spaces: 0.5 2"),
    ],
)
def test_a_list_of_numbers_is_typed_with_spaces(flag: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_config("appo", ["--env", "CartPole-v1", *shlex.split(flag)])
    assert str(refusal.value) == f"{flag.split('=')[0].split()[0]} {message}"


def test_a_pair_of_numbers_is_typed_with_a_space() -> None:
    with pytest.raises(ConfigError, match="--adam-betas: needs 2 values, separated by spaces"):
        parse_config("appo", ["--env", "CartPole-v1", "--adam-betas", "0.9,0.99"])
    with pytest.raises(ConfigError, match=r"--adam-betas 0\.9 x: must be numbers, separated by sp"):
        parse_config("appo", ["--env", "CartPole-v1", "--adam-betas", "0.9", "x"])


def test_infinity_is_refused_for_what_is_wrong_with_it() -> None:
    with pytest.raises(ConfigError, match="--train-for-seconds inf: must be finite"):
        parse_config("appo", ["--env", "CartPole-v1", "--train-for-seconds", "inf"])
