"""The configuration of a run that every topology has (RunConfig): folder, seed, device, stop
conditions, reporting; and of where its reports are sent (TrackingConfig)."""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sampleforge.config import (
    Checked,
    ConfigError,
    check_range,
    check_seed,
    typed,
    with_underscores,
)

_SIGNS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_FORM = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=|>|<)\s*([^\s<>=]+)\s*")


@dataclass(frozen=True)
class StopCondition:
    """Is met by a report whose ``metric`` compares as ``sign`` (>=, <=, >, <) with ``value``."""

    metric: str
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> StopCondition:
        """Return the condition that is written in ``text``. Raises ConfigError."""
        found = _FORM.fullmatch(text)
        value = math.nan
        with contextlib.suppress(ValueError):
            value = float(found[3]) if found else math.nan
        if found is None or math.isnan(value):
            raise ConfigError(
                f"{typed('stop', (text,))}: must be a metric, one of >=, <=, > and <, and a "
                'number, such as --stop "eval_return_mean>=475"'
            )
        return cls(found[1], found[2], value)

    def is_met(self, report: Mapping[str, float]) -> bool:
        """Return whether a report has the metric, with a value that meets the condition."""
        value = report.get(self.metric)
        return value is not None and bool(_SIGNS[self.sign](value, self.value))

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.value:g}"


@dataclass(frozen=True)
class TrackingConfig(Checked):
    track: tuple[Literal["csv", "wandb", "trackio"], ...] = ()
    """Send the reports, the config and the summary to further places, beside metrics.jsonl and
    TensorBoard: csv (metrics.csv in the run folder), wandb (Weights & Biases), trackio. One that
    fails is a warning, and the run goes on."""
    track_project: str = "sampleforge"
    """Project of wandb and trackio."""
    track_name: str | None = None
    """Name of the run in wandb and trackio (default: that of the run folder)."""
    track_group: str | None = None
    """Group of the run in wandb and trackio, such as the seeds of one setting (default: none)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("track_project", "track_name", "track_group"):
            value = getattr(self, name)
            if value != getattr(TrackingConfig, name) and not {"wandb", "trackio"} & {*self.track}:
                raise ConfigError(
                    f"{typed(name, value)}: the run is sent to no service; add --track wandb or "
                    "--track trackio, or leave it out"
                )


Part = Literal["encoder", "core", "actor", "critic"]
"""The parts of a network, by which flags name its weights (`sampleforge.models.parts`)."""


@dataclass(frozen=True)
class InitConfig(TrackingConfig):
    init_from: str | dict[str, str] | None = None
    """Begin with the weights of another run, of any algorithm, and the statistics that normalise
    its observations: its folder, folder@best for its best checkpoint, or folder:id for a policy of
    several. All policies that are trained begin with them; policy_1=folder is for this policy
    alone, which may be a frozen one. A resumed run goes on from its own checkpoint (default: new
    weights)."""
    init_parts: tuple[Part, ...] = ()
    """Parts of the network that are taken: encoder, core, actor (the heads of the policy, or of
    Q-values), critic (default: all)."""
    init_mismatch: Literal["refuse", "new"] = "refuse"
    """What becomes of weights that the other run has not, or in another shape: an error, or new
    weights."""
    freeze: tuple[Part, ...] = ()
    """Parts of the network that are not trained (default: none)."""
    unfreeze_after: int | None = None
    """Env steps of the run after which the parts that --freeze names are trained, too (default:
    never)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init_from is None and self.init_parts:
            raise ConfigError(f"{typed('init_parts', self.init_parts)}: give --init-from, too")
        if self.init_from is None and self.init_mismatch != "refuse":
            raise ConfigError("--init-mismatch new: give --init-from, too")
        check_range(self, "unfreeze_after", low=1)
        if self.unfreeze_after is not None and not self.freeze:
            raise ConfigError(
                f"--unfreeze-after {self.unfreeze_after}: no part is frozen; name it with --freeze"
            )


@dataclass(frozen=True)
class RunConfig(InitConfig):
    heavy_updates: ClassVar[bool] = False
    """Whether updates take so long beside env steps that a GPU pays for the networks of vectors,
    too."""
    run_dir: str | None = None
    """Folder of the run (default: runs/<env>-<algo>-<date>). The same command resumes the run."""
    resume: Literal["auto", "never", "must"] = "auto"
    """auto: resume if there is a checkpoint; must: fail if there is none; never: refuse a folder
    that has one."""
    seed: int | None = None
    """Seed of everything, at most 4294967295 (default: a random one, kept in the run folder)."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N, of the learner and the policy workers."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16: autocast of forward and backward passes; what learns keeps weights in fp32. auto: bf16
    for images where the device has instructions for it, else fp32."""
    train_for_env_steps: int | None = None
    """Stop after N environment steps, such as 1e6 (default: no limit)."""
    train_for_seconds: float | None = None
    """Stop after N seconds of training, earlier parts of a resumed run included (default: no
    limit)."""
    stop: tuple[str, ...] = ()
    """End the run at the first report whose metric meets a condition, such as
    "eval_return_mean>=475" (with >=, <=, > or <); given several times, any of them suffices."""
    serial: bool = False
    """Run all workers in turn in one process: deterministic, for debugging."""
    benchmark: bool = False
    """Measure the throughput of the simulator alone and of the system, report it, exit. The length
    is --benchmark-seconds; the stop conditions of training do not count."""
    benchmark_seconds: float = 20.0
    """Seconds that each measurement of --benchmark takes."""
    benchmark_peak: bool = True
    """Measure the simulator alone first, as the rate to reach; off: the system only."""
    anneal: dict[str, str] = field(default_factory=dict)
    """Schedules of hyperparameters over the training, NAME=SCHEDULE: linear or cosine (from the
    hyperparameter's value to 0), linear:FIRST:LAST, cosine:FIRST:LAST, constant, or a function of
    the progress (0 to 1), package.module:function. The flag may be repeated."""
    sampler_only: bool = False
    """Collect experience and drop it, to measure the speed of sampling alone."""
    report_interval: float = 5.0
    """Seconds between reports (with --serial: thousands of env steps). The first reports come
    earlier: after 0.25, then after a fifth of the training so far."""
    metrics_window: int = 100
    """Episodes over which return_mean, length_mean and the statistics of an environment are
    averaged. A best checkpoint by training episodes needs a full window."""
    checkpoint_interval: float = 120.0
    """Seconds between checkpoints. The first one is written after 30 s, if there was an update by
    then."""
    keep_checkpoints: int = 3
    """Latest checkpoints to keep, beside the best one and the milestones."""
    milestone_interval: int | None = None
    """Env steps between checkpoints that are never removed (default: none are kept)."""
    callbacks: tuple[str, ...] = ()
    """Callbacks of your own, package.module:Class each: classes derived from sampleforge.Callback,
    see docs/callbacks.md. The flag may be repeated."""
    quiet: bool = False
    """Print nothing but errors and the last line."""
    debug: bool = False
    """Check every hand-over between workers, poison freed slots, print the wiring."""

    @property
    def has_end(self) -> bool:
        """Whether there is a stop condition from which progress can be told."""
        return bool(self.train_for_env_steps or self.train_for_seconds or self.benchmark)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed(self)
        check_range(self, "train_for_env_steps keep_checkpoints milestone_interval", low=1)
        check_range(self, "metrics_window", low=1)
        object.__setattr__(self, "anneal", with_underscores(self.anneal, "--anneal"))
        for text in self.stop:
            StopCondition.parse(text)
        check_range(self, "train_for_seconds benchmark_seconds", low=0, above=True)
        check_range(self, "report_interval checkpoint_interval", low=0, above=True)
        for name in self.callbacks:
            if not all(name.partition(":")):
                raise ConfigError(
                    f"--callbacks {name}: must be package.module:Class, such as "
                    "my_callbacks:Curriculum"
                )
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(
                f"{typed('device', self.device)}: must be auto, cpu, cuda or cuda:N (N from 0)"
            )
        if self.resume == "must" and self.run_dir is None:
            raise ConfigError(
                "--resume must: there is no --run-dir, and without one every run gets a new "
                "folder; give the folder to resume"
            )
