"""The configuration of sampling (SamplerConfig), ranks (RanksConfig) and evaluation
(EvaluatorConfig)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import Checked, ConfigError, check_range


@dataclass(frozen=True)
class RanksConfig(Checked):
    num_ranks: int | None = None
    """Number of processes that each sample and learn (default: one per core). Under torchrun it is
    the number that torchrun starts."""
    rank_timeout: float = 60.0
    """Seconds after which a rank that other ranks wait for counts as lost; a rank that has died is
    noticed at once."""
    max_rank_restarts: int = 3
    """Total number of times that killed or hung ranks are replaced. The group resumes from the last
    weights that all ranks agreed on, or, if no rank survives, from those that rank 0 stored in
    shared memory shortly before. Under torchrun its --max-restarts applies instead."""
    sync_fraction: float = 0.6
    """A rank ends its rollouts early once this fraction of the ranks has finished theirs (1:
    never)."""
    min_rollout_fraction: float = 0.25
    """Least fraction of --rollout at which a rank may end its rollouts early."""
    max_rollout_fraction: float = 1.5
    """Instead of waiting, an early rank samples up to this multiple of --rollout, until enough
    other ranks have finished their rollouts (1: it waits)."""
    keep_driver_weights_in_sync: bool = True
    """The driver has rank 0's weights after every update, for evaluation during training. They are
    in shared memory anyway, at no cost, so this cannot be switched off."""
    variable_experience: bool = False
    """The env rows of a rank step independently, in threads, and share the steps of an update
    (num_envs x rollout, more or fewer as above), so that fast rows give more steps (VER, arXiv
    2210.05064). A split is then one env row, unless --num-splits is given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "num_ranks", low=1)
        check_range(self, "max_rank_restarts", low=0)
        check_range(self, "rank_timeout", low=0, above=True)
        check_range(self, "sync_fraction min_rollout_fraction", low=0, high=1, above=True)
        check_range(self, "max_rollout_fraction", low=1)
        if not self.keep_driver_weights_in_sync:
            raise ConfigError(
                "keep_driver_weights_in_sync is False, but rank 0 publishes its weights in shared "
                "memory for its own actor, where the driver and the evaluator read them for "
                "nothing; leave it out (--evaluate-interval None is a run without evaluator)"
            )


@dataclass(frozen=True)
class EvaluatorConfig(Checked):
    evaluate_interval: int | None = None
    """Env steps between the starts of two evaluations, for which a separate process plays episodes
    with a frozen copy of the newest weights while training goes on (default: no evaluations). An
    evaluation that is in progress at the end is cancelled."""
    evaluate_episodes: int = 10
    """Number of episodes of each evaluation."""
    evaluate_stochastic: bool = False
    """Sample the actions of evaluations, as in training. Off: take the most likely ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "evaluate_interval evaluate_episodes", low=1)


@dataclass(frozen=True)
class SamplerConfig(Checked):
    num_workers: int | None = None
    """Number of actor workers (default: chosen for the machine's cores)."""
    num_envs_per_worker: int | None = None
    """Env rows of one actor worker, over all its splits (default: chosen automatically)."""
    num_splits: int | None = None
    """Parts of an actor's env vector; 2 is double buffering: one part steps while the other waits
    for actions (default: 2, or 1 if nothing could overlap, because the actor does both itself or
    has no second core)."""
    inference: Literal["auto", "inline", "worker"] = "auto"
    """inline: actors compute their own actions; worker: policy workers compute those of all actors
    in batches."""
    num_policy_workers: int = 1
    """Number of policy workers (with --inference worker)."""
    rollout: int | None = None
    """Consecutive env steps of one split in one trajectory slot, T (default: as many as make a
    batch of 2048 env steps; with --async-rl 32)."""
    set_workers_cpu_affinity: bool = True
    """Pin each actor worker to a core (only if there is a core for every actor)."""
    worker_niceness: int = 5
    """Niceness of actor workers, 0 to 19; higher gives the learner precedence."""
    max_worker_restarts: int = 3
    """Total number of times that killed or hung actor workers are replaced."""
    max_env_restart_rate: float = 0.1
    """Fraction of the episodes that may be lost because the environment raised an error and was
    rebuilt. Above it, among the last 1,000 episodes and from 20 rebuilds on, the run ends with the
    first error (1: never). Rebuilds are counted as env_restarts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "num_workers num_envs_per_worker num_splits", low=1)
        check_range(self, "num_policy_workers rollout", low=1)
        check_range(self, "worker_niceness", low=0, high=19)
        check_range(self, "max_worker_restarts", low=0)
        check_range(self, "max_env_restart_rate", low=0, high=1)
        rows, splits = self.num_envs_per_worker, self.num_splits
        if rows is not None and splits is not None and rows < splits:
            raise ConfigError(
                f"num_envs_per_worker is {rows}, but every one of the {splits} splits needs an env "
                f"row; raise it to {splits} or lower num_splits to {rows}"
            )
