"""The policies of a session: with the newest weights that its learners have published, evaluated in
its own process while the workers train; and other weights, or the state of a checkpoint, for its
learners."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sampleforge.algorithms.acting import FrozenPolicy
from sampleforge.algorithms.learning import check_names
from sampleforge.config import ConfigError, typed
from sampleforge.env.config import EnvConfig
from sampleforge.env.tasks import at_newest
from sampleforge.env.user_code import import_function
from sampleforge.loaded_policy import LoadedPolicy
from sampleforge.run.folder.checkpoint import CheckpointStore, model_tensors
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.stored_config import flat_fields
from sampleforge.runtime.interrupts import DeferredInterrupt
from sampleforge.runtime.torch_settings import limit_threads
from sampleforge.topologies.evaluator import evaluation_env
from sampleforge.workers.episode_player import (
    EpisodePlayer,
    EvaluationPart,
    PlayedEpisode,
    evaluation_envs,
    evaluation_seed,
    outcome,
)
from sampleforge.workers.evaluator import EvaluationContext, evaluation_of
from sampleforge.workers.learner_change import LOAD, ChangeRequest, write_state_file

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.shared.newest import TaskBoard
    from sampleforge.topologies.graph import Node, PolicyGroup

LOAD_TIMEOUT = 300.0
"""Seconds in which the learners of a policy must come to the end of an update together."""


class NewestPolicies:
    """The trained policies of ``session``, which is open, or has ended: weights are in shared
    memory. Each policy has the model of the agents that it plays. Ctrl-C interrupts a change or an
    evaluation only where nothing is half done."""

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
        model = self._session.run_plan.new_model(group.id)
        group.weights.read(model.state_dict())
        return LoadedPolicy(model, self._session.run_plan.agents_of(group.id).spec)

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
        model = session.run_plan.new_model(group.id).eval()
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
        TypeError if that returns something else than numbers by name."""
        session, config = self._session, self._session.resolved
        episodes = episodes or config.evaluate_episodes
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

    # ---- other weights ----

    def set_weights(self, group: PolicyGroup, weights: Mapping[str, Any]) -> None:
        """Have a policy's learners continue from ``weights``, by name as arrays or tensors. Raises
        ValueError, which names the difference, if they are not those of its model, or not
        finite."""
        tensors = self._fitting(group, weights)
        with DeferredInterrupt():
            self._load(group, {f"model/{name}": tensor for name, tensor in tensors.items()}, {})

    def restore(self, path: str | Path, with_: Mapping[str, Any]) -> None:
        """Have every policy continue from the newest checkpoint in the run folder ``path``, with
        the values ``with_`` of some hyperparameters. Raises ConfigError if there is none of each
        policy, or of another algorithm, or for a value out of range, ValueError if it is of another
        model or has no such hyperparameter, and CheckpointError if it is damaged."""
        session, folder = self._session, RunFolder.existing(path)
        if folder.algo != session.config.algo:
            raise ConfigError(
                f"{path} is a run of {folder.algo}, and its state is none of {session.config.algo}"
            )
        groups, found = session.graph.groups, []
        for group in groups:
            where = folder.policy_checkpoints(group.id if len(groups) > 1 else None)
            loaded = CheckpointStore(where, 1).load(log=session.note)
            if loaded is None:
                raise ConfigError(f"{path} has no checkpoint yet; train it first")
            self._fitting(group, model_tensors(loaded[0].tensors))
            check_names(loaded[0].state["learner"]["hyperparameters"], with_)
            found.append(loaded[0])
        with DeferredInterrupt():
            for group, checkpoint in zip(groups, found, strict=True):
                plain = self._with_given(checkpoint.state["learner"], with_)
                self._load(group, checkpoint.tensors, plain)
        for name, value in with_.items():
            session.note(f"Changed from here on: {typed(name, value)}")

    def _with_given(self, state: Mapping[str, Any], with_: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plain values of a learner's state from elsewhere, with the hyperparameters
        ``with_``, and those that the session's run was given: only those that it was not given are
        the state's. The run's config has those of the newest such state, and so has config.yaml."""
        session = self._session
        given, defaults = flat_fields(session.opened.asked), flat_fields(type(session.asked)())
        stored = dict(state["hyperparameters"])
        own = {n: getattr(session.resolved, n) for n in stored if given[n] != defaults[n]}
        used = {**stored, **own, **with_}
        session.resolved = dataclasses.replace(session.resolved, **used)
        session.write_config()
        in_use = {name: value for name, value in with_.items() if name in state}
        return {**state, **in_use, "hyperparameters": used}

    def _load(
        self, group: PolicyGroup, tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any]
    ) -> None:
        """Have the learners of a policy continue from another state, and publish its weights.

        ``tensors`` and ``plain`` are what `Learner.state` returned, or, with empty ``plain``, only
        the weights as ``model/<name>``. The policy version is raised by more than the largest lag
        that is learned from. Several learners load it after their next update; meanwhile the
        workers work. Raises TimeoutError if they make none within `LOAD_TIMEOUT` s."""
        session = self._session
        number = time.time_ns() // 1000  # exact as a float64, in which learners compare it
        file = session.folder.scratch / f"load-{number}"
        load = ChangeRequest(number, file, (group.max_policy_lag or 0) + 1)
        write_state_file(file, dict(tensors), dict(plain))
        deadline = time.monotonic() + LOAD_TIMEOUT

        def ask(learner: Node) -> bool:
            timeout = max(1.0, deadline - time.monotonic())
            return bool(session.runner.ask(learner, LOAD, load, timeout))

        try:
            while not all([ask(learner) for learner in group.learners]):
                if time.monotonic() > deadline or session.graph.progress.done:
                    raise TimeoutError(
                        f"the learners of {group.id} have made no update within "
                        f"{LOAD_TIMEOUT:.0f} s after which they could have loaded the weights "
                        "together, or have ended"
                    )
                session.work()
        finally:
            file.unlink(missing_ok=True)

    def _fitting(self, group: PolicyGroup, weights: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return ``weights`` as tensors like those of a policy; see `set_weights`."""
        own = self._session.run_plan.new_model(group.id).state_dict()
        missing, unknown = own.keys() - weights.keys(), weights.keys() - own.keys()
        if missing or unknown:
            listed = [
                *(f"{name} is missing" for name in sorted(missing)),
                *(f"{name} is unknown" for name in sorted(unknown)),
            ]
            raise ValueError(
                f"the weights are of another model: {', '.join(listed[:8])}"
                f"{', ...' if len(listed) > 8 else ''}; get_weights() returns those of this one"
            )
        return {name: _fitting(name, weights[name], tensor) for name, tensor in own.items()}


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


def _fitting(name: str, value: Any, own: torch.Tensor) -> torch.Tensor:
    given = (
        value.detach().cpu() if isinstance(value, torch.Tensor) else torch.tensor(np.asarray(value))
    )
    if given.shape != own.shape or given.is_floating_point() != own.is_floating_point():
        raise ValueError(
            f"the weights are of another model: {name} is {given.dtype} {list(given.shape)}, "
            f"expected {own.dtype} {list(own.shape)}"
        )
    if not bool(torch.isfinite(given).all()):
        raise ValueError(f"the weights hold values that are not finite, in {name}")
    return given.to(own.dtype)
