"""The policies of a run: their ids, which of them it trains, and which agents they play."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sampleforge.config import ConfigError, typed
from sampleforge.topologies.config import AnyConfig
from sampleforge.workers.config import PoliciesConfig

if TYPE_CHECKING:
    from sampleforge.spec import EnvSpec  # imports gymnasium, which flags need not wait for

ONLY_POLICY = "policy"
"""The id of the policy group of a run with one policy."""


OPPONENT = "opponent"
"""The id of the frozen policy that plays the opponents of self-play."""


@dataclass(frozen=True)
class PolicyRoles:
    """The policies of a run. ``ids``: of all of them, but for `OPPONENT`; ``trained``: the ids of
    those that it trains; ``frozen``: of those that act but are not trained; ``pool``: capacity of
    the pool of `OPPONENT`."""

    ids: tuple[str, ...]
    trained: tuple[str, ...]
    frozen: tuple[str, ...]
    pool: int = 0

    def stored_as(self, policy: str | None) -> str | None:
        """Return the id under which the run folder has the checkpoints of a policy: None for the
        only one that is trained, whose checkpoints are those of the run."""
        return None if self.trained == (policy,) else policy

    def agent_group(self, policy: str, spec: EnvSpec) -> int:
        """Return the index of the agent group that a policy plays."""
        groups = len(spec.agent_groups)
        if groups == 1 or policy == OPPONENT:
            return 0
        return self.ids.index(policy) % groups


_POLICY_ID = re.compile(r"\w+", re.ASCII)


def roles_of_policies(config: AnyConfig, trained: Sequence[str] | None = None) -> PolicyRoles:
    """Return the policies of the run that ``config`` describes. ``trained``: ids that replace the
    usual ones, of policies that are all trained. Raises ValueError for ids that cannot be names of
    folders and metrics, and ConfigError for another policy in ``config.init_from``."""
    if trained is not None:
        _check_ids(trained)
    several = config if isinstance(config, PoliciesConfig) else PoliciesConfig()
    count = several.num_policies
    ids = (ONLY_POLICY,) if count == 1 else tuple(f"policy_{i}" for i in range(count))
    ids = ids if trained is None else tuple(trained)
    own = ids if trained is not None else several.to_train or ids
    frozen = tuple(name for name in ids if name not in own)
    if isinstance(config.init_from, dict):
        _check_named(config.init_from, ids)
    pool = several.opponent_pool
    return PolicyRoles(ids, own, (*frozen, OPPONENT) if pool else frozen, pool)


def _check_named(init_from: dict[str, str], ids: Sequence[str]) -> None:
    for name, place in init_from.items():
        if name not in ids:
            raise ConfigError(
                f"{typed('init_from', {name: place})}: there is no policy {name}; give the run "
                f"alone, or name one of {', '.join(ids)} (a folder of this name: ./{name}={place})"
            )


def _check_ids(policies: Sequence[str]) -> None:
    if len(set(policies)) < len(policies) or not all(map(_POLICY_ID.fullmatch, policies)):
        raise ValueError(
            f"policy ids must differ and consist of letters, digits and _: {list(policies)}"
        )


def learning_agents(config: AnyConfig, spec: EnvSpec) -> int:
    """Return the number of agents of an environment that policies learn from at the same time, in
    its first agent group, whose ``spec`` it is: all of them, or one if frozen policies or opponents
    play the others. A mapping of the user may choose any number up to all."""
    if not isinstance(config, PoliciesConfig) or config.policy_mapping is not None:
        return spec.num_agents
    own = [f"policy_{i}" for i in range(0, config.num_policies, len(spec.agent_groups))]
    trained = [name for name in own if not config.to_train or name in config.to_train]
    return 1 if config.opponent_pool or 0 < len(trained) < len(own) else spec.num_agents


def policy_ids(config: AnyConfig) -> tuple[str, ...]:
    """Return the ids of the policies that the run trains: "policy_0" and so on, if there are
    several."""
    return roles_of_policies(config).trained
