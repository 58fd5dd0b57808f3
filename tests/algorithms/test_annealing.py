"""Schedules of hyperparameters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from sampleforge.algorithms.annealing import Annealing, annealings, check_learning_rate
from sampleforge.config import ConfigError, from_plain
from sampleforge.run.folder.stored_config import inherited
from sampleforge.run.folder.versions import translated
from sampleforge.topologies.pairings.ppo_config import AppoConfig

CHANGEABLE = ("learning_rate", "clip_ratio", "value_clip", "gamma")
CONFIG = AppoConfig(env="CartPole-v1", train_for_env_steps=1000, learning_rate=0.5)


def warmup(progress: float) -> float:
    """Rise over the first tenth, then stay."""
    return min(1.0, progress / 0.1) * 1e-3


def no_number(progress: float) -> float:
    return math.nan


def test_a_cooldown_falls_in_the_last_quarter() -> None:
    schedule = Annealing("learning_rate", "cooldown")
    found = [schedule(p, 2.0) for p in (0.0, 0.5, 0.75, 0.875, 1.0)]
    assert found == pytest.approx([2.0, 2.0, 2.0, 1.0, 0.0])
    assert Annealing("gamma", "cooldown:5:1")(0.875, 2.0) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("linear", [2.0, 2.0, 1.5, 0.0, 0.0]),
        ("linear:5:1", [5.0, 5.0, 4.0, 1.0, 1.0]),
        ("cosine:5:1", [5.0, 5.0, 1 + 2 * (1 + math.sqrt(0.5)), 1.0, 1.0]),
        ("constant", [2.0] * 5),
        (f"{__name__}:warmup", [0.0, 0.0, 1e-3, 1e-3, 1e-3]),
    ],
)
def test_a_schedule_goes_from_its_first_value_to_its_last(text: str, values: list[float]) -> None:
    schedule = Annealing("gamma", text)
    assert [schedule(p, 2.0) for p in (-1.0, 0.0, 0.25, 1.0, 3.0)] == pytest.approx(values)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rollout", "linear:9:1", "rollout cannot change during the training"),
        ("clip_ration", "linear", "Did you mean clip_ratio"),
        ("clip_ratio", "linear", "cannot be used at 100% of the training: --clip-ratio 0.0"),
        ("learning_rate", "cosine:1:-1", "at 100% of the training: --learning-rate -1"),
        ("value_clip", "linear", "value_clip has no value to begin with"),
        ("gamma", f"{__name__}:no_number", "returned nan at progress 0"),
        ("gamma", f"{__name__}:missing", "has no function 'missing'"),
    ],
)
def test_what_a_schedule_cannot_set_is_refused(name: str, text: str, message: str) -> None:
    config = replace(CONFIG, anneal={name: text})
    with pytest.raises(ConfigError, match=message):
        annealings(config)[name].check(config, CHANGEABLE)


def test_the_short_form_is_the_schedule_of_the_learning_rate() -> None:
    both: list[Any] = [{"lr_schedule": "linear"}, {"anneal": {"learning-rate": "linear"}}]
    found = [annealings(replace(CONFIG, **given)) for given in both]
    assert found[0] == found[1] == {"learning_rate": Annealing("learning_rate", "linear")}
    found[0]["learning_rate"].check(CONFIG, CHANGEABLE)  # it may end at 0
    with pytest.raises(ConfigError, match="both are schedules of the learning rate"):
        check_learning_rate(replace(CONFIG, **both[0], **both[1]))


def test_a_resumed_run_repeats_a_function_and_keeps_what_names_no_code() -> None:
    plain = replace(CONFIG, anneal={"gamma": "linear:0.9:0.99"})
    assert inherited(plain, {}, CONFIG)[0].anneal == plain.anneal
    code = replace(CONFIG, anneal={"learning_rate": f"{__name__}:warmup"})
    assert inherited(code, {}, code)[0].anneal == code.anneal
    with pytest.raises(ConfigError, match="never imported from there; repeat it"):
        inherited(code, {}, CONFIG)


def test_an_earlier_version_had_a_setting_for_the_bonus_alone() -> None:
    assert translated({"exploration_schedule": "constant"}) == {}
    found = translated({"exploration_schedule": "linear", "gamma": 0.9})
    assert found == {"anneal": {"exploration_coeff": "linear"}, "gamma": 0.9}
    with pytest.raises(ConfigError, match="Did you mean anneal"):
        from_plain(AppoConfig, {"exploration_schedule": "linear"})
