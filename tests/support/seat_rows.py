"""What learners would take from the slots of `tests.support.multi_agent.CodeParallelEnv`: every row
of every slot is traced to its env, agent, episode and step."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

from sampleforge.algorithms.ppo.algorithm import PPO
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.records import EpisodeRecord
from sampleforge.topologies.builders import other_agent_groups
from sampleforge.topologies.config import AppoConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.policy_roles import roles_of_policies
from sampleforge.topologies.starts import PolicyStart, ResumePoint, frozen_starts, seed_of_policy
from tests.support.envs import code_reward
from tests.support.graphs import forget, spec_of
from tests.support.pairings import network_maker, plan_of, wire_of


def marked_graph(chosen: AppoConfig, seed: int = 1) -> Graph:
    """A graph whose policies write the index of their group + 1 as the value of every observation,
    with policy version 100 x (index + 1). ``chosen``: with resolved defaults."""
    spec = spec_of(chosen)
    plan = plan_of(chosen, spec, "cpu")
    chosen = dataclasses.replace(chosen, batch_size=plan.batch_size)
    others = other_agent_groups(PPO, plan_of, chosen, plan, spec)
    chosen = dataclasses.replace(chosen, model=resolve_encoder(chosen.model, spec.observations))
    roles = roles_of_policies(chosen)
    policies = [
        PolicyStart(
            name,
            ResumePoint(seed_of_policy(seed, index)),
            forget,
            group=roles.agent_group(name, spec),
        )
        for index, name in enumerate(roles.trained)
    ]
    frozen = frozen_starts(roles, spec, lambda index, weights: ResumePoint(seed + index))
    graph = wire_of(chosen, plan, spec, ResumePoint(seed), policies, frozen, others)
    for mark, (group, policy) in enumerate(zip(graph.groups, policies, strict=True), 1):
        own = spec.agent_groups[policy.group]
        tensors = network_maker(chosen, own, seed)().state_dict()
        for tensor in tensors.values():
            tensor.zero_()
        tensors["value_bias"].fill_(mark)
        tensors["value_scale"].fill_(1.0)
        group.weights.publish(tensors, 100 * mark)
    return graph


def without_learners(graph: Graph) -> Graph:
    learners = {group.learner.name for group in graph.groups}
    nodes = tuple(node for node in graph.nodes if node.name not in learners)
    return dataclasses.replace(graph, nodes=nodes)


class SeatRows:
    """Takes what is ready for each learner, and checks every row. ``seats_of``: the seats that each
    policy may play."""

    def __init__(self, graph: Graph, seats_of: Sequence[set[int]]) -> None:
        self.graph = graph
        self.seats_of = seats_of
        self.rollouts = Counter[int]()
        self.steps: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        """(env, seat) -> (episode, step) of each observation that was acted on, in any order."""
        self.ended: Counter[tuple[int, int, float, int]] = Counter()
        """(policy, seat, return, length) of the episodes that ended in a slot of the policy."""

    def take(self) -> None:
        for policy, group in enumerate(self.graph.groups):
            exchange = group.exchange
            assert isinstance(exchange, SlotExchange)
            while (slot := exchange.take_ready()) is not None:
                self._rollout(policy, exchange.slots, slot)
                exchange.give_back(slot)

    def _rollout(self, policy: int, slots: TrajectorySlots, slot: int) -> None:
        self.rollouts[policy] += 1
        assert (slots.extras["value"][slot] == policy + 1).all(), "written by another policy"
        assert (slots.version[slot] == 100 * (policy + 1)).all()
        obs = slots.obs["obs"][slot]
        (seat,) = set(obs[0, :, 4].astype(int).tolist())
        assert (obs[..., 4] == seat).all(), "a slot holds one agent only"
        assert seat in self.seats_of[policy]
        assert (obs[..., 0] == obs[0, :, 0]).all(), "a row holds one env only"
        for row in range(obs.shape[1]):
            env = int(obs[0, row, 0])
            for t in range(slots.shape.rollout):
                _, episode, step = obs[t, row, :3].astype(int).tolist()
                self.steps[env, seat].append((episode, step))
                self._step(policy, slots, (slot, t, row), seat)

    def _step(
        self, policy: int, slots: TrajectorySlots, at: tuple[int, int, int], seat: int
    ) -> None:
        slot, t, row = at
        env, episode, step = slots.obs["obs"][slot, t, row, :3].astype(int).tolist()
        after, action = slots.obs["obs"][slot, t + 1, row, 2:4].astype(int).tolist()
        if not slots.valid[at]:
            assert after == 0 and slots.first[slot, t + 1, row], "the step that resets"
            return
        assert after == step + 1 and action == slots.actions["action"][at]
        assert slots.reward[at] == code_reward(env, episode, after) + 1000 * seat
        if slots.terminated[at] or slots.truncated[at]:
            rewards = [code_reward(env, episode, k) + 1000 * seat for k in range(1, after + 1)]
            self.ended[policy, seat, float(sum(rewards)), after] += 1

    def check(self, episodes: Sequence[EpisodeRecord], *, every_step: bool = True) -> None:
        """Each step of each agent came exactly once; with ``every_step``, none is missing. Each
        episode counts for the policy that acted when it ended."""
        self.take()
        for agent, steps in self.steps.items():
            ordered = sorted(steps)
            assert len(set(ordered)) == len(ordered), f"a step of {agent} came twice"
            for (episode, step), after in pairwise(ordered) if every_step else ():
                assert after in ((episode, step + 1), (episode + 1, 0)), f"{agent} lost a step"
        told = Counter((e.policy, e.seat, e.ret, e.length) for e in episodes)
        assert not self.ended - told, "an episode of a slot was not reported for its policy"
        assert set(self.rollouts) == set(range(len(self.graph.groups))), "a policy got nothing"
