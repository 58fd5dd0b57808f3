"""The configuration of the jobs of a sweep or population (JobsConfig). It imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sampleforge.config import Checked, ConfigError, check_range


@dataclass(frozen=True)
class JobsConfig(Checked):
    launcher: Literal["local", "slurm"] = "local"
    """Where the runs take place: in processes of this machine, or as jobs of a Slurm cluster."""
    jobs: int | None = None
    """Runs at a time (default: one per core; with slurm all members of a population, 4 trials of a
    sweep)."""
    slurm: dict[str, str | int | float | bool] = field(default_factory=dict)
    """With --launcher slurm: options of sbatch, such as partition=gpu cpus_per_task=8
    gpus_per_node=1 time=600 (minutes)."""
    leave_jobs: bool = False
    """With --launcher slurm: Ctrl-C ends only this command; its jobs go on, and the same command
    takes them over (off: Ctrl-C cancels them)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "jobs", low=1)
        if self.launcher == "slurm":
            return
        if self.slurm:
            raise ConfigError("--slurm: needs --launcher slurm; local jobs have no such options")
        if self.leave_jobs:
            raise ConfigError(
                "--leave-jobs: needs --launcher slurm; local jobs end with this command"
            )
