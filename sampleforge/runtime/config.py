"""What a run is, whatever its topology: folder, seed, device, stop conditions, reporting."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sampleforge.config import Checked, ConfigError, check_range


@dataclass(frozen=True)
class RunConfig(Checked):
    run_dir: str | None = None
    """Folder of the run (none: runs/<env>-<algo>-<date>); the same command resumes it."""
    resume: Literal["auto", "never", "must"] = "auto"
    """auto: resume if there is a checkpoint; must: fail if there is none; never: refuse a folder
    that has one."""
    seed: int | None = None
    """Seed of everything (none: a random one, recorded in the run folder)."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N, of the learner and the policy workers."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16: autocast of forward and backward passes; weights and losses stay fp32. auto: bf16
    for images where the device computes in it itself, else fp32."""
    train_for_env_steps: int | None = None
    """Stop after so many env steps."""
    train_for_seconds: float | None = None
    """Stop after so many seconds of training, earlier runs of the same folder counted in."""
    serial: bool = False
    """All workers in turn in one process: deterministic, for debugging."""
    benchmark: bool = False
    """Measure throughput (the simulator's own, then the system's), report, exit. How long is
    --benchmark-seconds; the stop conditions of training do not count."""
    benchmark_seconds: float = 20.0
    """Length of each measurement of --benchmark."""
    benchmark_peak: bool = True
    """Measure the simulator alone first, as what there is to reach (off: the system only)."""
    sampler_only: bool = False
    """Collect experience and throw it away: the sampler's own speed."""
    report_interval: float = 5.0
    """Seconds between reports (in serial mode: thousands of env steps)."""
    checkpoint_interval: float = 120.0
    """Seconds between checkpoints; the first one is written after 30 s, if something was learned by
    then."""
    keep_checkpoints: int = 3
    """Latest checkpoints to keep, beside the best one and the milestones."""
    milestone_interval: int | None = None
    """Env steps between checkpoints that are kept for good (none: no milestones)."""
    quiet: bool = False
    """Print nothing but errors and the last line."""
    debug: bool = False
    """Assert every hand-over, poison freed slots, log more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "seed", low=0)
        check_range(self, "train_for_env_steps keep_checkpoints milestone_interval", low=1)
        check_range(self, "train_for_seconds benchmark_seconds", low=0, above=True)
        check_range(self, "report_interval checkpoint_interval", low=0, above=True)
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(
                f"device is {self.device!r}, but must be auto, cpu, cuda or cuda:N (N from 0)"
            )
        if self.resume == "must" and self.run_dir is None:
            raise ConfigError(
                "resume is 'must', but there is no run_dir, and without one every run gets a new "
                "folder; give the folder to resume"
            )
