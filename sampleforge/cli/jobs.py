"""The flags of the commands that run jobs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from sampleforge.cli.key_values import KEY_VALUES, Scalar
from sampleforge.tools.jobs.jobs import JobsConfig


@dataclass(frozen=True)
class JobsFlags(JobsConfig):
    """The flags of jobs; the values of --slurm are typed as KEY=VALUE."""

    slurm: Annotated[dict[str, Scalar], KEY_VALUES] = dataclasses.field(default_factory=dict)
    """With --launcher slurm: options of sbatch, such as partition=gpu cpus_per_task=8
    gpus_per_node=1 time=600 (minutes)."""
