"""The configuration of worker processes (WorkersConfig), sampling (SamplerConfig), a learner's
process (LearnerProcessConfig), several of them (LearnersConfig), several policies (PoliciesConfig),
ranks (RanksConfig) and evaluation (EvaluatorConfig)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from sampleforge.config import Checked, ConfigError, check_range, typed
from sampleforge.env.given import name_of_env

EVALUATION_ROWS = 16
"""Env rows of an evaluation, which evaluators divide among them."""

ANSWER_TIMEOUT = 300.0
"""Seconds that a learner may need to answer the driver by default, which it does between two
updates."""


@dataclass(frozen=True)
class RanksConfig(Checked):
    num_ranks: int | None = None
    """Processes that each sample and learn (default: one per GPU, else one per core, at most 16;
    under torchrun as many as it starts)."""
    rank_timeout: float = 60.0
    """Seconds after which a rank that the others wait for counts as lost. A rank that has died is
    noticed at once."""
    max_rank_restarts: int = 3
    """Times that killed or hung ranks are replaced, in total. The group goes on from the last
    weights that all ranks agreed on or, if no rank survives, from those that rank 0 kept in shared
    memory. Under torchrun its --max-restarts counts instead."""
    sync_fraction: float = 0.6
    """A rank ends its rollouts early once this fraction of the ranks has finished (1: never)."""
    min_rollout_fraction: float = 0.25
    """A rank ends its rollouts no earlier than after this fraction of --rollout."""
    max_rollout_fraction: float = 1.5
    """A rank that is early goes on sampling until enough others have finished, up to this multiple
    of --rollout (1: it waits instead)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "num_ranks", low=1)
        check_range(self, "max_rank_restarts", low=0)
        check_range(self, "rank_timeout", low=0, above=True)
        check_range(self, "sync_fraction min_rollout_fraction", low=0, high=1, above=True)
        check_range(self, "max_rollout_fraction", low=1)


@dataclass(frozen=True)
class LearnerProcessConfig(Checked):
    learner_timeout: float = ANSWER_TIMEOUT
    """Seconds after which a learner that other learners, or the driver's request, wait for counts
    as lost, and is replaced; it answers between two updates. A learner that has died is noticed at
    once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "learner_timeout", low=0, above=True)


@dataclass(frozen=True)
class LearnersConfig(LearnerProcessConfig):
    num_learners: int = 1
    """Learner processes of the policy: each has an equal share of every batch, and gradients are
    averaged, so that they take the steps of a single learner."""
    learner_devices: tuple[str, ...] = ()
    """Device of each learner, such as cuda:0 cuda:1 (default: --device; with several GPUs and
    learners these take turns)."""
    cuda_graphs: bool | None = None
    """Launch the gradient steps of an update as one CUDA graph instead of operation by operation:
    for one learner on a GPU whose batches all have one size, without a recurrent core (default:
    where that can be)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "num_learners", low=1)
        devices, learners = self.learner_devices, self.num_learners
        given = typed("learner_devices", devices)
        if devices and len(devices) != learners:
            raise ConfigError(
                f"{given}: {len(devices)} devices for {learners} learners; give as many as "
                f"--num-learners {learners}"
            )
        for device in devices:
            if not re.fullmatch(r"cpu|cuda:\d+", device):
                raise ConfigError(f"{given}: {device} must be cpu or cuda:N (N from 0)")


def answer_timeout(config: object) -> float:
    """Return the seconds within which the learner or rank that answers the driver must do so.

    One of several may have to wait for others, which count as lost earlier."""
    if not isinstance(config, LearnerProcessConfig):
        return ANSWER_TIMEOUT
    if isinstance(config, LearnersConfig) and config.num_learners > 1:
        return max(ANSWER_TIMEOUT, 2 * config.learner_timeout)
    return config.learner_timeout


@dataclass(frozen=True)
class PoliciesConfig(Checked):
    num_policies: int = 1
    """Policies of the run, each with its own learner, weights and checkpoints. All actors serve all
    policies: which one acts is drawn anew for each rollout of an environment, or, in a multi-agent
    environment, of an agent; with --no-async-rl they take turns, each agent with another one.
    Agents with other spaces need a policy of their own: policy i plays
    the agents of group i, modulo the number of groups."""
    policy_mapping: str | None = None
    """Your own choice of the policy that acts, package.module:function: it is called as
    function(seat, rollout) where a rollout begins, and returns the id of a policy (default: drawn,
    see --num-policies). seat has actor, split, seat, agent (the name) and group."""
    policies_to_train: tuple[str, ...] = ()
    """Ids of the policies that are trained, such as policy_0,policy_1 (default: all). The others
    are frozen: they act with the weights that they begin with, new ones or those of --init-from
    policy_1=RUN."""
    opponent_pool: int = 0
    """Snapshots of the policy from which opponents are drawn, for self-play in a multi-agent
    environment: one agent of each environment learns, the others act with a snapshot or the newest
    weights, drawn anew for each episode (0: no self-play)."""
    opponent_interval: int = 50_000
    """Env steps between two snapshots of the policy. When the pool is full, one leaves for each new
    one, so that those that stay cover the whole training evenly."""
    opponent_latest: float = 0.5
    """Probability that the opponent acts with the newest weights instead of a snapshot."""
    opponent_draw: Literal["uniform", "hard", "even"] = "uniform"
    """How a snapshot is drawn, w being the policy's win rate against it: all alike; hard: by (1 -
    w)^p, those that are hard to beat; even: by w (1 - w), those of the same strength."""
    opponent_power: float = 2.0
    """The exponent p of --opponent-draw hard."""
    opponent_window: int | None = None
    """Draw from the newest N snapshots of the pool only (default: from all)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "num_policies", low=1)
        check_range(self, "opponent_pool opponent_power", low=0)
        check_range(self, "opponent_interval opponent_window", low=1)
        check_range(self, "opponent_latest", low=0, high=1)
        self._check_mapping()
        self._check_frozen()

    @property
    def to_train(self) -> tuple[str, ...]:
        """The ids in ``policies_to_train``, which may be separated by commas or spaces."""
        return tuple(name for part in self.policies_to_train for name in part.split(",") if name)

    def _check_mapping(self) -> None:
        mapping = self.policy_mapping
        if mapping is not None and not all(mapping.partition(":")):
            raise ConfigError(
                f"--policy-mapping {mapping} must be package.module:function, such as "
                "my_mapping:choose"
            )

    def _check_frozen(self) -> None:
        ids = [f"policy_{i}" for i in range(self.num_policies)]
        for name in ("interval", "latest", "draw", "power", "window"):
            value = getattr(self, f"opponent_{name}")
            if not self.opponent_pool and value != getattr(PoliciesConfig, f"opponent_{name}"):
                raise ConfigError(
                    f"{typed(f'opponent_{name}', value)}: there is no self-play; add "
                    "--opponent-pool N, the number of snapshots that opponents are drawn from"
                )
        unknown = [name for name in self.to_train if name not in ids]
        if unknown or (self.to_train and self.num_policies == 1):
            raise ConfigError(
                f"--policies-to-train {','.join(self.to_train)}: the policies are "
                f"{', '.join(ids)}; --num-policies sets their number"
            )
        twice = [name for name in ids if self.to_train.count(name) > 1]
        if twice:
            raise ConfigError(
                f"--policies-to-train {','.join(self.to_train)}: {', '.join(twice)} is there "
                "twice, and a policy is trained once; name each policy once"
            )


@dataclass(frozen=True)
class EvaluatorConfig(Checked):
    evaluate_interval: int | None = None
    """Env steps between the starts of two evaluations: a separate process plays episodes with a
    copy of the newest weights while training goes on (default: no evaluations). When the training
    is over, the last weights are evaluated, and the run ends after that."""
    evaluate_episodes: int = 10
    """Number of episodes of each evaluation."""
    evaluate_stochastic: bool = False
    """Sample the actions of evaluations, as in training; off: take the most likely actions."""
    num_evaluators: int = 1
    """Processes that divide the episodes of an evaluation among them, by env rows: up to 16, and no
    more than episodes. They play what one would, in less time."""
    evaluate_env: str | None = None
    """Environment that evaluations are played in, like --env: an id, module:Id or
    package.module:factory, with the same observations and actions (default: that of the
    training)."""
    evaluate_env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the environment of evaluations. They override --env-kwargs, unless
    there is an --evaluate-env."""
    evaluate_function: str | None = None
    """Your own evaluation, package.module:function: it is called with an EvaluationContext and
    returns metrics by name, which are reported as eval_<name> (default: the returns of the
    episodes)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "evaluate_env", name_of_env(self.evaluate_env))
        super().__post_init__()
        check_range(self, "evaluate_interval evaluate_episodes num_evaluators", low=1)
        self._check_function()
        if self.evaluate_interval is None:
            self._check_unused()
        most = min(EVALUATION_ROWS, self.evaluate_episodes)
        if self.num_evaluators > most:
            raise ConfigError(
                f"--num-evaluators {self.num_evaluators}: {self.evaluate_episodes} episodes "
                f"(--evaluate-episodes) are played by up to {most} evaluators; lower it to {most}"
            )

    def _check_function(self) -> None:
        function = self.evaluate_function
        if function is not None and not all(function.partition(":")):
            raise ConfigError(
                f"--evaluate-function {function} must be package.module:function, such as "
                "my_evaluation:evaluate"
            )

    def _check_unused(self) -> None:
        """Raise ConfigError for a setting of evaluations in a run without evaluations."""
        usual: dict[str, Any] = {
            "num_evaluators": 1,
            "evaluate_env": None,
            "evaluate_env_kwargs": {},
            "evaluate_function": None,
        }
        for name, default in usual.items():
            value = getattr(self, name)
            if value != default:
                raise ConfigError(
                    f"{typed(name, value)}: there are no evaluations; add --evaluate-interval N"
                )


@dataclass(frozen=True)
class WorkersConfig(Checked):
    worker_niceness: int = 5
    """Niceness of actor workers, 0 to 19: a higher one gives the learner precedence."""
    max_worker_restarts: int = 3
    """Times that killed or hung workers are replaced, in total for each kind: actors, policy
    workers, replay workers, learners, evaluators."""
    max_env_restart_rate: float = 0.1
    """Fraction of the episodes that may be lost because the environment raised an error and was
    rebuilt. Above it, among the last 1,000 episodes and from 20 rebuilds on, the run ends with the
    first error (1: never). Rebuilds are counted as env_restarts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "worker_niceness", low=0, high=19)
        check_range(self, "max_worker_restarts", low=0)
        check_range(self, "max_env_restart_rate", low=0, high=1)


@dataclass(frozen=True)
class SamplerConfig(WorkersConfig):
    num_workers: int | None = None
    """Actor processes (default: as many as there are cores, or fewer, so that each has the same
    number of environments)."""
    num_envs_per_worker: int | None = None
    """Environments of one actor worker or rank, over all its splits (default: an equal share of
    the run's: 16 with --no-async-rl, else 128 for vectors, 32 or 64 for images)."""
    num_splits: int | None = None
    """Parts of an actor's environments; 2 is double buffering: one part steps while the other waits
    for actions (default: 2 where the two can overlap, else 1)."""
    inference: Literal["auto", "inline", "worker"] = "auto"
    """inline: actors compute their own actions; worker: policy workers compute those of all actors
    together (auto: worker with a GPU, else inline)."""
    num_policy_workers: int = 1
    """Policy workers (with --inference worker)."""
    rollout: int | None = None
    """Consecutive env steps of an environment that are learned from together, T (default: as many
    as make a batch of 2048 env steps; with --async-rl 32)."""
    variable_experience: bool = False
    """The env rows of an actor or rank step independently of each other, in threads, so that no row
    waits for a slower one, and fast rows give more of the experience (VER, arXiv 2210.05064). It
    is for simulators that wait or release the interpreter lock. Each split is then one env row,
    unless --num-splits is given; with appo --async-rl is the default."""
    set_workers_cpu_affinity: bool = True
    """Pin each actor worker to a core, or to its share of the cores if its environments step in
    threads or processes of their own: only if there is a core for every actor, and others for the
    workers that are busy at the same time (learners, policy and replay workers, readers of
    datasets), and not under a CPU quota. Ranks are pinned to their shares of the cores. On a
    machine with several NUMA nodes also keep each policy's learner, policy and replay workers on
    one node, and the memory of the slots beside them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "num_workers num_envs_per_worker num_splits", low=1)
        check_range(self, "num_policy_workers rollout", low=1)
        rows, splits = self.num_envs_per_worker, self.num_splits
        if rows is not None and splits is not None and rows < splits:
            raise ConfigError(
                f"--num-envs-per-worker {rows}: each of the {splits} splits needs an env; raise it "
                f"to {splits} or lower --num-splits to {rows}"
            )
