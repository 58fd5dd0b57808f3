"""Settings by which the same weights compute something else are told, and no others."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest

from sampleforge.env.config import EnvConfig
from sampleforge.models.config import ModelConfig
from sampleforge.run.beginning import plan_run
from sampleforge.run.folder.meaning import other_meanings
from sampleforge.run.folder.stored_config import flat_fields
from sampleforge.spec import ArraySpec, EnvSpec
from sampleforge.topologies.builders import AgentGroup
from sampleforge.topologies.config import ApexConfig, AppoConfig, PqnConfig, SacConfig
from sampleforge.topologies.registry import pairing
from tests.support.graphs import spec_of

CART: dict[str, Any] = {"env": "CartPole-v1"}
PENDULUM: dict[str, Any] = {"env": "Pendulum-v1"}
RELU = {"activation": "relu"}
SQUASHED = {"squash_actions": True}
C51: dict[str, Any] = {**CART, "value_distribution": "c51", "v_min": 0.0, "v_max": 100.0}


@cache
def spec(env: str, rescales: bool) -> EnvSpec:
    return spec_of(EnvConfig(env=env, rescale_actions=rescales))


def agents(cls: Any, **settings: Any) -> AgentGroup:
    """What a run with these settings plans. The code of ``own`` parts of its model is not made."""
    network, own = (settings.pop(name, {}) for name in ("model", "own"))
    config = cls(device="cpu", **settings, model=ModelConfig(**network))
    found = plan_run(pairing(config), config, spec(config.env, config.rescale_actions)).agents[0]
    model = dataclasses.replace(found.config.model, **own)
    return dataclasses.replace(found, config=dataclasses.replace(found.config, model=model))


def told(theirs: AgentGroup, ours: AgentGroup, parts: tuple[str, ...] = ()) -> list[str]:
    return other_meanings(flat_fields(theirs.config), ours.config, ours.spec, parts)


@pytest.mark.parametrize(
    ("cls", "usual", "more"),
    [
        (AppoConfig, CART, {"model": {"squash_actions": True}}),
        (AppoConfig, CART, {"rescale_actions": False}),
        (AppoConfig, CART, {"model": {"encode": {"obs": "vector"}}}),
        (AppoConfig, CART, {"model": {"activation": "tanh"}}),
        (AppoConfig, {"env": "MountainCarContinuous-v0"}, {"rescale_actions": False}),
        (AppoConfig, {**PENDULUM, "model": SQUASHED}, {"rescale_actions": False}),
        (SacConfig, PENDULUM, {"rescale_actions": False}),
        (ApexConfig, C51, {"num_atoms": 11, "v_min": -1.0}),
        (ApexConfig, CART, C51),
        (AppoConfig, {**CART, "own": {"head": "mine:Beta"}}, {"own": {"head": "moved:Beta"}}),
        (AppoConfig, CART, {"own": {"encoder": "mine:Encoder"}}),
    ],
)
def test_a_setting_by_which_nothing_changes_is_not_told(
    cls: Any, usual: dict[str, Any], more: dict[str, Any]
) -> None:
    """Without Box actions, within bounds of -1 and 1, as the rule chooses anyway, or where the
    weights themselves tell."""
    theirs, ours = agents(cls, **usual), agents(cls, **{**usual, **more})
    assert told(theirs, ours) == told(ours, theirs) == []


@pytest.mark.parametrize(
    ("cls", "usual", "more", "flags", "part"),
    [
        (AppoConfig, PENDULUM, {"model": SQUASHED}, ["--model.squash-actions"], "actor"),
        (AppoConfig, PENDULUM, {"rescale_actions": False}, ["--no-rescale-actions"], "actor"),
        (
            AppoConfig,
            CART,
            {"model": {"activation": "relu"}},
            ["--model.activation relu"],
            "critic",
        ),
        (
            ApexConfig,
            {**CART, "head_size": 16},
            {"model": {"activation": "tanh"}},
            ["--model.activation tanh"],
            "actor",
        ),
        (ApexConfig, CART, {"value_rescaling": True}, ["--value-rescaling"], "actor"),
        (ApexConfig, C51, {"v_min": -10.0, "v_max": 10.0}, ["--v-min -10", "--v-max 10"], "actor"),
        (
            ApexConfig,
            C51,
            {"value_distribution": "quantile", "v_min": None, "v_max": None},
            ["--value-distribution quantile"],
            "actor",
        ),
        (
            AppoConfig,
            {**CART, "own": {"head": "mine:Beta"}},
            {"own": {"head": "mine:Student"}},
            ["--model.head mine:Student"],
            "actor",
        ),
    ],
)
def test_a_setting_that_gives_the_weights_another_meaning_is_told(
    cls: Any, usual: dict[str, Any], more: dict[str, Any], flags: list[str], part: str
) -> None:
    theirs, ours = agents(cls, **usual), agents(cls, **{**usual, **more})
    for parts in ((), (part,)):
        for warning, flag in zip(told(theirs, ours, parts), flags, strict=True):
            assert f"compute something else with {flag}" in warning
        for warning, flag in zip(told(ours, theirs, parts), flags, strict=True):
            assert f"were learned with {flag}" in warning
    assert told(theirs, ours, ("core",)) == []


def test_squashed_values_are_told_to_an_algorithm_that_has_no_others() -> None:
    (warning,) = told(agents(ApexConfig, **CART, value_rescaling=True), agents(PqnConfig, **CART))
    assert "with --value-rescaling, and compute something else without --value-rescaling" in warning
    assert told(agents(ApexConfig, **CART), agents(PqnConfig, **CART)) == []
    assert told(agents(PqnConfig, **CART), agents(ApexConfig, **CART)) == []


def test_another_scale_of_the_same_numbers_is_told_and_the_same_one_is_not() -> None:
    """Of bytes as an image, in dense layers: divided by 255, or as they are."""
    seen = {"obs": ArraySpec((36, 36), "uint8", low=0, high=255)}
    plain = {"normalise_images": False}
    for kind, flag in (("pixels", None), ("planes", "--model.encode obs=planes")):
        theirs, ours = (
            agents(AppoConfig, **CART, model=plain, own={"encode": encode})
            for encode in ({}, {"obs": kind})
        )
        ours = dataclasses.replace(ours, spec=dataclasses.replace(ours.spec, observations=seen))
        found = told(theirs, ours)
        assert len(found) == (flag is not None)
        if flag is not None:
            assert f"without --model.encode, and compute something else with {flag};" in found[0]
