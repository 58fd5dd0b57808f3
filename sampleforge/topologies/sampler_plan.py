"""The sizes of the sampler of a run, chosen for the machine, and the policy lag that follows from
sizes, both checked before the run starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from sampleforge.algorithms.config import LearnerConfig
from sampleforge.config import ConfigError, typed
from sampleforge.models.config import ModelConfig
from sampleforge.ops.distributions import action_layout
from sampleforge.rollouts.slots import SlotShape
from sampleforge.runtime.config import RunConfig
from sampleforge.runtime.machine import (
    bf16_instructions,
    has_bf16,
    human_bytes,
    resolve_device,
    shared_memory_free,
    this_machine,
)
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import AnyConfig, SamplingConfig, SlotsRunConfig

C = TypeVar("C")

LEAST_LIMIT = 100
"""Least value of an automatic limit, in versions; Sample Factory's default."""
MARGIN = 2
"""Factor of an automatic limit over the expected lag, because slow actors hand over rows that are
older than expected."""
MOSTLY_STALE = 0.5
"""Fraction of stale rows above which the user is warned."""


@dataclass(frozen=True)
class PolicyLag:
    """The expected policy lag and its limit.

    The lag of a row is the number of gradient steps (policy versions) between its action and the
    batch that it is in. If an asynchronous learner is slower than the actors, all slots wait for
    it, and the lag in updates is the number of batches that these slots make. One update is epochs
    x minibatches versions.

    ``batches``: the expected lag in updates of a batch, each of which takes ``steps_per_batch``
    gradient steps. ``limit``: rows that are older, in versions, are not learned from.
    ``limit_chosen``: the limit was chosen automatically."""

    batches: float
    steps_per_batch: int
    limit: int
    limit_chosen: bool

    @property
    def versions(self) -> int:
        """The expected lag in policy versions."""
        return math.ceil(self.batches * self.steps_per_batch)

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the user about the limit."""
        if not self.limit_chosen or self.limit == LEAST_LIMIT:
            return ()
        return (
            f"--max-policy-lag {self.limit}, raised from {LEAST_LIMIT}: the expected lag is "
            f"{self.versions} versions "
            f"({self.batches:.3g} batches x {self.steps_per_batch} gradient steps)",
        )


def policy_lag(config: LearnerConfig, batch_size: int, batches: float) -> PolicyLag:
    """Return the policy lag of a run whose rows are expected to be ``batches`` updates old."""
    steps = (config.num_epochs or 1) * minibatches(config, batch_size)
    limit = config.max_policy_lag
    if limit is None:
        adapted = max(LEAST_LIMIT, MARGIN * math.ceil(batches * steps))
        return PolicyLag(batches, steps, adapted, limit_chosen=True)
    return PolicyLag(batches, steps, limit, limit_chosen=False)


def minibatches(config: LearnerConfig, batch_size: int) -> int:
    """Return the number of gradient steps per epoch."""
    return max(1, batch_size // (config.minibatch_size or batch_size))


def check_asynchronous_lag(config: SlotsRunConfig, lag: PolicyLag) -> None:
    """Raise ConfigError if most rows would be too old to learn from."""
    if lag.versions <= lag.limit or config.sampler_only:
        return
    raise ConfigError(
        f"--max-policy-lag {lag.limit}: the expected lag is {lag.versions} policy versions "
        f"({lag.batches:.3g} batches in circulation x {lag.steps_per_batch} gradient steps per "
        f"batch, with --num-epochs {config.num_epochs}), and older experience is not learned from; "
        f"use --max-policy-lag {MARGIN * lag.versions} or leave it out, train synchronously "
        "(--no-async-rl), or lower --num-epochs or --num-batches-to-accumulate"
    )


def stale_warning(
    fraction: float, limit: int, lag: float, lag_batches: float, *, synchronous: bool
) -> str | None:
    """Return the warning about a ``fraction`` of stale rows, given the mean lag in versions
    (``lag``) and in updates of a batch; None if it is not needed."""
    if fraction <= MOSTLY_STALE:
        return None
    remedy = "raise --max-policy-lag or lower --num-epochs"
    if not synchronous:
        remedy = "raise --max-policy-lag, lower --num-epochs, or use --no-async-rl"
    return (
        f"{fraction:.0%} of the experience is older than --max-policy-lag {limit} and is not "
        f"learned from (mean lag {lag:.1f} versions, {lag_batches:.1f} updates of a batch); "
        f"{remedy}"
    )


MIN_BATCH = 1024  # env steps; Sample Factory's default
MOST_THREADS_OF_PLANES = 4
"""Most threads of a learner with convolutions of small planes, such as MinAtar's, where a minibatch
of 256 takes one core 20 ms. Two threads are the most that has been measured."""
WIDE, MOST_THREADS_OF_WIDE = 256, 2
"""Units of each layer from which on an MLP's products are worth dividing, and the most threads that
has been measured (benchmarks/results/sac.md): two threads take 1.5 times as many updates of SAC and
1.3 times as many minibatches of PPO, but with 128 units 1.2 and 1.1 times on cores that are idle
else, and none on two cores beside actors."""
ROWS_OF_VECTORS, ROWS_OF_IMAGES, MOST_ROWS_OF_IMAGES = 128, 32, 64
"""Env rows of a run that samples while it learns, on any number of cores, so that learning does not
depend on the machine. For vectors the cost of a forward pass is mostly fixed, for images it grows
with the rows. An image env without a vector env has an engine of its own, which takes memory and
time to start; one that steps by itself has twice as many rows."""
CORES_PER_POLICY_WORKER = 8
"""Cores of the machine for each one that is left to a policy worker on a GPU."""
ROWS_OF_A_SERVED_ACTOR, ROWS_BESIDE_A_GPU = 8, 128
"""Env rows of each actor, and the most of all actors together, where policy workers on a GPU have
cores to themselves: with 8, 15 actors reach 96% of the rate of 16 simulators of Breakout; with 4
they wait for answers (benchmarks/results/gpu.md)."""
LEARNER_SHARE = 0.4
"""Fraction of the cores for the threads of a learner with convolutions while sampling goes on:
about what its passes take of the time of an env step of Breakout
(benchmarks/results/throughput.md)."""
INDEPENDENT = "Env rows step independently, each split in a thread (--variable-experience)"


@dataclass(frozen=True)
class SamplerPlan:
    """The sizes of the part of a run that collects experience."""

    num_workers: int
    num_splits: int  # per worker
    rows: int  # per split
    num_seats: int  # of the environment: its agents, or 1
    rollout: int
    inference: Literal["inline", "worker"]
    num_policy_workers: int
    device: str
    precision: str
    acting_precision: str  # of the forward passes that choose actions
    reasons: tuple[str, ...]
    actor_cores: int = field(default=0, kw_only=True)
    """Number of cores that each actor or rank is pinned to; 0: it may run on all."""
    env_threads: int = field(default=1, kw_only=True)
    """Number of threads in which the rows of a split may step."""
    policy_cores: int = field(default=0, kw_only=True)
    """Number of cores that are left to policy workers, one for each."""
    records: bool = field(default=False, kw_only=True)
    """Whether the policies keep what a recording needs."""
    variable: bool = field(default=False, kw_only=True)
    """Whether the splits of an actor step independently, and those that wait share a forward
    pass."""

    @property
    def num_actors(self) -> int:
        """Number of workers that fill slots, with Ape-X also those that read datasets."""
        return self.num_workers

    @property
    def servers(self) -> int:
        """Number of workers of one policy that serve its actors and learners."""
        return self.num_policy_workers

    @property
    def max_policy_lag(self) -> int | None:
        """Largest lag of experience that is learned from, in policy versions (None: any)."""
        return None

    @property
    def sizes(self) -> tuple[str, ...]:
        """Further sizes that a user should see, as text."""
        return ()

    @property
    def chosen(self) -> dict[str, Any]:
        """The values of config fields that were chosen for this machine, but for the number of
        workers."""
        return {
            "num_envs_per_worker": self.num_splits * self.rows,
            "num_splits": self.num_splits,
            "inference": self.inference,
            "num_policy_workers": max(1, self.num_policy_workers),
            "device": self.device,
            "precision": self.precision,
        }

    @property
    def envs(self) -> int:
        """Number of env rows of the run."""
        return self.num_workers * self.num_splits * self.rows

    @property
    def num_streams(self) -> int:
        """Number of streams of an actor: a split has one for each seat."""
        return self.num_splits * self.num_seats

    @property
    def agent_rows(self) -> int:
        """Number of the agents of all env rows of the run."""
        return self.envs * self.num_seats

    def sampler_sizes(self, worker: str) -> list[str]:
        """Return the numbers of workers and env rows as text; ``worker``: the word for one that
        steps environments."""
        several = "" if self.num_workers == 1 else "s"
        parts = [f"{self.num_workers} {worker}{several} x {self.num_splits * self.rows} envs"]
        if self.num_policy_workers:
            several = "" if self.num_policy_workers == 1 else "s"
            parts.append(f"{self.num_policy_workers} policy worker{several}")
        return parts

    def describe_envs(self, workers: str = "workers") -> str:
        """Return the number of env rows and its factors as text."""
        splits = f"{self.num_splits} split{'s' if self.num_splits > 1 else ''}"
        envs = f"{self.envs} envs = {self.num_workers} {workers} x {splits} x {self.rows} rows"
        return envs if self.num_seats == 1 else f"{envs}, with {self.num_seats} agents each"


@dataclass(frozen=True)
class Plan(SamplerPlan):
    """The result of `plan_slots` or `plan_ranks`. Counts are for the whole run unless stated
    otherwise."""

    slots: int
    slots_per_batch: int
    synchronous: bool
    learner_threads: int
    slot_bytes: int  # of all slots together
    lag: PolicyLag

    @property
    def batch_size(self) -> int:
        """Env steps per learner batch."""
        return self.slots_per_batch * self.rows * self.rollout

    @property
    def chosen(self) -> dict[str, Any]:
        return {**super().chosen, "max_policy_lag": self.lag.limit}

    @property
    def max_policy_lag(self) -> int:
        return self.lag.limit

    @property
    def shared_bytes(self) -> int:
        """Shared memory for the experience of one policy."""
        return self.slot_bytes


def one_row_each(config: C, spec: EnvSpec) -> C:
    """Return ``config`` with one env row for each worker or rank, if a process can have no second
    one. Raises ConfigError if more are asked for, or if the process of a serial run would have
    more."""
    if not spec.one_per_process or not isinstance(config, SamplingConfig):
        return config
    why = f"a process can have one {spec.env_id} only, as its probe has found"
    for name in ("num_envs_per_worker", "num_splits"):
        if (rows := getattr(config, name) or 1) > 1:
            raise ConfigError(
                f"{typed(name, rows)}: {why}; leave it out, and have more rows by more workers "
                "(--num-workers, with ranks --num-ranks)"
            )
    beside = [("num_workers", config.num_workers)] if (config.num_workers or 1) > 1 else []
    if config.evaluate_interval is not None:
        beside.append(("evaluate_interval", config.evaluate_interval))
    if config.serial and beside:
        raise ConfigError(
            f"--serial {typed(*beside[0])}: {why}, and with --serial all workers are in one; leave "
            "out one of the two"
        )
    return replace(config, num_envs_per_worker=1)


def plan_sampler(
    config: SamplingConfig,
    spec: EnvSpec,
    device: str,
    fills: int | None = None,
    others: int = 0,
) -> SamplerPlan:
    """Return the sizes of the sampler, chosen for the machine.

    If the number of env rows is not set, it is chosen so that whole rollouts of a split make
    ``fills`` env steps, if possible. ``others``: the number of workers on the CPU beside actors and
    policy workers. Raises ConfigError for sizes that do not fit together."""
    variable = config.variable_experience
    if variable and spec.num_seats > 1:
        raise ConfigError(
            f"--variable-experience: {spec.env_id} has {spec.num_seats} agents, which step "
            "together; leave it out"
        )
    cores, image = this_machine().cores, config.model.has_pixels(spec.observations)
    inference, why = _inference(config, device, image)
    policy_cores = _policy_cores(config, acts_on_gpu=inference == "worker" and device != "cpu")
    if policy_cores:
        workers, envs = _beside_a_gpu(config, spec, cores - policy_cores - others)
    else:
        workers, envs = _workers_and_envs(config, spec)
    overlaps = inference == "worker" or overlaps_inline(spec, cores, workers)
    usual = 2 if overlaps and envs % 2 == 0 else 1
    splits = config.num_splits or (envs if variable else usual)
    if config.num_envs_per_worker is None:
        envs = math.ceil(envs / splits) * splits
        assert config.rollout is not None, "resolve_defaults comes first"
        fewer = range(envs, 0, -splits)
        if fills is not None:
            filling = (n for n in fewer if fills % (n // splits * config.rollout) == 0)
            envs = next(filling, envs)
    if envs % splits:
        raise ConfigError(
            f"--num-envs-per-worker {envs} cannot be split into {splits} equal parts; "
            f"use a multiple of {splits} or another --num-splits"
        )
    precision, why_precision = choose_precision(config, device, image)
    acts_on = device if inference == "worker" else "cpu"
    assert config.rollout is not None, "resolve_defaults comes first"
    return SamplerPlan(
        num_workers=workers,
        num_splits=splits,
        rows=envs // splits,
        num_seats=spec.num_seats,
        rollout=config.rollout,
        inference=inference,
        num_policy_workers=config.num_policy_workers if inference == "worker" else 0,
        device=device,
        precision=precision,
        acting_precision=choose_precision(config, acts_on, image)[0],
        policy_cores=policy_cores if may_pin(config) else 0,
        reasons=(why, why_precision, *([INDEPENDENT] if variable else [])),
        records=config.record is not None,
        variable=variable,
    )


def _workers_and_envs(config: SamplingConfig, spec: EnvSpec) -> tuple[int, int]:
    """Return the numbers of actors and of env rows of each: `usual_rows` in total, unless the user
    asks for others."""
    rows, given = usual_rows(config, spec), config.num_envs_per_worker
    cores = 1 if config.serial else this_machine().cores
    workers = config.num_workers or (cores if given else most_workers(rows, cores))
    return workers, given or math.ceil(rows / workers)


def _beside_a_gpu(config: SamplingConfig, spec: EnvSpec, cores: int) -> tuple[int, int]:
    """Return the numbers of actors and of env rows of each where policy workers on a GPU have cores
    to themselves: an actor on each of the other ``cores``, with a power of two of rows, so that
    batches of the same size can be made of their rollouts on any number of cores."""
    workers = config.num_workers or max(1, min(cores, ROWS_BESIDE_A_GPU // 2))
    served = min(ROWS_OF_A_SERVED_ACTOR * workers, ROWS_BESIDE_A_GPU) // spec.num_seats
    each = max(usual_rows(config, spec), served) / workers
    return workers, config.num_envs_per_worker or 1 << int(math.log2(max(1.0, each)))


def usual_rows(config: SamplingConfig, spec: EnvSpec) -> int:
    """Return the number of env rows of a run that samples while it learns, where nothing says
    otherwise. The agents of an environment are rows of the forward pass and of the batch as
    well; two environments at least give two actors something to do."""
    rows = ROWS_OF_VECTORS
    if config.model.has_pixels(spec.observations):
        rows = MOST_ROWS_OF_IMAGES if spec.asynchronous else ROWS_OF_IMAGES
    return max(2, rows // spec.num_seats)


def most_workers(rows: int, cores: int) -> int:
    """Return the largest number of workers, at most one per core, that have equal shares of the
    ``rows``."""
    return max(n for n in range(1, min(rows, cores) + 1) if rows % n == 0)


def may_pin(config: SamplingConfig) -> bool:
    """Return whether workers may be pinned to cores at all: as asked, and as the machine can."""
    return config.set_workers_cpu_affinity and this_machine().pins and not config.serial


def _policy_cores(config: SamplingConfig, *, acts_on_gpu: bool) -> int:
    """Return the number of cores without an actor for the run's policy workers: one for each on a
    GPU, if that leaves most of the cores. On cores that actors share with them, an answer comes
    late, because an actor that is woken runs first."""
    workers = getattr(config, "num_policies", 1) * config.num_policy_workers
    enough = this_machine().cores >= CORES_PER_POLICY_WORKER * workers
    return workers if acts_on_gpu and enough and not config.serial else 0


def with_actor_cores(
    config: SamplingConfig, spec: EnvSpec, sampler: SamplerPlan, busy: int
) -> SamplerPlan:
    """Return the plan with the cores that each actor has, if ``busy`` threads on the CPU run at the
    same time: each of these, and each policy worker that has a core to itself, has a core without a
    pinned actor, which could not make room for it. An actor whose environments step in threads or
    processes of their own has an equal share of the cores, others one core. None is pinned if there
    are fewer, and if env rows step independently, whose threads may use all."""
    if not sampler.num_workers or config.variable_experience:
        return sampler
    share = max(0, (this_machine().cores - sampler.policy_cores - busy) // sampler.num_workers)
    of_each = share if spec.asynchronous else min(1, share)
    threads = env_threads(spec, of_each, sampler.num_splits, sampler.rows)
    pinned = of_each if may_pin(config) else 0
    return replace(sampler, actor_cores=pinned, env_threads=threads)


def env_threads(spec: EnvSpec, cores: int, splits: int, rows: int) -> int:
    """Return the number of threads in which the ``rows`` of each of ``splits`` may step, if their
    actor or rank has so many ``cores``: more threads than cores gain nothing."""
    return max(1, min(rows, cores // splits)) if spec.asynchronous else 1


def recorded_parameters(config: SamplingConfig, spec: EnvSpec) -> int:
    """Return the number of parameters of the actions' distribution that slots store for a
    recording; 0 if nothing is recorded."""
    if config.record is None:
        return 0
    return action_layout(spec.actions).head_size(state_std=True)


def overlaps_inline(spec: EnvSpec, cores: int, workers: int) -> bool:
    """Return whether environments can step while their actor, one of ``workers``, computes actions:
    they step asynchronously, and there is a core for it. Without such a core, splits only make
    forward passes smaller (measured with Breakout on two cores: one split is 1.1 times as fast)."""
    return spec.asynchronous and cores >= 2 * workers


def run_device(config: AnyConfig, spec: EnvSpec) -> str:
    """Return the device of a run's learners and policy workers. auto takes a GPU for images, and
    where updates are heavy (SAC: 770 a second on an H200, 103 on a core beside it); otherwise the
    networks of vectors are so small that a GPU's answer takes longer than their passes. Raises
    ConfigError if the machine does not have the device."""
    return resolve_device(config.device, on_gpu=pays_on_gpu(config, spec))


def pays_on_gpu(config: AnyConfig, spec: EnvSpec) -> bool:
    """Return whether auto takes a GPU where there is one."""
    image = any(config.model.has_pixels(group.observations) for group in spec.agent_groups)
    return image or config.heavy_updates


def cores_beside_actors(config: SamplingConfig, *, synchronous: bool) -> int:
    """Return the number of cores that the learners of a run have to themselves: all of them if
    sampling stops meanwhile (``synchronous``), else `LEARNER_SHARE`; one in a serial run."""
    cores = 1 if config.serial else this_machine().cores
    return cores if synchronous else max(1, round(LEARNER_SHARE * cores))


def learner_threads(model: ModelConfig, spec: EnvSpec, cores: int) -> int:
    """Return the default number of threads of a learner that has ``cores`` to itself: one per core
    for pixels, up to `MOST_THREADS_OF_PLANES` for other convolutions (MinAtar with two threads: 1.6
    times as fast), and for an MLP up to `MOST_THREADS_OF_WIDE`, if its layers are `WIDE`."""
    if model.has_pixels(spec.observations):
        return max(1, cores)
    if model.has_convolved(spec.observations) and model.encoder != "mlp":
        return max(1, min(cores, MOST_THREADS_OF_PLANES))
    if min(model.widths, default=0) >= WIDE:
        return max(1, min(cores, MOST_THREADS_OF_WIDE))
    return 1


def _inference(
    config: SamplingConfig, device: str, image: bool
) -> tuple[Literal["inline", "worker"], str]:
    if config.inference != "auto":
        where = "the actors" if config.inference == "inline" else "policy workers"
        return config.inference, f"Inference in {where} (as given)"
    if device.startswith("cuda"):
        if config.heavy_updates and not image:
            return "inline", "Inference in the actors, on the CPU (small networks)"
        return "worker", "Inference in policy workers (one GPU serves all actors)"
    return "inline", "Inference in the actors (no GPU)"


def choose_precision(config: RunConfig, device: str, image: bool) -> tuple[str, str]:
    """Return the precision of forward and backward passes, and the reason as text."""
    if config.precision != "auto":
        return config.precision, f"Precision {config.precision} (as given)"
    if not image:
        return "fp32", "Precision fp32 (small layers gain nothing from bf16)"
    if device.startswith("cuda"):
        if has_bf16(device):
            return "bf16", "Precision bf16 (images on a GPU)"
        return (
            "fp32",
            "Precision fp32 (a GPU below compute capability 8.0 has no bf16 convolutions)",
        )
    # Measured on a CPU with bf16 instructions: 1.4 times as fast, with the same returns
    # (benchmarks/results/precision.md).
    instructions = bf16_instructions()
    if instructions:
        return "bf16", f"Precision bf16 (images on a CPU with {instructions[0]})"
    return "fp32", "Precision fp32 (this CPU has no instructions for bf16)"


def check_memory(plan: Plan, shape: SlotShape, flags: str) -> None:
    """Raise ConfigError, which names the ``flags`` to lower, if the slots do not fit into shared
    memory."""
    free = shared_memory_free()
    if free is not None and plan.slot_bytes > 0.9 * free:
        raise ConfigError(
            f"the trajectory slots need {human_bytes(plan.slot_bytes)} of shared memory "
            f"({plan.slots} slots of {shape.rows} rows x {shape.rollout} steps), but only "
            f"{human_bytes(free)} are free; lower {flags}, or give the machine or container more"
        )


def describe_memory(nbytes: Sequence[int]) -> str:
    """Return the bytes of several policies as text, such as "2 x 1.5 MiB = 3.0 MiB"."""
    each = " + ".join(f"{nbytes.count(n)} x {human_bytes(n)}" for n in dict.fromkeys(nbytes))
    return f"{each} = {human_bytes(sum(nbytes))}"


def check_memory_of_groups(nbytes: Sequence[int]) -> None:
    """Raise ConfigError if the slots of several policy groups, of ``nbytes`` each, do not fit into
    shared memory; for one group the plan has checked it."""
    free, groups = shared_memory_free(), len(nbytes)
    if groups > 1 and free is not None and sum(nbytes) > 0.9 * free:
        raise ConfigError(
            f"{groups} policies need {describe_memory(nbytes)} of shared memory for their "
            f"slots, because all actors may have slots of any of them, but only "
            f"{human_bytes(free)} are free; train fewer policies in one run, lower "
            "--num-envs-per-worker or --rollout, or give the machine or container more"
        )


def check_minibatch(config: LearnerConfig, plan: Plan, *, whole_rollouts: bool) -> None:
    """Raise ConfigError unless the minibatches are equal parts of the batch, and, if so asked, of
    ``whole_rollouts``."""
    size = config.minibatch_size
    if size is None:
        return
    if whole_rollouts and size % plan.rollout:
        below = max(plan.rollout, size // plan.rollout * plan.rollout)
        raise ConfigError(
            f"--minibatch-size {size} is not a multiple of --rollout {plan.rollout}, and V-trace "
            f"and recurrent cores need whole rollouts; nearest: {below} or {below + plan.rollout}"
        )
    if plan.batch_size % size:
        sizes = _equal_parts(plan.batch_size, plan.rollout if whole_rollouts else 1)
        near = min(sizes, key=lambda each: abs(each - size))
        raise ConfigError(
            f"--minibatch-size {size} does not divide the batch of {plan.batch_size} = "
            f"{plan.slots_per_batch} slots x {plan.rows} rows x {plan.rollout} steps; "
            f"nearest: {near}"
        )


LARGEST_BATCH = 10**12
"""Env steps. With one float32 each they are 3.6 TiB."""


def nearest_minibatch(batch: int, about: float, unit: int) -> int | None:
    """Return the size of equal minibatches of a ``batch``, a multiple of ``unit``, that is nearest
    to ``about``, as a ratio. None if there is none."""
    sizes = _equal_parts(batch, unit)
    return min(sizes, key=lambda size: abs(math.log(size / about)), default=None)


def _equal_parts(batch: int, unit: int) -> list[int]:
    """Return the sizes of equal parts of a ``batch`` that are multiples of ``unit``, in ascending
    order. Raises ConfigError for a batch beyond reason, of which they would take minutes."""
    if batch > LARGEST_BATCH:
        raise ConfigError(
            f"a batch of {batch:,} env steps is more than {LARGEST_BATCH:,}, for which no machine "
            "has the memory; lower --batch-size, or --rollout and the number of environments"
        )
    units, rest = divmod(batch, unit)
    small = [] if rest else [n for n in range(1, math.isqrt(units) + 1) if units % n == 0]
    return [unit * n for n in sorted({*small, *(units // n for n in small)})]
