"""The tests of the product ask every line of the registry, and an algorithm from outside of the
package on each of two topologies."""

from __future__ import annotations

from sampleforge.topologies.config import ALGOS
from sampleforge.topologies.config_classes import config_class
from tests.support.product import SMALL


def test_every_algorithm_has_a_line_by_which_it_is_asked() -> None:
    assert set(ALGOS) - set(SMALL) == set()


def test_algorithms_from_outside_are_asked_on_slots_and_on_the_replay() -> None:
    assert {config_class(algo).topology for algo in set(SMALL) - set(ALGOS)} == {"slots", "replay"}
