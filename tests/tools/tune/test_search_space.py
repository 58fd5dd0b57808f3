"""The settings that `sampleforge tune --for return` searches: the defaults among them, and nothing
that a run would refuse."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sampleforge.config import ConfigError, from_plain
from sampleforge.presets import preset_names, preset_values
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec
from sampleforge.tools.tune.returns import search_space
from sampleforge.topologies.config import ALGOS
from sampleforge.topologies.registry import pairing

ACTIONS = {
    "discrete": ActionSpec("discrete", (), "int64", (3,)),
    "box": ActionSpec("box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0)),
}
OBSERVATIONS = {
    "vector": ArraySpec((8,), "float32"),
    "planes": ArraySpec((10, 10, 4), "bool"),
    "image": ArraySpec((4, 84, 84), "uint8"),
}


def spec_of(observation: str, action: str) -> EnvSpec:
    return EnvSpec("X-v0", {"obs": OBSERVATIONS[observation]}, {"action": ACTIONS[action]})


CASES = [
    *(("appo", observation, action) for observation in OBSERVATIONS for action in ACTIONS),
    *(("ddppo", observation, "discrete") for observation in OBSERVATIONS),
    *(("apex", observation, "discrete") for observation in ("vector", "image")),
]


@pytest.mark.long
@pytest.mark.parametrize(("algo", "observation", "action"), CASES)
def test_the_defaults_are_searched_with_values_that_run(
    algo: str, observation: str, action: str
) -> None:
    more = {"replay_capacity": 100_000} if algo == "apex" else {}
    config: Any = from_plain(ALGOS[algo], {"env": "X-v0", **more})
    spec = spec_of(observation, action)
    ranges, defaults = search_space(config, spec)
    assert {"learning_rate", "gamma"} <= ranges.keys() and len(ranges) >= 6
    assert ranges.keys() == defaults.keys()
    chosen = pairing(config)
    for name, values in ranges.items():
        assert name in {field.name for field in dataclasses.fields(config)}
        default = defaults[name]
        if "choices" not in values:
            assert values["low"] < default < values["high"]
            continue
        assert default in values["choices"] and len(values["choices"]) > 1
        for value in values["choices"]:
            changed = dataclasses.replace(config, **{name: value})
            chosen.plan(chosen.resolve_defaults(changed, spec), spec, "cpu")


def test_what_would_be_refused_is_left_out() -> None:
    """Minibatches of a recurrent core are whole rollouts, here of 256 steps; without that, 64 and
    128 would be tried too."""
    values = {"env": "X-v0", "model": {"core": "gru"}, "rollout": 256, "minibatch_size": 256}
    config: Any = from_plain(ALGOS["appo"], values)
    ranges, _ = search_space(config, spec_of("vector", "discrete"))
    sizes = ranges["minibatch_size"]["choices"]
    assert sizes == [256, 512, 1024]


@pytest.mark.parametrize("name", preset_names("appo"))
def test_the_space_of_a_preset_is_around_its_values(name: str) -> None:
    values = preset_values("appo", name)
    config: Any = from_plain(ALGOS["appo"], values)
    kind = "image" if "cnn" in values.get("model", {}).get("encoder", "") else "vector"
    ranges, defaults = search_space(
        config, spec_of(kind, "box" if name == "halfcheetah" else "discrete")
    )
    for setting in ranges.keys() & values.keys():
        assert defaults[setting] == values[setting]


def test_algorithms_without_an_environment_are_refused() -> None:
    config: Any = from_plain(ALGOS["marwil"], {"env": "X-v0", "input": ["data"]})
    with pytest.raises(ConfigError, match="learns from recorded data"):
        search_space(config, spec_of("vector", "discrete"))
