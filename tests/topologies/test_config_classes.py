"""Algorithms of other packages: found by module:ConfigClass or an entry point, or refused in a
sentence."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import pytest

from sampleforge.config import ConfigError
from sampleforge.names import OTHER_ALGORITHMS
from sampleforge.topologies import config_classes
from sampleforge.topologies.config import ALGOS, AppoConfig, SlotsRunConfig
from sampleforge.topologies.config_classes import (
    algorithm_names,
    config_class,
    names_code,
)
from sampleforge.topologies.registry import pairing

HERE = "tests.topologies.test_config_classes"


@dataclass(frozen=True)
class Mine(SlotsRunConfig):
    algo: ClassVar[str] = f"{HERE}:Mine"
    pairing: ClassVar[str] = f"{HERE}:MINE"


MINE = pairing(AppoConfig())


@dataclass(frozen=True)
class Nameless(SlotsRunConfig):
    pairing: ClassVar[str] = f"{HERE}:MINE"


@dataclass(frozen=True)
class Misnamed(SlotsRunConfig):
    algo: ClassVar[str] = "other"
    pairing: ClassVar[str] = f"{HERE}:MINE"


@dataclass(frozen=True)
class Unpaired(SlotsRunConfig):
    algo: ClassVar[str] = f"{HERE}:Unpaired"


@dataclass(frozen=True)
class Lost(SlotsRunConfig):
    algo: ClassVar[str] = f"{HERE}:Lost"
    pairing: ClassVar[str] = f"{HERE}:HERE"


@dataclass(frozen=True)
class Homeless:
    algo: ClassVar[str] = f"{HERE}:Homeless"


def test_the_projects_own_are_found_by_name() -> None:
    assert all(config_class(name) is cls and not names_code(name) for name, cls in ALGOS.items())


def test_a_class_is_found_by_its_module() -> None:
    assert config_class(Mine.algo) is Mine and names_code(Mine.algo)
    assert pairing(Mine()) is MINE


def test_a_class_is_found_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mine, "algo", "mine")
    entry = EntryPoint("mine", f"{HERE}:Mine", config_classes.GROUP)
    monkeypatch.setattr(config_classes, "_plugins", lambda: {"mine": entry})
    assert config_class("mine") is Mine and not names_code("mine")
    assert algorithm_names() == [*ALGOS, "mine"]
    with pytest.raises(ConfigError, match="Did you mean mine"):
        config_class("mein")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Nameless", 'Nameless has no algo; give it the class variable algo = "'),
        ("Misnamed", "Misnamed.algo is 'other', and run folders would name that"),
        ("Unpaired", "Unpaired has no pairing"),
        ("Homeless", "is not a dataclass|has no topology; derive it from SlotsRunConfig"),
        ("pairing", "is not a dataclass with its settings"),
        ("Nothing", "has no function 'Nothing'|has no"),
    ],
)
def test_what_is_no_config_class_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config_class(f"{HERE}:{name}")


def test_a_pairing_that_is_none_is_refused() -> None:
    lost: Any = Lost()
    with pytest.raises(ConfigError, match="not a Pairing"):
        pairing(lost)


def test_an_unknown_name_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="Did you mean apex"):
        config_class("apx")
    with pytest.raises(ConfigError, match=r"There are appo.* and your own, as module:ConfigClass"):
        config_class("")


def test_names_of_other_libraries_lead_to_algorithms_that_there_are() -> None:
    assert {*OTHER_ALGORITHMS.values()} <= {*ALGOS} and not {*OTHER_ALGORITHMS} & {*ALGOS}
    for name, ours in OTHER_ALGORITHMS.items():
        with pytest.raises(
            ConfigError, match=rf"^Unknown algorithm {name}\. Did you mean {ours}\?$"
        ):
            config_class(name)
