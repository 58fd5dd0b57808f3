"""Configs: checked when made, stored and read as plain values."""

import dataclasses
import math
import pydoc
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sampleforge as sf
from sampleforge.cli.train import parse_config
from sampleforge.config import (
    LARGEST_SEED,
    NAMING_CODE,
    ConfigError,
    docstrings,
    from_plain,
    to_plain,
)
from sampleforge.models.config import ModelConfig
from sampleforge.names import ELSEWHERE, OTHER_SETTINGS, nearest
from sampleforge.presets import preset_names, preset_values
from sampleforge.topologies.config import ALGOS, AppoConfig


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
        ({"seed": -1}, "--seed -1: must be at least 0 and at most 4294967295"),
        ({"seed": 2**32}, "--seed 4294967296: must be at least 0 and at most 4294967295"),
        ({"device": "gpu"}, "--device gpu: must be auto, cpu, cuda or cuda:N"),
        ({"resume": "must"}, "there is no --run-dir"),
        ({"lr_schedule": "linear"}, "add --train-for-env-steps or --train-for-seconds"),
        ({"lr_schedule": "cooldown"}, "falls to zero at the stop condition, and there is none"),
        ({"anneal": {"clip_ratio": "linear"}}, "--anneal clip_ratio=linear: a schedule ends at"),
        ({"anneal": {"gamma": "cosin:0.9:1"}}, "unknown schedule cosin. Did you mean cosine?"),
        ({"anneal": {"gamma": "linear:0.9"}}, "must be linear or linear:FIRST:LAST"),
        (
            {"anneal": {"learning-rate": "linear:1:0"}, "lr_schedule": "kl_adaptive"},
            "both are schedules of the learning rate",
        ),
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
        {"seed": LARGEST_SEED},
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


def test_names_of_other_libraries_lead_to_settings_that_there_are() -> None:
    known = {field.name for cls in ALGOS.values() for field in dataclasses.fields(cls)}
    parts = {f"model.{field.name}" for field in dataclasses.fields(ModelConfig)}
    ours = {each for names in OTHER_SETTINGS.values() for each in names}
    assert ours <= known | parts
    assert not known.intersection({*OTHER_SETTINGS, *ELSEWHERE})


@pytest.mark.parametrize(
    ("cls", "name", "end"),
    [
        (sf.SacConfig, "learing_rate", ". Did you mean learning_rate?"),
        (sf.AppoConfig, "ent_coef", ". Did you mean exploration_coeff?"),
        (sf.SacConfig, "ent_coef", ". Did you mean initial_temperature?"),
        (sf.SacConfig, "gradient_steps", ". Did you mean updates_per_env_step?"),
        (
            sf.ApexConfig,
            "gradient_steps",
            ": samples_per_insert of Ape-X counts transitions: batch_size times the updates per "
            "env step",
        ),
        (sf.ApexConfig, "alpha", ". Did you mean priority_alpha?"),
        (sf.SacConfig, "net_arch", ". Did you mean model.hidden_sizes?"),
        (sf.ModelConfig, "net_arch", ". Did you mean hidden_sizes?"),
        (sf.AppoConfig, "use_rnn", ". Did you mean model.core?"),
        (sf.AppoConfig, "recurrence", ". Did you mean rollout?"),
        (sf.SacConfig, "recurrence", ". Did you mean sequence_length?"),
        (sf.AppoConfig, "num_gpus", ". Did you mean device?"),
        (sf.MarwilConfig, "dataset", ". Did you mean input?"),
        (sf.SacConfig, "adam_beta1", "; help(SacConfig) lists its settings"),
        (sf.AppoConfig, "rnn_num_layers", ": a core has one layer, of model.core_size units"),
        (sf.ApexConfig, "decoder_mlp_layers", ". Did you mean head_size?"),
        (sf.PqnConfig, "exploration_fraction", ". Did you mean epsilon_env_steps?"),
        (sf.PqnConfig, "end_e", ". Did you mean epsilon_last?"),
        (
            sf.AppoConfig,
            "num_minibatches",
            ": minibatch_size of APPO, DD-PPO and PQN is batch_size / num_minibatches: the env "
            "steps of a gradient step",
        ),
        (
            sf.SacConfig,
            "train_freq",
            ": updates_per_env_step of SAC, CrossQ and TD3 is its inverse; of Ape-X "
            "samples_per_insert counts transitions: batch_size / train_freq",
        ),
        (
            sf.SacConfig,
            "polyak",
            ": target_rate is 1 - polyak: the part that an update takes from the trained networks",
        ),
        (sf.AppoConfig, "norm_adv", ". Did you mean normalise_advantages?"),
        (sf.AppoConfig, "framework", ": networks are torch's"),
        (sf.SacConfig, "verbose", ": quiet prints less, and debug says more"),
        (sf.ModelConfig, "hiden_sizes", ". Did you mean hidden_sizes?"),
        (sf.AppoConfig, "zzz", "; help(AppoConfig) lists its settings"),
    ],
)
def test_a_wrong_name_of_a_setting_is_refused_with_the_one_that_may_be_meant(cls, name, end):
    with pytest.raises(ConfigError) as refusal:
        cls(**{name: 1})
    assert str(refusal.value) == f"{cls.__name__}: unknown setting {name}{end}"


def test_a_preset_as_a_setting_is_told_where_it_may_stand() -> None:
    anyhow: Any = AppoConfig
    with pytest.raises(ConfigError, match=r"^AppoConfig: unknown setting preset: ") as refusal:
        anyhow(preset="cartpole")
    with pytest.raises(ConfigError, match=r"^mine\.yaml: unknown key 'preset': ") as in_file:
        from_plain(AppoConfig, {"preset": "cartpole"}, "mine.yaml")
    for text in map(str, (refusal.value, in_file.value)):
        assert "--preset NAME, which may stand beside --config FILE" in text
        assert "sampleforge.presets.preset_values(ALGO, NAME)" in text


@pytest.mark.parametrize("algo", ALGOS)
def test_a_preset_is_a_dict_of_arguments_of_the_config(algo: str) -> None:
    for name in preset_names(algo)[:4]:
        given = preset_values(algo, name)
        assert ALGOS[algo](**given) == parse_config(algo, ["--preset", name])


@pytest.mark.parametrize("cls", [sf.SacConfig, sf.ModelConfig])
def test_help_explains_every_setting(cls):
    text = re.sub("^ [|]  ?", "", pydoc.plain(pydoc.render_doc(cls)), flags=re.MULTILINE)
    for field in dataclasses.fields(cls):
        assert re.search(rf"^{field.name}: .+ = .*\n    \S.{{9}}", text, re.MULTILINE), field.name


def test_yaml_exponents_are_numbers():
    assert from_plain(AppoConfig, {"learning-rate": "1e-4"}).learning_rate == 1e-4


def test_values_are_converted_to_the_type_of_their_field():
    given: dict[str, Any] = dict(
        learning_rate="1e-3",
        rollout=np.int64(16),
        gamma=np.float32(0.5),
        train_for_env_steps="1e6",
        train_for_seconds=5,
        run_dir=Path("runs") / "mine",
        env_kwargs={"gravity": 10.0, "sutton_barto_reward": True},
        adam_betas=[0.9, 0.99],
        milestone_interval=2**60 + 1,
        model={"hidden_sizes": [8], "core": "gru"},
    )
    config = AppoConfig(**given)
    assert (config.learning_rate, config.rollout, config.gamma) == (0.001, 16, 0.5)
    assert (config.train_for_env_steps, config.train_for_seconds) == (1_000_000, 5.0)
    assert type(config.rollout) is int and type(config.train_for_seconds) is float
    assert config.run_dir == "runs/mine" and config.adam_betas == (0.9, 0.99)
    assert [type(value) for value in config.env_kwargs.values()] == [float, bool]
    assert config.milestone_interval == 2**60 + 1
    assert config.model == ModelConfig(hidden_sizes=(8,), core="gru")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": "fast"}, "AppoConfig: learning_rate: 'fast' must be a number or empty"),
        ({"rollout": 1.5}, "AppoConfig: rollout: 1.5 must be a whole number"),
        ({"serial": "yes"}, "serial: 'yes' must be true or false"),
        ({"advantage": "mc"}, "advantage: 'mc' must be one of vtrace, gae or empty"),
        ({"adam_betas": (0.9,)}, "must be a list of 2 values"),
        ({"model": "mlp"}, "model: 'mlp' must be keys and values"),
        ({"model": {"hiden_sizes": [8]}}, "Did you mean hidden_sizes?"),
    ],
)
def test_values_of_another_type_are_refused_in_words(fields, message):
    with pytest.raises(ConfigError) as caught:
        AppoConfig(**fields)
    assert message in str(caught.value)


def test_a_config_is_copied_with_changes_and_checked_again():
    config = AppoConfig(env="CartPole-v1", gamma=0.9)
    assert dataclasses.replace(config, gamma=0.8) == AppoConfig(env="CartPole-v1", gamma=0.8)
    with pytest.raises(ConfigError, match=r"--gamma 2\.0"):
        dataclasses.replace(config, gamma=2)
    assert AppoConfig(**dataclasses.asdict(config)) == config


def test_only_near_names_are_suggested() -> None:
    assert nearest("resume", ["presets", "train", "describe"]) == []
    assert nearest("dm_control/cheetah-run-v0", ["popgym-RepeatFirst-v0", "HalfCheetah-v5"]) == []
    assert nearest("retrun_mean", ["return_mean", "return_std"]) == ["return_mean"]
    assert nearest("breakout", ["ALE/Breakout-v5", "ALE/Pong-v5"]) == ["ALE/Breakout-v5"], "a part"


class Named(sf.Callback):  # type: ignore[misc]
    """A class at the top of a module."""


def test_classes_and_functions_stand_for_their_names() -> None:
    objects: dict[str, Any] = {
        "callbacks": [Named],
        "evaluate_function": nearest,
        "evaluate_interval": 9,
        "train_for_env_steps": 9,
        "anneal": {"learning_rate": nearest},
        "model": {"encoder": Named, "head": Named},
    }
    config = AppoConfig(**objects)
    named, function = f"{__name__}:Named", "sampleforge.names:nearest"
    assert config.callbacks == (named,)
    assert (config.model.encoder, config.model.head) == (named, named)
    assert (config.evaluate_function, config.anneal) == (function, {"learning_rate": function})
    assert from_plain(AppoConfig, to_plain(config), "config.yaml") == config


def test_a_function_without_a_name_is_told_where_it_may_stand() -> None:
    function: Any = lambda: None  # noqa: E731
    with pytest.raises(ConfigError, match="must be a text or empty, or a class or function at the"):
        AppoConfig(evaluate_function=function)
    given: Any = [Named()]
    with pytest.raises(ConfigError, match="a callback's object is given to"):
        AppoConfig(callbacks=given)
    with pytest.raises(ConfigError, match=r"must be a number or empty$"):
        AppoConfig(learning_rate=function)
    with pytest.raises(ConfigError, match=r"must be a text or empty$"):
        AppoConfig(run_dir=function)


@pytest.mark.parametrize("stop", [len, [len]])
def test_a_function_as_a_stop_condition_is_told_where_it_may_stand(stop: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        AppoConfig(stop=stop)
    text = str(refusal.value)
    assert "AppoConfig: stop: <built-in function len> must be a" in text
    assert "Trainer.train_until(function)" in text and "session.stop()" in text
    assert "package.module" not in text


def test_the_settings_that_may_name_code_are_those_whose_help_says_so() -> None:
    naming = set()
    for cls in (*ALGOS.values(), ModelConfig):
        for base in filter(dataclasses.is_dataclass, cls.__mro__):
            naming |= {name for name, text in docstrings(base).items() if "module:" in text}
    assert naming == NAMING_CODE
