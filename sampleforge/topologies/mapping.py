"""The choice of a run's policy mapping, and the check of one that the user gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sampleforge.config import ConfigError
from sampleforge.spec import EnvSpec
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.topologies.starts import FrozenStart, PolicyStart
from sampleforge.workers.policy_mapping import (
    ByAgentGroup,
    FixedPerStream,
    GroupPolicies,
    PolicyMapping,
    RandomPerRollout,
    RoundRobin,
    StreamId,
    UserMapping,
    only_policy,
)

TURN = 8
"""Rollouts after which another seat of a split learns, where frozen policies play the others."""
CHECKED_ROLLOUTS = 100
"""Rollouts of each split for which a mapping of the user is checked before the run starts."""


def choose_mapping(
    policies: int,
    plan: SamplerPlan,
    seed: int,
    *,
    synchronous: bool,
    overlapping: bool,
    population: bool = False,
    apart: bool = True,
) -> PolicyMapping:
    """Return the policy mapping for ``policies`` groups, which draws a policy for each rollout.
    Instead, the members of a ``population`` have splits of their own, ``synchronous`` groups act in
    turn (with ``apart`` each in another seat, see `RoundRobin`), and with ``overlapping`` sequences
    each stream keeps its policy. Raises ConfigError if a policy would have no stream."""
    if policies == 1:
        return only_policy
    if population:
        return FixedPerStream(policies, 0)
    if overlapping:
        streams = plan.num_workers * plan.num_splits
        if streams < policies:
            raise ConfigError(
                f"{policies} policies with overlapping sequences need {policies} streams, because "
                f"a stream keeps its policy, but there are {plan.num_workers} workers x "
                f"{plan.num_splits} splits = {streams}; raise --num-workers or --num-splits"
            )
        return FixedPerStream(policies, plan.num_splits)
    return RoundRobin(policies, apart=apart) if synchronous else RandomPerRollout(policies, seed)


def seat_mapping(
    spec: EnvSpec,
    trained: Sequence[PolicyStart],
    frozen: Sequence[FrozenStart],
    plan: SamplerPlan,
    seed: int,
    *,
    synchronous: bool,
    overlapping: bool,
    population: bool = False,
    function: str | None = None,
) -> PolicyMapping:
    """Return the policy mapping of an environment with the agent groups of ``spec``: that of the
    user's ``function`` (--policy-mapping), or the default one. Raises ConfigError if an agent group
    has no policy, or if the function does not fit the run."""
    policies: list[PolicyStart | FrozenStart] = [*trained, *frozen]
    if function is not None:
        if synchronous:
            raise ConfigError(
                f"--policy-mapping {function} needs --async-rl: if sampling and learning take "
                "turns, every policy must act equally often in every rollout, else its batch is "
                "never complete"
            )
        mapping = UserMapping(function, [policy.id for policy in policies])
        _check(mapping, function, spec, plan, policies, len(trained))
        return mapping
    groups, seats = [], 0
    for index, group in enumerate(spec.agent_groups):
        own = tuple(i for i, policy in enumerate(trained) if policy.group == index)
        others = tuple(i for i, each in enumerate(policies) if each.group == index and i not in own)
        if not own and not others:
            raise ConfigError(
                f"{spec.env_id} has {len(spec.agent_groups)} groups of agents with spaces of their "
                f"own, and no policy plays {', '.join(group.agents)}; give each group one: "
                f"--num-policies {len(spec.agent_groups)}"
            )
        pick = choose_mapping(
            max(1, len(own)),
            plan,
            seed,
            synchronous=synchronous,
            overlapping=overlapping,
            population=population,
            apart=not others,
        )
        members = tuple(range(seats, seats + group.num_agents))
        groups.append(GroupPolicies(members, own, others, pick))
        seats += group.num_agents
    if not any(group.trained for group in groups):
        raise ConfigError("no policy is trained; name one of them in --policies-to-train")
    _check_opponents(spec, groups)
    if len(groups) == 1 and not groups[0].frozen:
        return groups[0].pick
    return ByAgentGroup(groups, seed, None if overlapping else TURN)


def _check_opponents(spec: EnvSpec, groups: Sequence[GroupPolicies]) -> None:
    """Raise ConfigError if there are frozen policies that could play no seat."""
    for group in groups:
        if group.trained and group.frozen and len(group.seats) == 1:
            raise ConfigError(
                f"{spec.env_id} has one agent that the trained policies play, so that no seat is "
                "left for a frozen one or an opponent; leave out --policies-to-train and "
                "--opponent-pool, or use a multi-agent environment"
            )


def seats_of(spec: EnvSpec) -> list[tuple[str, int]]:
    """Return agent and index of the agent group of each seat, in the order of the seats."""
    return [
        (agent, index)
        for index, group in enumerate(spec.agent_groups)
        for agent in group.agents or ("",)
    ]


def _check(
    mapping: PolicyMapping,
    name: str,
    spec: EnvSpec,
    plan: SamplerPlan,
    policies: Sequence[PolicyStart | FrozenStart],
    trained: int,
) -> None:
    """Raise ConfigError for a mapping that gives an agent a policy with other spaces, or a split
    frozen policies only, or that never uses a policy. The first ``trained`` of ``policies`` are
    trained."""
    used: Counter[int] = Counter()
    for actor in range(plan.num_workers):
        for split in range(plan.num_splits):
            for rollout in range(CHECKED_ROLLOUTS):
                picked = []
                for seat, (agent, group) in enumerate(seats_of(spec)):
                    policy = mapping(StreamId(actor, split, seat, agent, group), rollout)
                    picked.append(policy)
                    own = policies[policy].group
                    if own != group:
                        raise ConfigError(
                            f"--policy-mapping {name} gives agent {agent} a policy that plays "
                            f"{', '.join(spec.agent_groups[own].agents)}, which have "
                            "other spaces"
                        )
                if min(picked) >= trained:
                    raise ConfigError(
                        f"--policy-mapping {name} gives all agents of actor {actor}, split "
                        f"{split}, rollout {rollout} frozen policies, so that nothing is learned"
                    )
                used.update(picked)
    missing = [each.id for i, each in enumerate(policies[:trained]) if i not in used]
    if missing:
        raise ConfigError(
            f"--policy-mapping {name} never picks {', '.join(missing)} in the first "
            f"{CHECKED_ROLLOUTS} rollouts of each split, and without experience a policy learns "
            "nothing; pick it, or leave it out of --policies-to-train"
        )
