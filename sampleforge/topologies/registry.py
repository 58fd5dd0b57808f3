"""What an algorithm runs on: the topologies, and its pairing with one of them.

The config class of a pair names the module of its pairing, which is imported when it is needed.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.config import ConfigError, typed
from sampleforge.encoding import check_leaves
from sampleforge.env.user_code import import_user_module
from sampleforge.models.config import ModelConfig
from sampleforge.peers.rendezvous import StartupRendezvous
from sampleforge.runtime.machine import human_bytes, memory_available
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import AgentGroup, NetworkMaker
from sampleforge.topologies.config import RanksRunConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.ranks.plan import plan_ranks
from sampleforge.topologies.ranks.wire import wire_ranks, wire_world
from sampleforge.topologies.replay.plan import ReplayPlan, plan_replay
from sampleforge.topologies.replay.wire import ReplayGroup
from sampleforge.topologies.sampler_plan import Plan, one_row_each
from sampleforge.topologies.shared_actors import wire_groups
from sampleforge.topologies.slots.plan import plan_slots
from sampleforge.topologies.slots.wire import SlotsGroup
from sampleforge.topologies.stored.plan import StoredPlan, plan_stored
from sampleforge.topologies.stored.wire import wire_stored

OF_ACTIONS = ("exploration_coeff", "lr_schedule", "target_entropy")
"""Settings whose defaults depend on the actions, and of which each agent group has its own."""
AnyPlan = Plan | ReplayPlan | StoredPlan
"""The sizes of a run of any algorithm."""


@dataclass(frozen=True)
class Topology:
    """How the workers of a run are wired, whatever the algorithm.

    ``plan(algorithm, config, spec, device)`` chooses the sizes; ``wire(algorithm, config, plan,
    spec, start, policies)`` builds the graph, with a policy group for each `PolicyStart` of
    ``policies`` (where there can be several, it also takes ``frozen``, `FrozenStart` of the
    policies that are not trained, and ``others``, the agent groups beside the first one).
    ``sampler``: the kind of worker that steps environments (None: it learns from recorded data).
    """

    plan: Callable[..., Any]
    wire: Callable[..., Graph]
    sampler: Literal["worker", "rank"] | None = "worker"


SLOTS = Topology(plan_slots, partial(wire_groups, SlotsGroup))
REPLAY = Topology(plan_replay, partial(wire_groups, ReplayGroup))
RANKS = Topology(plan_ranks, wire_ranks, "rank")
STORED = Topology(plan_stored, wire_stored, None)


@dataclass(frozen=True)
class Pairing:
    """An algorithm on a topology, with the defaults of the pair.

    ``resolve_defaults(config, spec)`` resolves the unset fields of the config; ``reason(config,
    plan, spec)`` says in a line which settings were chosen, and why.
    """

    algorithm: Algorithm
    topology: Topology
    resolve_defaults: Callable[[Any, EnvSpec], Any]
    reason: Callable[[Any, Any, EnvSpec], str]

    def resolved(self, config: Any, spec: EnvSpec) -> Any:
        """Return the config of a run in the environment of ``spec`` with its unset fields resolved.
        Raises ConfigError for settings that the environment cannot have."""
        check_leaves(config.model.encode, spec)
        return self.resolve_defaults(one_row_each(config, spec), spec)

    def for_agents(
        self, group: AgentGroup, asked: Any, stored: Mapping[str, Any] | None = None
    ) -> AgentGroup:
        """Return an agent group whose config is resolved for the first one, with the defaults of
        its own actions: of the settings `OF_ACTIONS`, and of the noise that Box actions begin with,
        where ``asked``, the config of the user, leaves them open.

        ``stored``: the `settings_of_actions` in an earlier part of the run, with which it goes on
        (None: it begins). As for the first group, a learning rate that by default fell until the
        end is constant in a run without an end."""
        own = self.resolve_defaults(asked, group.spec)
        chosen, given = settings_of_actions(own), settings_of_actions(asked)
        if stored is not None:
            chosen = {**settings_of_actions(group.config), **stored}
            if "lr_schedule" in chosen and not asked.has_end:
                chosen["lr_schedule"] = "constant"
        left_open = {name: chosen[name] for name, value in given.items() if value is None}
        if asked.model.initial_log_std is None:
            noise = own.model.initial_log_std
            left_open["model"] = dataclasses.replace(group.config.model, initial_log_std=noise)
        return dataclasses.replace(group, config=dataclasses.replace(group.config, **left_open))

    def plan(self, config: Any, spec: EnvSpec, device: str) -> Any:
        """Return the sizes of a run. Raises ConfigError if it is not possible."""
        _check_layers(config.model)
        return self.topology.plan(self.algorithm, config, spec, device)

    def wire(self, config: Any, plan: Any, spec: EnvSpec, *args: Any, **options: Any) -> Graph:
        """Return the graph of a run; see `Topology`. Nothing runs yet."""
        graph = self.topology.wire(self.algorithm, config, plan, spec, *args, **options)
        return dataclasses.replace(graph, notes=(self.reason(config, plan, spec), *graph.notes))

    def network_maker(self, config: Any, spec: EnvSpec, seed: int) -> NetworkMaker:
        """Return what makes the network of a policy with its initial weights."""
        return NetworkMaker(self.algorithm, config, spec, seed)


def settings_of_actions(config: Any) -> dict[str, Any]:
    """Return the settings `OF_ACTIONS` that a config has."""
    return {name: getattr(config, name) for name in OF_ACTIONS if hasattr(config, name)}


def own_settings(config: Any, group: AgentGroup) -> str:
    """Return a line with what `Pairing.for_agents` has made different from ``config``, that of the
    first agents; empty if that is nothing."""
    own = settings_of_actions(group.config)
    pairs = [(name, getattr(config, name), value) for name, value in own.items()]
    noise = config.model.initial_log_std, group.config.model.initial_log_std
    flags = [
        typed(name, value)
        for name, first, value in (*pairs, ("model.initial_log_std", *noise))
        if value not in (None, first)
    ]
    agents = ", ".join(group.spec.agents)
    return f"Agents {agents}, by their own actions: {' '.join(flags)}" if flags else ""


def pairing(config: Any) -> Pairing:
    """Return the algorithm of a config with its topology. Raises ConfigError if there is none where
    its class says."""
    name = config.pairing
    home, _, attribute = name.partition(":")
    # The working directory becomes importable for code of the user's alone: it may be a folder of
    # unknown origin.
    own = home.startswith("sampleforge.")
    module = importlib.import_module(home) if own else import_user_module("pairing", name)
    found = getattr(module, attribute, None)
    if not isinstance(found, Pairing):
        raise ConfigError(f"algorithm {config.algo}: pairing {name!r} is {found!r}, not a Pairing")
    return found


def pairing_over(config: RanksRunConfig, rendezvous: StartupRendezvous) -> Pairing:
    """Return the algorithm of a config over the ranks of a rendezvous that is complete."""
    chosen = pairing(config)
    over_ranks = dataclasses.replace(
        chosen.topology,
        plan=partial(plan_ranks, world=rendezvous.world),
        wire=partial(wire_world, rendezvous=rendezvous),
    )
    return dataclasses.replace(chosen, topology=over_ranks)


def _check_layers(model: ModelConfig) -> None:
    """Raise ConfigError if the weights between the layers of a network do not fit into memory: to
    make them would end the process, or take for ever."""
    widths = model.hidden_sizes or ()
    weights = sum(widths) + sum(inputs * outputs for inputs, outputs in pairwise(widths))
    gates = {"none": 0, "gru": 3, "lstm": 4}[model.core]
    weights += gates * model.core_size**2
    free = memory_available()
    if 4 * weights > free:
        flags = [typed("model.hidden_sizes", widths)] if widths else []
        flags += [typed("model.core_size", model.core_size)] if gates else []
        raise ConfigError(
            f"{' '.join(flags)}: the weights of these layers alone take "
            f"{human_bytes(4 * weights)} of memory, and {human_bytes(free)} are free; give smaller "
            "ones"
        )
