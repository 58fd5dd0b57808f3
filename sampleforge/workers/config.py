"""How experience is collected: processes, rows, splits, rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sampleforge.config import Checked, ConfigError, check_range


@dataclass(frozen=True)
class RanksConfig(Checked):
    num_ranks: int | None = None
    """Processes that each sample and learn (none: one per core). Under torchrun: as many as it
    starts."""
    rank_timeout: float = 60.0
    """Seconds after which a rank that the others wait for counts as lost; one that has died is
    noticed at once."""
    max_rank_restarts: int = 3
    """Killed or hung ranks are replaced so many times, all in all; the group goes on from the last
    weights that all agreed on, or, if no rank survives, from those that rank 0 had kept in shared
    memory a moment before. Under torchrun its --max-restarts counts instead."""
    sync_fraction: float = 0.6
    """A rank ends its rollouts early once this part of the ranks has finished theirs (1: never)."""
    min_rollout_fraction: float = 0.25
    """... but not before this part of --rollout."""
    max_rollout_fraction: float = 1.5
    """Until enough others have theirs a rank that is early goes on sampling, up to so many times
    --rollout, rather than wait (1: it waits)."""
    keep_driver_weights_in_sync: bool = True
    """The driver has rank 0's weights after every update, for evaluation during training. They are
    in shared memory anyway and it costs nothing, so that it cannot be switched off."""
    variable_experience: bool = False
    """The env rows of a rank step independently of each other, in threads, and share the steps of
    an update (num_envs x rollout, more or fewer as above): fast ones give more of them (VER, arXiv
    2210.05064). Each split is one env row then, unless num_splits says otherwise."""

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
    """Env steps between the starts of two evaluations: a process of its own plays episodes with the
    newest weights, frozen, while training goes on (none: no evaluator). One that is under way at
    the end is given up."""
    evaluate_episodes: int = 10
    """Episodes of each evaluation."""
    evaluate_stochastic: bool = False
    """Sample the actions of evaluations, as in training; off: take the most likely ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "evaluate_interval evaluate_episodes", low=1)


@dataclass(frozen=True)
class SamplerConfig(Checked):
    num_workers: int | None = None
    """Actor workers (none: fitted to the machine's cores)."""
    num_envs_per_worker: int | None = None
    """Env rows of one actor worker, over all its splits (none: fitted)."""
    num_splits: int | None = None
    """Parts of an actor's env vector; 2 is double buffering: one part steps while the other waits
    for actions (none: 2, or 1 where an actor does both itself, or has no second core to do it on,
    and nothing could overlap)."""
    inference: Literal["auto", "inline", "worker"] = "auto"
    """inline: actors compute their own actions; worker: policy workers do, for all at once."""
    num_policy_workers: int = 1
    """Policy workers (with worker inference)."""
    rollout: int | None = None
    """Consecutive env steps of one split in one trajectory slot, T (none: as many as make a batch
    of 2048 env steps; with --async-rl 32)."""
    set_workers_cpu_affinity: bool = True
    """Pin each actor worker to a core (only where there is a core for every actor)."""
    worker_niceness: int = 5
    """Niceness of actor workers, 0 to 19; higher gives the learner precedence."""
    max_worker_restarts: int = 3
    """Killed or hung actor workers are replaced so many times, all in all."""
    max_env_restart_rate: float = 0.1
    """Part of the episodes that may be lost because the environment raised an error and was
    rebuilt. Above it, among the last 1,000 episodes and from 20 rebuilds on, the run ends with the
    first error (1: never). They are counted as env_restarts."""

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
