"""The rounds of a population: which members change, how, and what the lineage says about it.

Both populations decide with these functions: the policies of one run (`pbt.py`), whose changes
travel through shared memory, and the population of runs (`sampleforge.tools.population`), whose
changes are checkpoints. The functions are pure: the members, a rule and a random generator go in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sampleforge.populations.exploit import ExploitRule, Member, Value, exploit, exploring
from sampleforge.populations.explore import ExploreRule, explore

MIN_EPISODES = 10
"""Least number of a member's own episodes whose mean return is its objective."""


@dataclass(frozen=True)
class MemberChange:
    """What a member does after a round: copy ``donor`` (None: keep its weights), perturb its
    hyperparameters (``explores``), or both."""

    donor: str | None
    explores: bool


def decide(
    members: Sequence[Member], rule: ExploitRule, rng: np.random.Generator
) -> dict[str, MemberChange]:
    """Return the changes of the members that are to change, by their ids, in the order of
    ``members``."""
    donors = exploit(members, rule, rng)
    explorers = exploring(members, donors, rule)
    return {
        each.id: MemberChange(donors.get(each.id), each.id in explorers)
        for each in members
        if each.id in donors or each.id in explorers
    }


def changed(
    own: Member, donor: Member | None, rule: ExploreRule | None, rng: np.random.Generator
) -> tuple[dict[str, Value], list[dict[str, Any]]]:
    """Return the hyperparameters of a member after it has copied ``donor`` (None: no copy) and
    perturbed what it has then by ``rule`` (None: nothing), and the events of that: none if nothing
    changes. The events lack what `lineage.position` returns, and what only the transport
    knows."""
    before = dict((donor or own).hyperparameters)
    after = dict(before) if rule is None else explore(before, rule, rng)
    events: list[dict[str, Any]] = []
    if donor is not None:
        copied = {
            "event": "exploit",
            "donor": donor.id,
            "donor_env_steps": donor.env_steps,
            "objective": own.objective,
            "donor_objective": donor.objective,
            "hyperparameters": before,
        }
        events.append(copied)
    pairs = {name: [before[name], after[name]] for name in after if after[name] != before[name]}
    if pairs:
        events.append({"event": "explore", "changed": pairs, "hyperparameters": dict(after)})
    return after, events
