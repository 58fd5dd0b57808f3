"""Where the time of a run goes: the stage table, from the workers' counters, and the verdict on it,
which is the bottleneck and the flags to try, by rules on the table and the queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sampleforge.config import ConfigError
from sampleforge.runtime.machine import has_bf16
from sampleforge.runtime.processes import available_cores
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.devices import check_compiler
from sampleforge.topologies.graph import Graph, Role
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.replay.plan import ReplayPlan
from sampleforge.topologies.sampler_plan import Plan

StageRole = Literal["actor", "policy", "learner", "replay"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StageTime:
    """The time of one stage: ``us``, microseconds per collected env step, summed over the processes
    of ``role``, and ``share``, the fraction (0 to 1) of the time of these processes.

    Times are by the clock: with more processes than cores a stage includes the time for which its
    process was not on a core."""

    name: str
    role: StageRole
    us: float
    share: float
    means: str


MEANING = {
    "env step": "in the environments",
    "gather": "collecting observations for a forward pass",
    "forward": "policy forward pass and sampling",
    "hand-over": "actors waiting for slots or actions",
    "bookkeeping": "the rest of the actors' loop",
    "policy idle": "policy workers waiting for requests",
    "insert": "putting rollouts into the replay",
    "draw": "drawing samples, taking new priorities",
    "replay idle": "replay workers waiting for rollouts or requests",
    "batch": "copying slots into batches",
    "learn": "loss, gradients and optimiser steps",
    "publish": "publishing the weights",
    "learner idle": "learner waiting for experience",
}
"""Stage -> where its time goes, as the table shows it."""
RANK_MEANING = {
    "hand-over": "ranks waiting for each other",
    "bookkeeping": "the rest of the sampling loop",
}
"""The meaning of the stages that are others in DD-PPO."""


@dataclass(frozen=True)
class CounterRows:
    """The counter rows of the workers by role: ``actors`` step environments, ``policies`` only
    infer, ``learners`` only learn, ``replays`` hold a shard of the replay. ``ranks``: the actors
    are ranks, which also learn and then wait for each other."""

    actors: Sequence[int]
    policies: Sequence[int]
    learners: Sequence[int]
    ranks: bool = False
    replays: Sequence[int] = ()


def counter_rows_of(graph: Graph) -> CounterRows:
    """Return the counter rows of a graph's workers by role."""

    def rows(*roles: Role) -> list[int]:
        return [node.counter_row for node in graph.having(*roles)]

    return CounterRows(
        rows("actor", "rank", "dataset"),
        rows("policy"),
        rows("learner"),
        bool(rows("rank")),
        rows("replay"),
    )


def stages(counted: dict[str, Floats], rows: CounterRows, seconds: float) -> list[StageTime]:
    """Return the stage table of a window of ``seconds``. ``counted``: what every worker has counted
    in it, name of `sampleforge.topologies.graph.COUNTERS` -> [workers]."""
    steps = max(1.0, float(counted["env_steps"].sum()))
    by_side = {
        "actor": rows.actors,
        "policy": rows.policies,
        "learner": rows.learners,
        "replay": rows.replays,
    }
    remote = bool(rows.policies)

    def spent(name: str, role: StageRole) -> float:
        return float(counted[name][list(by_side[role])].sum())

    def everywhere(name: str) -> float:
        return float(counted[name].sum())

    learning: StageRole = "learner" if rows.learners else "actor"
    inferring: StageRole = "policy" if remote else "actor"
    rest = spent("step_s", "actor") - spent("env_s", "actor") - spent("infer_s", "actor")
    requests = spent("infer_s", "actor") if remote else 0.0
    waits_in_learning = spent("wait_s", "actor") if rows.ranks else 0.0
    meaning = MEANING | (RANK_MEANING if rows.ranks else {})
    seconds_of: list[tuple[str, StageRole, float]] = [
        ("env step", "actor", spent("env_s", "actor")),
        ("gather", inferring, everywhere("gather_s")),
        ("forward", inferring, spent("infer_s", inferring) - everywhere("gather_s")),
        ("hand-over", "actor", spent("wait_s", "actor") + requests),
        ("bookkeeping", "actor", max(0.0, rest)),
        ("policy idle", "policy", spent("wait_s", "policy")),
        ("insert", "replay", spent("insert_s", "replay")),
        ("draw", "replay", spent("draw_s", "replay")),
        ("replay idle", "replay", spent("wait_s", "replay")),
        ("batch", learning, everywhere("batch_s")),
        ("learn", learning, max(0.0, everywhere("learn_s") - waits_in_learning)),
        ("publish", learning, everywhere("publish_s")),
        ("learner idle", "learner", spent("wait_s", "learner")),
    ]
    return [
        StageTime(name, role, s / steps * 1e6, s / (len(by_side[role]) * seconds), meaning[name])
        for name, role, s in seconds_of
        if by_side[role]
    ]


WAITS = 0.15
"""Fraction of its time from which on a process counts as waiting for another process."""
EMPTY = 0.1
"""Mean fraction of free slots below which actors count as waiting for slots."""
BUSY = 0.7
"""Fraction of its time from which on a policy worker or a replay worker counts as busy."""
GPU_FULL = 90.0
"""Percent of the time in which a GPU computes from which on it has no time for more workers."""
IDLE_CORES = 0.25
"""Fraction of the cores' time that must be unused before more processes are advised."""

CHANGES_LEARNING = (
    "--precision",
    "--batch-size",
    "--minibatch-size",
    "--num-epochs",
    "--async-rl",
    "--num-envs-per-worker",
    "--num-ranks",
    "--sync-fraction",
)
"""Flags that may change not only the speed but also what is learned."""
SAMPLER = ("env step", "gather", "forward", "bookkeeping")
LEARNER = ("batch", "learn", "publish")
REPLAY = ("insert", "draw")


@dataclass(frozen=True)
class VerdictContext:
    """The resolved flags of a run, and the machine. ``num_envs_per_worker`` is over all splits;
    ``cores``: number of cores that the run may use; ``ranks``: the workers are ranks, each of which
    also learns from its own rollouts and waits for other ranks by ``sync_fraction``;
    ``bf16_may_pay``: observations are images, and the device has instructions for bfloat16;
    ``compile_may_pay``: the passes by hand of heavy updates on a CPU are not compiled, and can be;
    ``max_policy_lag``: None if experience of any age is learned from; ``num_replay_shards``: those
    of each policy, 0 without a replay; ``one_per_process``: a worker can have one env row only."""

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
    bf16_may_pay: bool
    cores: int
    minibatch_size: int | None = None
    ranks: bool = False
    sync_fraction: float = 1.0
    max_policy_lag: int | None = None
    num_replay_shards: int = 0
    one_per_process: bool = False
    compile_may_pay: bool = False

    @property
    def waits_for_more(self) -> bool:
        """Whether ranks would wait for fewer ranks with half the ``sync_fraction``."""
        wait_for = [
            ceil(f * self.num_workers) for f in (self.sync_fraction, self.sync_fraction / 2)
        ]
        return self.ranks and wait_for[0] > wait_for[1]

    @classmethod
    def of(
        cls, config: AnyConfig, plan: Plan | ReplayPlan, spec: EnvSpec, graph: Graph
    ) -> VerdictContext:
        """Return the context of a run from its config, the topology's ``plan`` and its ``graph``.
        Flags that the config does not have count as 1 or unset, so that they are not advised."""
        has, groups = vars(config), graph.groups
        uncompiled = plan.device == "cpu" and has.get("compile") is False
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
            bf16_may_pay=config.model.has_pixels(spec.observations) and has_bf16(plan.device),
            cores=len(available_cores()),
            minibatch_size=has.get("minibatch_size"),
            ranks=bool(graph.having("rank")),
            sync_fraction=has.get("sync_fraction", 1.0),
            max_policy_lag=groups[0].max_policy_lag,
            num_replay_shards=has.get("num_replay_shards", 0),
            one_per_process=spec.one_per_process,
            compile_may_pay=uncompiled and config.heavy_updates and _can_compile(config, spec),
        )


def _can_compile(config: AnyConfig, spec: EnvSpec) -> bool:
    """Return whether the same run may have --compile."""
    change: Any = {"compile": True}
    try:
        check_compiler("cpu")
        pairing(config).resolve_defaults(replace(config, **change), spec)
    except ConfigError:
        return False
    return True


@dataclass(frozen=True)
class Verdict:
    """The limiting stage (``bottleneck``), the figures that show it (``reason``), the ``flags`` to
    try, best first, and ``warnings``: reasons why the figures may be meaningless."""

    bottleneck: str
    reason: str
    flags: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """The bottleneck as the screen shows it."""
        return IN_WORDS[self.bottleneck]

    @property
    def part(self) -> str:
        """The part of the system that limits the run: simulator, inference, actors, hand-over,
        replay or learner."""
        return PART_OF[self.bottleneck]


IN_WORDS = {
    "env step": "env steps",
    "gather": "collecting observations",
    "forward": "policy inference",
    "bookkeeping": "the actors' bookkeeping",
    "hand-over": "waiting for slots or actions",
    "insert": "inserting into the replay",
    "draw": "drawing samples",
    "batch": "copying batches",
    "learn": "gradient steps",
    "publish": "publishing weights",
}
"""Stage -> its name on the screen."""
PART_OF = {
    "env step": "simulator",
    "gather": "inference",
    "forward": "inference",
    "bookkeeping": "actors",
    "hand-over": "hand-over",
    "insert": "replay",
    "draw": "replay",
    "batch": "learner",
    "learn": "learner",
    "publish": "learner",
}
"""Stage -> the part of the system that it belongs to."""


def verdict(
    table: Sequence[StageTime],
    free: float,
    idle_cores: float,
    context: VerdictContext,
    warnings: tuple[str, ...] = (),
    gpu: float | None = None,
) -> Verdict:
    """Return the verdict on a stage ``table``. ``free``: mean fraction of free slots;
    ``idle_cores``: mean number of idle cores; ``warnings`` are part of the result; ``gpu``: percent
    of the time in which the busiest GPU of the run computes (None: it has none, or the driver does
    not tell)."""
    share = {stage.name: stage.share for stage in table}
    us = {stage.name: stage.us for stage in table}
    stage, reason = _limit(share, us, free, context)
    if gpu is not None:
        reason += f"; the GPU computes {gpu:.0f}% of the time"
    return Verdict(stage, reason, _flags(stage, idle_cores, context, gpu or 0.0), warnings)


def gpu_load(percents: Iterable[float | None]) -> float | None:
    """Return the load of the busiest GPU; None if none is known."""
    return max((percent for percent in percents if percent is not None), default=None)


def policy_busy(table: Sequence[StageTime]) -> float | None:
    """Return the fraction of their time in which policy workers infer; None without any."""
    return next((1 - stage.share for stage in table if stage.name == "policy idle"), None)


def _limit(
    share: dict[str, float], us: dict[str, float], free: float, context: VerdictContext
) -> tuple[str, str]:
    """Return the limiting stage and the reason."""
    actors_wait, learner_waits = share["hand-over"], share.get("learner idle", 0.0)
    if context.sampler_only:
        stage, why = _sampler_limit(share, us)
        return stage, f"no learner: {why}"
    if context.ranks:
        stage = _largest(us, (*SAMPLER, "hand-over", *LEARNER))
        return stage, f"ranks sample, then learn: {stage} takes {share[stage]:.0%} of their time"
    if context.synchronous:
        stage, why = _sampler_limit(share, us)
        if actors_wait > learner_waits:
            stage, why = _largest(us, LEARNER), f"the actors wait {actors_wait:.0%} of their time"
        return stage, f"sampling and learning take turns: {why}"
    busy = share.get("insert", 0.0) + share.get("draw", 0.0)
    if busy > BUSY and max(actors_wait, learner_waits) > WAITS:
        stage = _largest(us, REPLAY)
        return stage, f"the replay workers are busy {busy:.0%} of their time, and others wait"
    for_slots = context.inference == "inline" or free < EMPTY
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
    """Return the stage that limits the sampler, and the reason."""
    if "policy idle" in share:
        busy = share["gather"] + share["forward"]
        if busy > BUSY:
            stage = _largest(us, ("gather", "forward"))
            return stage, f"the policy workers are busy {busy:.0%} of their time"
        stage = _largest(share, ("env step", "bookkeeping", "hand-over"))
    else:
        stage = _largest(share, SAMPLER)
    return stage, f"{stage} takes {share[stage]:.0%} of the actors' time"


def _largest(figures: dict[str, float], names: Sequence[str]) -> str:
    return max((name for name in names if name in figures), key=lambda name: figures[name])


def _flags(stage: str, idle_cores: float, context: VerdictContext, gpu: float) -> tuple[str, ...]:
    """Return the flags to try against a bottleneck, best first; empty if only more cores or a
    faster simulator would help."""
    serves = context.inference != "inline" and context.device != "cpu"
    spare = idle_cores > IDLE_CORES * context.cores
    cpu = context.device == "cpu"
    more_envs = f"--num-envs-per-worker {2 * context.num_envs_per_worker}"
    workers = context.num_workers + max(1, int(idle_cores))
    more_workers = f"--num-ranks {workers}" if context.ranks else f"--num-workers {workers}"
    several = not context.one_per_process
    more_rows = more_envs if context.ranks else f"--batch-size {2 * context.batch_size}"
    bf16 = context.bf16_may_pay and context.precision == "fp32"
    half_epochs = f"--num-epochs {context.num_epochs // 2}"
    minibatch = 2 * (context.minibatch_size or context.batch_size)
    larger = context.batch_size % minibatch == 0
    inline = context.inference == "inline"
    to_inline = cpu and not context.ranks
    more_shards = f"--num-replay-shards {context.num_replay_shards + 1}"
    rules = {
        "env step": [(spare, more_workers)],
        "gather": [(to_inline, "--inference inline"), (several, more_envs)],
        "forward": [
            (bf16, "--precision bf16"),
            (
                serves and gpu < GPU_FULL,
                f"--num-policy-workers {context.num_policy_workers + 1}",
            ),
            (not inline and cpu, "--inference inline"),
            (inline and spare, more_workers),
            (several, more_envs),
        ],
        "bookkeeping": [
            (several, more_envs),
            (inline and context.num_splits > 1, "--num-splits 1"),
        ],
        "hand-over": [
            (context.waits_for_more, f"--sync-fraction {context.sync_fraction / 2:g}"),
            (several and context.num_splits == 1 and not context.ranks, "--num-splits 2"),
            (to_inline, "--inference inline"),
            (several, more_envs),
        ],
        "insert": [(spare, more_shards)],
        "draw": [(spare, more_shards)],
        "batch": [(several, more_envs)],
        "learn": [
            (context.num_epochs > 1, half_epochs),
            (larger, f"--minibatch-size {minibatch}"),
            (cpu and spare, f"--learner-threads {context.learner_threads + 1}"),
            (context.compile_may_pay, "--compile"),
            (bf16, "--precision bf16"),
            (several or not context.ranks, more_rows),
        ],
        "publish": [(several or not context.ranks, more_rows)],
    }
    flags = [flag for applies, flag in rules[stage] if applies]
    if context.synchronous and not context.sampler_only and not context.ranks:
        flags.append("--async-rl")
    return tuple(flags)
