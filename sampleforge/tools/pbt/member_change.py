"""The changes of a member of a population of runs: what the rules decide, and the checkpoint from
which the changed member goes on.

The functions are pure: the published states and checkpoints, the rules and a random generator go
in, and a decision, or a checkpoint with its events of the lineage, comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sampleforge.populations import rounds
from sampleforge.populations.lineage import position
from sampleforge.populations.rounds import ExploitRule, ExploreRule, Member, MemberChange
from sampleforge.populations.rules import takes
from sampleforge.populations.self_play import STATE as SELF_PLAY
from sampleforge.run.folder.checkpoint import Checkpoint
from sampleforge.spec import ENV_PREFIX
from sampleforge.tools.pbt.published import Published
from sampleforge.topologies.config import AnyConfig


@dataclass(frozen=True)
class MemberRules:
    """The rules of a population of runs.

    ``period``: env steps of a member between two rounds; ``start``: env steps before the first
    change; ``turns``: a job ends after a round, because there are more members than jobs at a time;
    ``seed``: of all decisions.
    """

    period: int
    start: int
    exploit: ExploitRule
    explore: ExploreRule
    turns: bool
    seed: int


def hyperparameters_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the hyperparameters in a member's checkpoint, with the reward-shaping numbers of its
    environments if the population changes those."""
    learner = checkpoint.state["learner"]
    return {**learner["hyperparameters"], **learner.get("tag", {}).get("shaping", {})}


def shaping_of(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the hyperparameters that are reward-shaping numbers of the environment."""
    return {n: value for n, value in hyperparameters.items() if n.startswith(ENV_PREFIX)}


def decide(
    member: str, round_number: int, states: Mapping[str, Published], rules: MemberRules
) -> MemberChange | None:
    """Return the change that the rules make of a member after a round, given the newest states of
    all; None for no change. The same states give the same change."""
    members = [state.as_member() for state in states.values()]
    rng = np.random.default_rng([rules.seed, int(member), round_number, 0])
    return rounds.decide(members, rules.exploit, rng).get(member)


def changed_checkpoint(
    own: tuple[Published, Checkpoint],
    donor: tuple[Published, Checkpoint] | None,
    rule: ExploreRule | None,
    rng: np.random.Generator,
    config: AnyConfig,
) -> tuple[Checkpoint | None, list[dict[str, Any]]]:
    """Return the checkpoint of a member after a change, and the events of the lineage; None if
    nothing changes. ``own``: its state at the end of the round and its newest checkpoint;
    ``donor``: what it copies, if anything; ``rule``: by which it perturbs its hyperparameters, if
    it does, within what members with ``config`` can have.

    The version is one above both, so that no experience of before counts as current. The donor's
    random generators and episodes are not copied: seeds stay different, and the objective counts
    only the member's own episodes. Self-play begins anew after a copy.
    """
    published, checkpoint = own
    state, base = checkpoint.state, checkpoint if donor is None else donor[1]
    returns = state["statistics"]["returns"]
    member = Member(
        published.member,
        float(np.mean(returns)) if returns else None,
        hyperparameters_of(checkpoint),
    )
    copied = None
    if donor is not None:
        copied = replace(donor[0].as_member(), hyperparameters=hyperparameters_of(base))
    after, events = rounds.changed(member, copied, rule, rng, partial(takes, config))
    if not events:
        return None, []
    learned = published.learned if donor is None else donor[0].learned
    place = position(
        published.member, published.round, state["env_steps"], state["wall_s"], learned
    )
    if donor is not None:
        events[0] |= {"donor_round": donor[0].round, "snapshot": donor[0].checkpoint}
    events = [{"event": event["event"], **place, **event} for event in events]
    copies = state["statistics"].get("copies", 0) + (donor is not None)
    changed = {
        **state,
        "learner": _changed_learner(checkpoint, base, after),
        "statistics": state["statistics"] | ({} if donor is None else _forgotten(copies)),
        "milestone": False,
        "copies": copies,
        "return_mean": None,
        "eval_return_mean": None,
        "eval_env_steps": None,
        "across_runs": {"round": published.round, "events": events},
    }
    if donor is not None:  # the results are of other weights, the donor's snapshots in its folder
        changed.pop(SELF_PLAY, None)
    tensors = {name: t for name, t in base.tensors.items() if not name.startswith("rng/")}
    tensors |= {name: t for name, t in checkpoint.tensors.items() if name.startswith("rng/")}
    return Checkpoint(tensors, changed), events


def _forgotten(copies: int) -> dict[str, Any]:
    """Return what the statistics of a member are after so many ``copies``, without the episodes of
    the weights that the last one has replaced."""
    return {
        "copies": copies,
        "return_best": None,
        "returns": [],
        "lengths": [],
        "of_run": [],
        "of_type": {},
        "custom_metrics": {},
        "exploring": {},
        "evaluation": {},
    }


def _changed_learner(
    own: Checkpoint, base: Checkpoint, hyperparameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the plain values of a member's learner that goes on with the weights of ``base`` and
    with other hyperparameters."""
    shaping, before = shaping_of(hyperparameters), base.state["learner"]
    learner = {**own.state["learner"]}
    learner["hyperparameters"] = {n: v for n, v in hyperparameters.items() if n not in shaping}
    if shaping:
        learner["tag"] = {**learner.get("tag", {}), "shaping": shaping}
    learner["version"] = 1 + max(c.state["learner"]["version"] for c in (own, base))
    if "env_steps" in before:
        learner["env_steps"] = before["env_steps"]  # those that have led to the weights
    if "learning_rate" in learner.keys() & before.keys():  # adapted from the first
        rate = before["learning_rate"] * hyperparameters["learning_rate"]
        learner["learning_rate"] = rate / before["hyperparameters"]["learning_rate"]
    return learner
