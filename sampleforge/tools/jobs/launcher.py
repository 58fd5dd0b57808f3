"""The launcher of jobs that the user has chosen."""

from __future__ import annotations

from pathlib import Path

from sampleforge.config import ConfigError
from sampleforge.tools.jobs.config import JobsConfig
from sampleforge.tools.jobs.jobs import Jobs
from sampleforge.tools.jobs.local import LocalJobs
from sampleforge.tools.jobs.slurm import SlurmJobs


def open_jobs(folder: Path, config: JobsConfig, most: int) -> Jobs:
    """Return the jobs of a sweep or population in ``folder``. ``most``: its number of jobs on Slurm
    unless the user has set one. Raises ConfigError if submitit or Slurm is missing."""
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise ConfigError(
            "sweeps and populations of runs need submitit, which is not installed: pip install "
            '"sampleforge[populations]"'
        ) from error
    if config.launcher == "local":
        return LocalJobs(folder, config.jobs, submitit)
    return SlurmJobs(folder, config.jobs or most, config.slurm, submitit)
