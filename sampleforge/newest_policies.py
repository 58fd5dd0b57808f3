"""The policies of a session with the newest weights that its learners have published, evaluated in
its own process while the workers train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from sampleforge.algorithms.acting import FrozenPolicy
from sampleforge.env.config import EnvConfig
from sampleforge.env.tasks import at_newest
from sampleforge.env.user_code import import_function
from sampleforge.loaded_policy import LoadedPolicy
from sampleforge.runtime.by_value import as_sent
from sampleforge.runtime.interrupts import DeferredInterrupt
from sampleforge.runtime.torch_settings import limit_threads
from sampleforge.topologies.evaluator import evaluation_env
from sampleforge.workers.episode_player import (
    EpisodePlayer,
    EvaluationPart,
    PlayedEpisode,
    evaluation_envs,
    evaluation_seed,
    number_of_episodes,
    outcome,
)
from sampleforge.workers.evaluator import EvaluationContext, evaluation_of

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.shared.newest import TaskBoard
    from sampleforge.topologies.graph import PolicyGroup


class NewestPolicies:
    """The trained policies of ``session``, which is open, or has ended: weights are in shared
    memory. Each policy has the model of the agents that it plays. Ctrl-C interrupts an evaluation
    between two steps."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: dict[str, tuple[LoadedPolicy, int]] = {}
        """By id: a policy, and the number of the publication that its weights are of."""

    def group(self, policy: int | str) -> PolicyGroup:
        """Return the policy group of a number, from 0, or of an id. Raises ValueError if there is
        none."""
        groups = self._session.graph.groups
        for number, group in enumerate(groups):
            if policy in (number, group.id):
                return group
        known = ", ".join(f"{number}: {group.id!r}" for number, group in enumerate(groups))
        raise ValueError(f"there is no policy {policy!r} that this run trains; there are {known}")

    def copy(self, group: PolicyGroup) -> LoadedPolicy:
        """Return the policy of a group with a copy of its newest weights."""
        plan = self._session.run_plan
        model, spec = self._new_model(group), plan.agents_of(group.id).spec
        group.weights.read(model.state_dict())
        return LoadedPolicy(model, spec, clip_observations=plan.config.clip_observations)

    def _new_model(self, group: PolicyGroup) -> Any:
        """Return a new model of a group: of the classes that the training began with."""
        with as_sent(self._session.definitions):
            return self._session.run_plan.new_model(group.id)

    def newest(self, group: PolicyGroup) -> LoadedPolicy:
        """Return the policy of a group with its newest weights: the same object each time, whose
        weights the next call renews."""
        policy, published = self._kept.get(group.id, (None, -1))
        if policy is None:
            policy = self.copy(group)
        if published != group.weights.published:
            published, _ = group.weights.read(policy.model.state_dict())
            self._kept[group.id] = (policy, published)
        return policy

    def frozen(self, group: PolicyGroup) -> tuple[dict[int, FrozenPolicy], int]:
        """Return the policy that plays each agent group, by its index, in an evaluation of
        ``group``: of the other agent groups the first policy that plays them. Return also the
        policy version of the weights of ``group``."""
        session = self._session
        model = self._new_model(group).eval()
        _, version = group.weights.read(model.state_dict())
        playing = {session.run_plan.agent_group(group.id): FrozenPolicy(model)}
        for other in session.graph.groups:
            if (index := session.run_plan.agent_group(other.id)) not in playing:
                playing[index] = FrozenPolicy(self.copy(other).model)
        for fixed in session.graph.frozen:
            if (index := session.run_plan.agent_group(fixed.id)) not in playing:
                model = fixed.new_model()
                fixed.pool.read(0, model.state_dict())
                playing[index] = FrozenPolicy(model)
        return playing, version

    # ---- evaluations ----

    def evaluate(
        self,
        group: PolicyGroup,
        episodes: int | None,
        *,
        stochastic: bool | None,
        seed: int | None,
    ) -> dict[str, Any]:
        """Evaluate a policy's newest weights as the run's own evaluator does: in its environment
        and with its task, by its settings where an argument is None, and by the user's evaluation
        function, if there is one.

        Play ``episodes`` episodes; return the statistics of their raw returns (see `outcome`), or
        the metrics of the user's function, in which case it decides what is played. Raises
        ValueError for fewer episodes than 1, and TypeError if the function returns something else
        than numbers by name."""
        session, config = self._session, self._session.resolved
        episodes = number_of_episodes(episodes, config.evaluate_episodes)
        stochastic = config.evaluate_stochastic if stochastic is None else stochastic
        seed = evaluation_seed(session.resume_point.seed) if seed is None else seed
        index, (policies, version) = session.run_plan.agent_group(group.id), self.frozen(group)
        env, name = evaluation_env(config), config.evaluate_function
        with DeferredInterrupt() as interrupt:
            part = EvaluationPart.of(session.spec)
            play = partial(
                _play, policies, index, session.tasks.evaluation, part, interrupt.check, seed
            )
            if name is None:
                return outcome(play(env, episodes, stochastic))
            context = EvaluationContext(
                policy=policies[index],
                env=env,
                env_steps=session.graph.progress.env_steps,
                policy_version=version,
                episodes=episodes,
                stochastic=stochastic,
                seed=seed,
                evaluator=0,
                evaluators=1,
                alive=interrupt.check,
                player=play,
            )
            metrics = import_function("--evaluate-function", name)(context)
        found = evaluation_of(name, metrics, context).scalars()
        return {n: v for n, v in found.items() if n not in ("policy_version", "env_steps")}


def _play(
    policies: Mapping[int, FrozenPolicy],
    group: int,
    tasks: TaskBoard | None,
    part: EvaluationPart,
    alive: Callable[[], None],
    seed: int,
    env: EnvConfig,
    episodes: int,
    stochastic: bool,
) -> Sequence[PlayedEpisode]:
    """Play so many episodes in ``env``, in which the policy of agent group ``group`` is judged,
    with one thread: several are slower for a few rows. ``alive`` is called before each step."""
    with ExitStack() as resources:
        envs = at_newest(tasks, evaluation_envs, env, episodes, seed, part)
        resources.callback(envs.close)
        resources.callback(limit_threads(1))
        player = EpisodePlayer(
            envs,
            policies[group],
            episodes,
            stochastic=stochastic,
            seed=seed,
            group=group,
            others={of: each for of, each in policies.items() if of != group},
        )
        while not player.done:
            alive()
            player.step()
    return player.played
