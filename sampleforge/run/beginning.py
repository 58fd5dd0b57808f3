"""The beginning of a session: its sizes are planned, its workers are made and wired. Nothing runs
yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sampleforge.algorithms.annealing import annealings
from sampleforge.env.probe import probe
from sampleforge.env.user_code import make_cwd_importable
from sampleforge.models.encoder_registry import resolve_encoder
from sampleforge.run.callback import Callback
from sampleforge.run.folder.initial import CRITICS
from sampleforge.runtime.by_value import definitions
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import AgentGroup, other_agent_groups
from sampleforge.topologies.config import AnyConfig, ReplayRunConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.learner_maker import check_frozen, new_state
from sampleforge.topologies.policy_roles import PolicyRoles, roles_of_policies
from sampleforge.topologies.registry import AnyPlan, Pairing, pairing
from sampleforge.topologies.sampler_plan import run_device
from sampleforge.topologies.starts import (
    FrozenStart,
    PolicyStart,
    ResumePoint,
    frozen_starts,
    seed_of_policy,
)
from sampleforge.workers.callback import RunHooks, for_workers
from sampleforge.workers.config import answer_timeout

if TYPE_CHECKING:
    from sampleforge.models.actor_critic import ActorCritic
    from sampleforge.models.q_network import QNetwork
    from sampleforge.run.opening import OpenRun
    from sampleforge.run.session import Session

C = TypeVar("C", bound=AnyConfig)


@dataclass(frozen=True)
class RunPlan:
    """The sizes of a run. ``resolved``: its config with all defaults; ``agents``: those that share
    a policy, each with the encoder chosen: one entry, or several in an environment of several
    agents. ``roles``: the policies."""

    pairing: Pairing
    resolved: AnyConfig
    agents: tuple[AgentGroup, ...]
    roles: PolicyRoles

    @property
    def config(self) -> Any:
        """The resolved config, with the encoder chosen."""
        return self.agents[0].config

    @property
    def sizes(self) -> AnyPlan:
        """The plan of the topology."""
        sizes: AnyPlan = self.agents[0].plan
        return sizes

    @property
    def answer_timeout(self) -> float:
        """Seconds within which the learners, or ranks, that answer the driver must do so."""
        return answer_timeout(self.resolved)

    def agent_group(self, policy: str) -> int:
        """Return the index of the agent group that the policy with this id plays, among those of
        the environment's spec."""
        return self.roles.agent_group(policy, self.agents[0].spec)

    def agents_of(self, policy: str) -> AgentGroup:
        """Return the agents that the policy with this id plays: their spec, and the config and plan
        of its model."""
        return self.agents[self.agent_group(policy)]

    def config_of(self, policy: str) -> Any:
        """Return the config of the agents that the policy with this id plays."""
        return self.agents_of(policy).config

    def new_model(self, policy: str) -> ActorCritic | QNetwork:
        """Return a model with the names and shapes of the weights of the policy with this id, on
        the CPU."""
        model: ActorCritic | QNetwork = self.agents_of(policy).maker(self.resolved.seed or 0)()
        return model

    def on_machine(self, resolved: C) -> C:
        """Return the resolved config with the values that the plan has chosen for this machine:
        workers or ranks, envs, device, precision, inference, threads, and the limit of the policy
        lag."""
        sizes, sampler = self.sizes, self.pairing.topology.sampler
        chosen: dict[str, Any] = {"learner_threads": sizes.learner_threads, **sizes.chosen}
        if sizes.num_workers:
            chosen[f"num_{sampler}s"] = sizes.num_workers
        return dataclasses.replace(resolved, **chosen)

    def wire(
        self,
        start: ResumePoint,
        policies: Sequence[PolicyStart],
        frozen: Sequence[FrozenStart] = (),
        hooks: RunHooks | None = None,
    ) -> Graph:
        """Return the graph of a run that begins at ``start``."""
        given = {"frozen": frozen, "others": self.agents[1:], "hooks": hooks}
        more: dict[str, Any] = {name: value for name, value in given.items() if value}
        spec = self.agents[0].spec
        return self.pairing.wire(self.config, self.sizes, spec, start, policies, **more)


def plan_run(
    chosen: Pairing,
    config: AnyConfig,
    spec: EnvSpec,
    roles: PolicyRoles | None = None,
    opened: OpenRun | None = None,
) -> RunPlan:
    """Resolve the defaults of a config and plan the sizes of the run. ``roles``: None for those
    that the config describes; ``opened``: the run folder that ``config`` is from, None if it is the
    user's. Raises ConfigError for what cannot run."""
    roles = roles or roles_of_policies(config)
    asked, stored = config, dict[int, dict[str, Any]]()
    if opened is not None:
        asked, begun = opened.asked, (each for each in opened.policies if each.earlier)
        stored = {roles.agent_group(p.id, spec): p.earlier.get("of_actions", {}) for p in begun}
    config = chosen.resolved(config, spec)
    for schedule in annealings(config).values():
        schedule.check(config, chosen.algorithm.changeable)
    model = resolve_encoder(config.model, spec.observations)
    plan = chosen.plan(config, spec, run_device(config, spec))
    config = dataclasses.replace(config, batch_size=plan.batch_size)
    if isinstance(config, ReplayRunConfig) and config.replay_capacity is None:
        fits: dict[str, Any] = {
            "replay_capacity": plan.capacity,
            "learning_starts": plan.learning_starts,
        }
        config = dataclasses.replace(config, **fits)
    others = other_agent_groups(chosen.algorithm, chosen.plan, config, plan, spec)
    with_encoder = dataclasses.replace(config, model=model)
    first = AgentGroup(chosen.algorithm, with_encoder, plan, spec)
    own = (chosen.for_agents(g, asked, stored.get(i)) for i, g in enumerate(others, 1))
    return RunPlan(chosen, config, (first, *own), roles)


def wire_session(session: Session, callbacks: Sequence[Callback], *, processes: bool) -> Graph:
    """Return the graph of a session whose plan is made, and whose ``callbacks`` have been asked.
    ``processes``: the workers are processes of their own."""
    start = session.resume_point

    def of_frozen(index: int, name: str) -> ResumePoint:
        opened, seed = session.opened, seed_of_policy(start.seed, index)
        resume, initial = opened.frozen.get(name), opened.initial.get(name)
        return dataclasses.replace(start, seed=seed, resume=resume, initial=initial)

    frozen = frozen_starts(session.roles, session.spec, of_frozen)
    model = session.run_plan.agents[0].maker(start.seed)()  # what does not fit is refused here
    check_frozen(session.run_plan.config, model)
    for name, initial in session.opened.initial.items():
        left, extra = initial.weights(session.run_plan.new_model(name))
        agents = session.run_plan.agents_of(name)
        for warning in initial.other_meanings(agents.config, agents.spec):
            session.message(warning, "warning")
        if name in session.roles.trained and not session.config.sampler_only:
            learners = new_state(agents.maker(start.seed), agents.plan, start)
            if initial.leaves_critics(learners):
                initial.check_more_than_critics()
                left.append(CRITICS)
        of = f" of {name}" if len(session.opened.initial) > 1 else ""
        if left:
            session.message(f"--init-from: new{of} are {', '.join(left)}")
        if extra:
            session.message(
                f"--init-from: the network{of} here has no {', '.join(sorted(extra))} of the "
                "checkpoint, without which the weights that were taken compute something else",
                "warning",
            )
    hooks = RunHooks(
        for_workers(callbacks, processes=processes),
        session.roles.trained + session.roles.frozen,
        session.tasks.training,
        session.tasks.evaluation,
    )
    plan = session.run_plan
    sent = session.config, plan.pairing.algorithm, hooks.callbacks
    session.definitions = definitions(*sent) if processes else None
    return plan.wire(start, policy_starts(session), frozen, hooks)


def policy_starts(session: Session) -> list[PolicyStart]:
    """Return where each policy of a session begins that is trained."""
    start, policies = session.resume_point, session.opened.policies
    alone = start.env_steps if len(policies) == 1 else 0
    return [
        PolicyStart(
            stored.id,
            dataclasses.replace(
                start,
                seed=seed_of_policy(start.seed, index),
                resume=session.opened.resume(stored, session.run_plan.config_of(stored.id)),
                initial=session.opened.initial.get(stored.id),
                replays=stored.stored_replay,
            ),
            stored.store.save_state,
            session.hyperparameters.get(stored.id, {}),
            session.schedule,
            session.env_steps_of.get(stored.id, alone),
            group=session.run_plan.agent_group(stored.id),
        )
        for index, stored in enumerate(policies)
    ]


def wired(config: AnyConfig) -> tuple[Graph, Any, AnyPlan, EnvSpec]:
    """Return the graph of a run without starting it, the config with all defaults resolved, the
    plan and the spec of the environment. Raises ConfigError if the config cannot run."""
    make_cwd_importable()
    spec = probe(config)
    plan = plan_run(pairing(config), config, spec)
    start = ResumePoint(plan.resolved.seed or 0)
    policies = [
        PolicyStart(each, start, _do_not_save, group=plan.agent_group(each))
        for each in plan.roles.trained
    ]
    frozen = frozen_starts(plan.roles, spec, lambda index, name: start)
    return plan.wire(start, policies, frozen), plan.config, plan.sizes, spec


def _do_not_save(tensors: Any, state: Any) -> None:
    """Do nothing in the place of a learner that writes a checkpoint: nothing is started."""
