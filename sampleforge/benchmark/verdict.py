"""What limits a run, and which flag to try: by rules, from the stage table and the queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from sampleforge.benchmark.stages import Stage
from sampleforge.runtime.processes import available_cores
from sampleforge.spec import EnvSpec
from sampleforge.topologies.apex.plan import ApexPlan
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.sampler_plan import Plan

WAITS = 0.15
"""Share of its time from which on a process counts as waiting for another."""
EMPTY = 0.1
"""Mean share of free slots below which actors are waiting for slots."""
BUSY = 0.7
"""Share of its time from which on a policy worker counts as busy."""
IDLE_CORES = 0.25
"""Share of all cores' time that must be unused for more processes to pay."""

CHANGES_LEARNING = (
    *("--precision", "--batch-size", "--minibatch-size", "--num-epochs", "--async-rl"),
    *("--num-envs-per-worker", "--num-ranks", "--sync-fraction"),
)
"""Flags that may change what is learned as well."""
SAMPLER = ("emulate", "gather", "forward", "bookkeeping")
LEARNER = ("batch", "learn", "publish")


@dataclass(frozen=True)
class BenchmarkContext:
    """How the run was set up: the resolved flags, and the machine. ``num_envs_per_worker`` is over
    all splits; ``cores`` are those that the run may use; ``ranks``: each worker learns as well,
    from the rollouts of its own envs, together with the others, for which it waits as
    ``sync_fraction`` says. ``max_policy_lag``: None where no version is asked for."""

    num_workers: int
    num_envs_per_worker: int
    num_splits: int
    inference: str
    num_policy_workers: int
    batch_size: int
    num_epochs: int
    precision: str
    device: str
    learner_threads: int
    synchronous: bool
    sampler_only: bool
    images: bool
    cores: int
    minibatch_size: int | None = None
    ranks: bool = False
    sync_fraction: float = 1.0
    max_policy_lag: int | None = None

    @property
    def waits_for_more(self) -> bool:
        """Whether ranks would wait for fewer others with half the ``sync_fraction``."""
        wait_for = [
            ceil(f * self.num_workers) for f in (self.sync_fraction, self.sync_fraction / 2)
        ]
        return self.ranks and wait_for[0] > wait_for[1]

    @classmethod
    def of(
        cls, config: AnyConfig, plan: Plan | ApexPlan, spec: EnvSpec, graph: Graph
    ) -> BenchmarkContext:
        """What the topology made of a config: its ``plan`` and its ``graph``. Flags that the config
        does not have are not to be tried: they count as set to 1, or as left open."""
        has, groups = vars(config), graph.groups
        return cls(
            num_workers=plan.num_workers,
            num_envs_per_worker=plan.num_splits * plan.rows,
            num_splits=plan.num_splits,
            inference=plan.inference,
            num_policy_workers=plan.num_policy_workers,
            batch_size=plan.batch_size,
            num_epochs=has.get("num_epochs") or 1,
            precision=plan.precision,
            device=plan.device,
            learner_threads=plan.learner_threads,
            synchronous=any(group.synchronous for group in groups),
            sampler_only=config.sampler_only,
            images=any(leaf.is_image for leaf in spec.observations.values()),
            cores=len(available_cores()),
            minibatch_size=has.get("minibatch_size"),
            ranks=bool(graph.having("rank")),
            sync_fraction=has.get("sync_fraction", 1.0),
            max_policy_lag=groups[0].max_policy_lag,
        )


@dataclass(frozen=True)
class Verdict:
    """``bottleneck`` is a stage's name, ``reason`` says by which figures, ``flags`` what to try;
    ``warnings``: why the figures may be worthless."""

    bottleneck: str
    reason: str
    flags: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """The bottleneck for a line of the screen."""
        return IN_WORDS[self.bottleneck]


IN_WORDS = {
    "emulate": "env steps",
    "gather": "collecting observations",
    "forward": "policy inference",
    "bookkeeping": "the actors' bookkeeping",
    "hand-over": "waiting for slots or actions",
    "batch": "copying batches",
    "learn": "gradient steps",
    "publish": "publishing weights",
}
"""Stages as they are called on the screen."""


def verdict(
    stages: Sequence[Stage],
    free: float,
    idle_cores: float,
    setting: BenchmarkContext,
    warnings: tuple[str, ...] = (),
) -> Verdict:
    """The stage that limits the run. ``free`` is the mean share of free slots, ``idle_cores`` how
    many cores' time was unused; ``warnings`` are passed on."""
    share = {stage.name: stage.share for stage in stages}
    us = {stage.name: stage.us for stage in stages}
    found, reason = _limit(share, us, free, setting)
    return Verdict(found, reason, _flags(found, idle_cores, setting), warnings)


def _limit(
    share: dict[str, float], us: dict[str, float], free: float, setting: BenchmarkContext
) -> tuple[str, str]:
    """The limiting stage, and why."""
    actors_wait, learner_waits = share["hand-over"], share.get("learner idle", 0.0)
    if setting.sampler_only:
        stage, why = _sampler_limit(share, us)
        return stage, f"no learner: {why}"
    if setting.ranks:
        stage = _largest(us, (*SAMPLER, "hand-over", *LEARNER))
        return stage, f"ranks sample, then learn: {stage} takes {share[stage]:.0%} of their time"
    if setting.synchronous:
        stage, why = _sampler_limit(share, us)
        if actors_wait > learner_waits:
            stage, why = _largest(us, LEARNER), f"the actors wait {actors_wait:.0%} of their time"
        return stage, f"sampling and learning take turns: {why}"
    for_slots = setting.inference == "inline" or free < EMPTY
    if actors_wait > WAITS and for_slots and actors_wait > learner_waits:
        stage = _largest(us, LEARNER)
        return stage, (
            f"the learner is behind: actors wait {actors_wait:.0%} of their time for free slots "
            f"({free:.0%} are free on average), and most of the learner's time goes into {stage}"
        )
    if learner_waits > WAITS:
        stage, why = _sampler_limit(share, us)
        return stage, f"the sampler is behind: the learner waits {learner_waits:.0%}, and {why}"
    stage = _largest(us, SAMPLER + LEARNER)
    return stage, f"all cores are busy; most of the time goes into {IN_WORDS[stage]}"


def _sampler_limit(share: dict[str, float], us: dict[str, float]) -> tuple[str, str]:
    """The stage that limits the sampler, and why."""
    if "policy idle" in share:
        busy = share["gather"] + share["forward"]
        if busy > BUSY:
            stage = _largest(us, ("gather", "forward"))
            return stage, f"the policy workers are busy {busy:.0%} of their time"
        stage = _largest(share, ("emulate", "bookkeeping", "hand-over"))
    else:
        stage = _largest(share, SAMPLER)
    return stage, f"{stage} takes {share[stage]:.0%} of the actors' time"


def _largest(figures: dict[str, float], names: Sequence[str]) -> str:
    return max((name for name in names if name in figures), key=lambda name: figures[name])


def _flags(stage: str, idle_cores: float, setting: BenchmarkContext) -> tuple[str, ...]:
    """What to try against a stage, best first; none where only a faster simulator would help."""
    spare = idle_cores > IDLE_CORES * setting.cores
    cpu = setting.device == "cpu"
    more_envs = f"--num-envs-per-worker {2 * setting.num_envs_per_worker}"
    workers = setting.num_workers + max(1, int(idle_cores))
    more_workers = f"--num-ranks {workers}" if setting.ranks else f"--num-workers {workers}"
    more_rows = more_envs if setting.ranks else f"--batch-size {2 * setting.batch_size}"
    bf16 = setting.images and setting.precision == "fp32"
    half_epochs = f"--num-epochs {setting.num_epochs // 2}"
    minibatch = 2 * (setting.minibatch_size or setting.batch_size)
    larger = setting.batch_size % minibatch == 0
    inline = setting.inference == "inline"
    to_inline = cpu and not setting.ranks
    rules = {
        "emulate": [(spare, more_workers)],
        "gather": [(to_inline, "--inference inline"), (True, more_envs)],
        "forward": [
            (bf16, "--precision bf16"),
            (not inline and not cpu, f"--num-policy-workers {setting.num_policy_workers + 1}"),
            (not inline and cpu, "--inference inline"),
            (inline and spare, more_workers),
            (True, more_envs),
        ],
        "bookkeeping": [(True, more_envs), (inline and setting.num_splits > 1, "--num-splits 1")],
        "hand-over": [
            (setting.waits_for_more, f"--sync-fraction {setting.sync_fraction / 2:g}"),
            (setting.num_splits == 1 and not setting.ranks, "--num-splits 2"),
            (to_inline, "--inference inline"),
            (True, more_envs),
        ],
        "batch": [(True, more_envs)],
        "learn": [
            (setting.num_epochs > 1, half_epochs),
            (larger, f"--minibatch-size {minibatch}"),
            (cpu and spare, f"--learner-threads {setting.learner_threads + 1}"),
            (bf16, "--precision bf16"),
            (True, more_rows),
        ],
        "publish": [(True, more_rows)],
    }
    flags = [flag for applies, flag in rules[stage] if applies]
    if setting.synchronous and not setting.sampler_only and not setting.ranks:
        flags.append("--async-rl")
    return tuple(flags)
