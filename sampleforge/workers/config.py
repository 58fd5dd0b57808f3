"""How experience is collected: processes, rows, splits, rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SamplerConfig:
    num_workers: int | None = None
    """Actor workers (none: fitted to the machine's cores)."""
    num_envs_per_worker: int | None = None
    """Env rows of one actor worker, over all its splits (none: fitted)."""
    num_splits: int = 2
    """Parts of an actor's env vector; 2 is double buffering: one part steps while the other waits
    for actions."""
    inference: Literal["auto", "inline", "worker"] = "auto"
    """inline: actors compute their own actions; worker: policy workers do, for all actors at once."""
    num_policy_workers: int = 1
    """Policy workers (with worker inference)."""
    rollout: int = 32
    """Consecutive env steps of one split in one trajectory slot (T)."""
    set_workers_cpu_affinity: bool = True
    """Pin each actor worker to a core (only where there is a core for every actor)."""
    worker_niceness: int = 0
    """Niceness of actor workers, 0 to 19; higher gives the learner precedence."""
