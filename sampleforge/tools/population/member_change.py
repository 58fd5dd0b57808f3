"""The changes of a member of a population of runs: what the rules decide, and the checkpoint from
which the changed member goes on.

The functions are pure: the published states and checkpoints, the rules and a random generator go
in, and a decision, or a checkpoint with its events of the lineage, comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sampleforge.populations.exploit import ExploitRule, Member, Value, exploit, exploring
from sampleforge.populations.explore import ExploreRule, explore
from sampleforge.run.folder.checkpoint import Checkpoint
from sampleforge.spec import ENV_PREFIX
from sampleforge.tools.population.published import Published


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


@dataclass(frozen=True)
class Change:
    """What a member does after a round: copy ``donor`` (None: keep its weights), perturb its
    hyperparameters, or both. ``learned``: the env steps that had led to the member's weights (None:
    its learner does not count them)."""

    round: int
    donor: str | None
    explores: bool
    learned: int | None = None


def about(state: Published) -> dict[str, Any]:
    """Return what every event of the lineage has, from a member's state."""
    return {
        **{"member": state.member, "round": state.round, "env_steps": state.env_steps},
        **{"wall_s": state.wall_s, "hyperparameters": dict(state.hyperparameters)},
        **learned_at(state.learned),
    }


def learned_at(learned: int | None) -> dict[str, int]:
    """Return the part of an event that says how many env steps had led to the weights then."""
    return {} if learned is None else {"at": learned}


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
) -> Change | None:
    """Return the change that the rules make of a member after a round, given the newest states of
    all; None for no change. The same states give the same change."""
    members = [
        Member(state.member, state.objective, _values(state), state.env_steps)
        for state in states.values()
    ]
    rng = np.random.default_rng([rules.seed, int(member), round_number, 0])
    replaced = exploit(members, rules.exploit, rng)
    own = states.get(member)
    change = Change(
        round_number,
        replaced.get(member),
        member in exploring(members, replaced, rules.exploit),
        None if own is None else own.learned,
    )
    return change if change.donor is not None or change.explores else None


def _values(state: Published) -> dict[str, Value]:
    return {name: v for name, v in state.hyperparameters.items() if v is not None}


def changed_checkpoint(
    member: str,
    own: Checkpoint,
    donor: tuple[Published, Checkpoint] | None,
    change: Change,
    rules: MemberRules,
    rng: np.random.Generator,
) -> tuple[Checkpoint | None, list[dict[str, Any]]]:
    """Return the checkpoint of a member after a change, and the events of the lineage; None if
    nothing changes. ``own``: its newest checkpoint; ``donor``: what it copies, if anything.

    The version is one above both, so that no experience of before counts as current. The donor's
    random generators and episodes are not copied: seeds stay different, and the objective counts
    only the member's own episodes.
    """
    base = own if donor is None else donor[1]
    before = hyperparameters_of(base)
    after = explore(before, rules.explore, rng) if change.explores else dict(before)
    if donor is None and after == before:
        return None, []
    learner = _changed_learner(own, base, after)
    statistics = dict(own.state["statistics"])
    if donor is not None:
        statistics |= {"returns": [], "lengths": [], "of_run": [], "of_type": {}}
        statistics |= {"exploring": {}, "evaluation": {}}
    events = list(_events(member, own, donor, change, before, after))
    state = {
        **own.state,
        **{"learner": learner, "statistics": statistics, "milestone": False},
        **{"return_mean": None, "eval_return_mean": None, "eval_env_steps": None},
        "across_runs": {"round": change.round, "events": events},
    }
    tensors = {name: t for name, t in base.tensors.items() if not name.startswith("rng/")}
    tensors |= {name: t for name, t in own.tensors.items() if name.startswith("rng/")}
    return Checkpoint(tensors, state), events


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
    if "learning_rate" in learner:  # the present one of a schedule, which follows the first one
        rate = before["learning_rate"] * hyperparameters["learning_rate"]
        learner["learning_rate"] = rate / before["hyperparameters"]["learning_rate"]
    return learner


def _events(
    member: str,
    own: Checkpoint,
    donor: tuple[Published, Checkpoint] | None,
    change: Change,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    position = {
        **{"member": member, "round": change.round},
        **{"env_steps": own.state["env_steps"], "wall_s": own.state["wall_s"]},
        **learned_at(change.learned if donor is None else donor[0].learned),
    }
    if donor is not None:
        state = donor[0]
        returns = own.state["statistics"]["returns"]
        yield {
            **{"event": "exploit", **position, "donor": state.member},
            **{"donor_env_steps": state.env_steps, "donor_round": state.round},
            "snapshot": state.checkpoint,
            "objective": float(np.mean(returns)) if returns else None,
            **{"donor_objective": state.objective, "hyperparameters": dict(before)},
        }
    changed = {name: [before[name], after[name]] for name in after if after[name] != before[name]}
    if changed:
        yield {"event": "explore", **position, "changed": changed, "hyperparameters": dict(after)}
