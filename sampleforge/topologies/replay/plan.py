"""The sizes of a run with a replay: chosen for the machine, and checked before the run starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.config import ConfigError
from sampleforge.replay.compressed import CompressedFrames, lz4_block, ring_bytes
from sampleforge.replay.device_frames import frame_places
from sampleforge.replay.items import ITEM_COLUMNS
from sampleforge.replay.limiter import ItemSteps
from sampleforge.rollouts.slots import SlotShape
from sampleforge.runtime.machine import human_bytes, shared_memory_free
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.devices import check_compiler, describe_learners, uses_cuda_graphs
from sampleforge.topologies.sampler_plan import (
    SamplerPlan,
    cores_beside_actors,
    learner_threads,
    plan_sampler,
    recorded_parameters,
    usual_rows,
    with_actor_cores,
)

MOST_MEMORY, FITTED_MEMORY = 0.9, 0.8
"""The largest part of the free shared memory that a replay may take, and the part that one takes
whose capacity is chosen so that it fits."""
_TREE_BYTES = 8 * 16 / 15  # of the sum tree, per item of a slot


@dataclass(frozen=True)
class ReplayPlan(SamplerPlan):
    """The result of `plan_replay`. Counts are for the whole run unless stated otherwise."""

    batch_size: int
    item_steps: ItemSteps  # env steps of an item (a transition or a sequence)
    learning_starts: int  # env steps
    ratio: float | None  # samples per insert, in env steps
    learner_threads: int
    leases: int  # slots of each shard that an actor may have at a time
    stored_slots: tuple[int, ...]  # per shard
    tolerance: float  # of the replay ratio, in items
    slot_bytes: int  # of all slots together
    tree_bytes: int  # of the sum trees of all shards
    ring_bytes: tuple[int, ...]  # of each shard's ring; empty if frames are not compressed
    frame_bytes: int  # of all rings, with the positions of blocks in them
    dataset_actors: int = 0  # which read datasets
    frame_places: int = 0  # slots whose frames are on the learner's GPU, too
    fitted: bool = False  # the capacity is lower than usual, so that it fits into memory

    @property
    def num_actors(self) -> int:
        return self.num_workers + self.dataset_actors

    @property
    def servers(self) -> int:
        return self.num_policy_workers + len(self.stored_slots)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of the replay: slots, compressed frames and priorities."""
        return self.slot_bytes + self.frame_bytes + self.tree_bytes

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Number of slots of each shard: those that store experience, and those that actors
        have."""
        return tuple(stored + self.num_actors * self.leases for stored in self.stored_slots)

    @property
    def slots(self) -> int:
        return sum(self.shard_slots)

    @property
    def frame_buffers(self) -> int | None:
        """Number of slots that may have raw frames at a time; None if frames are not compressed."""
        return self.num_actors * self.leases * len(self.stored_slots) if self.ring_bytes else None

    def frame_buffers_of(self, shard: int) -> range:
        """Return the frame buffers that a shard lends to slots of actors."""
        each = self.num_actors * self.leases
        return range(shard * each, (shard + 1) * each)

    @property
    def item_ratio(self) -> float | None:
        """Samples per insert, counted in items; None: no limit."""
        return _item_ratio(self.ratio, self.item_steps)

    @property
    def learning_starts_items(self) -> int:
        return math.ceil(self.learning_starts / self.item_steps.inserted)

    @property
    def capacity(self) -> int:
        """Number of transitions that the replay can hold."""
        return sum(self.stored_slots) * self.rows * self.rollout

    @property
    def sizes(self) -> tuple[str, ...]:
        begin = f"first update after {self.learning_starts:,} env steps"
        return f"replay {self.capacity:,}", begin


def plan_replay(
    algorithm: Algorithm, config: ReplayRunConfig, spec: EnvSpec, device: str
) -> ReplayPlan:
    """Return the sizes of a run. Raises ConfigError, with the numbers, the reason and the remedy,
    if the run is not possible.

    ``config``: with resolved defaults; without a capacity, the replay holds the usual one, or as
    many transitions as fit. ``device``: the resolved device of learner and policy workers."""
    most = config.replay_capacity or config.usual_capacity
    if config.batch_size is not None and config.batch_size > most:
        raise ConfigError(
            f"--batch-size {config.batch_size}: a minibatch has more transitions than the replay "
            f"holds, {most}; lower it, or raise --replay-capacity"
        )
    if config.replay_capacity is not None:
        plan = _plan(algorithm, config, spec, device)
        _check_memory(plan)
        return plan
    capacity, fitted = config.usual_capacity, False
    while True:
        starts = min(config.learning_starts or capacity, capacity)
        chosen = replace(config, replay_capacity=capacity, learning_starts=starts)
        plan = replace(_plan(algorithm, chosen, spec, device), fitted=fitted)
        share = _share_of_memory(plan) * config.num_policies
        if share <= MOST_MEMORY:
            most = plan.capacity // 2 if fitted else plan.capacity
            return replace(plan, learning_starts=min(plan.learning_starts, most))
        fitted, capacity = True, min(int(capacity * FITTED_MEMORY / share), capacity - 1)


def _plan(algorithm: Algorithm, config: ReplayRunConfig, spec: EnvSpec, device: str) -> ReplayPlan:
    """Return the sizes of a run whose capacity is given."""
    assert config.batch_size is not None and config.learning_starts is not None
    uses_cuda_graphs(config, device)  # refuses what cannot be
    if getattr(config, "compile", False) and not config.sampler_only:
        for where in config.learner_devices or (device,):
            _check_compiles(where)
    _check_parts(config.batch_size, config.num_learners)
    beside = config.num_policies * config.num_replay_shards + len(config.datasets)
    sampler = plan_sampler(config, spec, device, others=beside)
    if not config.is_live:
        sampler = _without_actors(
            sampler, config.num_envs_per_worker or usual_rows(config, spec) // 2
        )
    actors = sampler.num_workers + len(config.datasets)
    shape = slot_shape(algorithm, config, sampler, spec)
    shards, sequences = config.num_replay_shards, config.sequences
    cores = cores_beside_actors(config, synchronous=False)
    if config.heavy_updates:  # which actors wait for most of the time, so that two may use a core
        cores = max(cores, min(2, cores_beside_actors(config, synchronous=True)))
    learners = config.num_learners * config.num_policies
    threads = config.learner_threads or learner_threads(config.model, spec, cores // learners)
    busy = beside
    if device == "cpu":
        busy += config.num_policies * sampler.num_policy_workers
        busy += 0 if config.sampler_only else learners * threads
    item_steps = ItemSteps(sequences.stride, sequences.learned) if sequences else ItemSteps()
    per_shard = _stored_slots(config, sampler)
    leases = math.ceil(sampler.num_splits * spec.num_agents / shards) + 1
    slots = sum(per_shard) + shards * actors * leases
    rings = _rings(config, shape, per_shard)
    shape = replace(shape, frame_buffers=shards * actors * leases if rings else None)
    plan = ReplayPlan(
        **with_actor_cores(config, spec, sampler, busy).__dict__,
        batch_size=config.batch_size,
        item_steps=item_steps,
        learning_starts=config.learning_starts,
        ratio=None if config.sampler_only else config.replay_ratio,
        learner_threads=threads,
        leases=leases,
        stored_slots=per_shard,
        tolerance=_tolerance(
            config,
            _item_ratio(config.replay_ratio, item_steps),
            config.batch_size * config.prefetch_batches,
            shards * actors * leases * shape.items,
        ),
        slot_bytes=shape.nbytes(slots),
        ring_bytes=rings,
        frame_bytes=CompressedFrames.nbytes(shape, slots, sum(rings)) if rings else 0,
        tree_bytes=int(slots * shape.items * _TREE_BYTES) if config.priority_exponent else 0,
        dataset_actors=len(config.datasets),
        frame_places=frame_places(shape, slots, config.replay_gpu_memory, device),
    )
    return plan


def _stored_slots(config: ReplayRunConfig, sampler: SamplerPlan) -> tuple[int, ...]:
    """Return how many rollouts each shard stores. Raises ConfigError if one would store none."""
    shards, new_steps = config.num_replay_shards, sampler.rollout * sampler.rows
    assert config.replay_capacity is not None, "it is given, or chosen"
    stored = config.replay_capacity // new_steps
    if stored < shards:
        raise ConfigError(
            f"--replay-capacity {config.replay_capacity} does not give each of {shards} shards a "
            f"rollout of {sampler.rollout} steps x {sampler.rows} rows = {new_steps}; raise "
            "it, or lower --rollout, --num-envs-per-worker or --num-replay-shards"
        )
    return tuple(stored // shards + (i < stored % shards) for i in range(shards))


def _check_compiles(device: str) -> None:
    """Raise ConfigError if a learner on ``device`` cannot, or should not compile its passes."""
    if device.startswith("cuda"):
        raise ConfigError(
            f"--compile: sac, crossq and td3 learn on {device} here, where CUDA graphs are faster "
            "than compiled passes, which take their place (CrossQ: 502 updates a second, and 247); "
            "leave out --compile, or learn on the CPU (--device cpu, without --learner-devices)"
        )
    check_compiler(device)


def _check_parts(batch: int, learners: int) -> None:
    """Raise ConfigError unless a sample can be dealt in equal parts to the learners."""
    if batch % learners:
        below = max(1, batch // learners) * learners
        raise ConfigError(
            f"--batch-size {batch} cannot be dealt in equal parts to --num-learners {learners}; "
            f"nearest: {below} or {below + learners}"
        )


def _without_actors(sampler: SamplerPlan, rows: int) -> SamplerPlan:
    """Return the sizes of a run that learns from datasets alone, with so many rows in a rollout (by
    default as many as an actor on two cores has)."""
    return replace(
        sampler,
        num_workers=0,
        num_splits=1,
        rows=rows,
        inference="inline",
        num_policy_workers=0,
        reasons=("Experience from data alone", *sampler.reasons[1:]),
    )


def slot_shape(
    algorithm: Algorithm,
    config: ReplayRunConfig,
    plan: SamplerPlan,
    spec: EnvSpec,
    frame_buffers: int | None = None,
) -> SlotShape:
    """Return the shape of the replay's slots. ``frame_buffers``: number of slots that may have raw
    frames at a time (None: all)."""
    sequences = config.sequences
    shape = SlotShape(
        plan.rollout if sequences is None else sequences.overlap + plan.rollout,
        plan.rows,
        spec,
        config.model.state_size,
        algorithm.columns(config),
        True,
        frame_buffers,
        sequences,
        parameters=recorded_parameters(config, spec),
    )
    if sequences is not None:
        return shape
    return replace(shape, finished=ITEM_COLUMNS, final_obs=True)


def stored_shape(
    algorithm: Algorithm, config: ReplayRunConfig, plan: ReplayPlan, spec: EnvSpec
) -> SlotShape:
    """Return the shape of the slots of a replay whose sizes are known."""
    return slot_shape(algorithm, config, plan, spec, plan.frame_buffers)


def _item_ratio(ratio: float | None, each: ItemSteps) -> float | None:
    """Return samples per insert counted in items, given the ``ratio`` counted in env steps."""
    return None if ratio is None else ratio * each.inserted / each.learned


def _rings(config: ReplayRunConfig, shape: SlotShape, stored: tuple[int, ...]) -> tuple[int, ...]:
    """Return the bytes of each shard's ring of compressed frames; empty without compression."""
    if config.replay_compression == "none":
        return ()
    if not shape.stacks:
        raise ConfigError(
            f"--replay-compression {config.replay_compression} compresses stacks of frames, but "
            f"{shape.spec.env_id} declares none of its observation leaves "
            f"({', '.join(shape.spec.observations)}) as a stack; leave it out, or name the stacks "
            "in the environment's metadata['frame_stack']"
        )
    lz4_block()
    return tuple(ring_bytes(shape, slots, config.replay_compression_ratio) for slots in stored)


def _tolerance(config: ReplayRunConfig, ratio: float | None, drawn: int, leased: int) -> float:
    """Return the tolerance of the rate limiter, in items. All ``leased`` items may be inserted, and
    all ``drawn`` samples taken, at once."""
    if ratio is None:
        return math.inf
    least, asked = leased * ratio + drawn, config.samples_per_insert_tolerance
    if asked is not None and asked < least:
        raise ConfigError(
            f"--samples-per-insert-tolerance {asked:g} is less than {least:g} = {leased} "
            f"{'transitions' if config.sequences is None else 'sequences'} of rollouts in progress "
            f"x {ratio:g} samples per insert + {drawn} samples in flight; raise "
            "it, or lower --rollout, --num-envs-per-worker or --prefetch-batches"
        )
    return least if asked is None else asked


def _share_of_memory(plan: ReplayPlan) -> float:
    """Return the part of the free shared memory that a replay takes; above 1 it has no room."""
    free = shared_memory_free()
    return 0.0 if free is None else plan.shared_bytes / max(1, free)


def _check_memory(plan: ReplayPlan) -> None:
    """Raise ConfigError if a replay whose capacity is given does not fit into shared memory."""
    share = _share_of_memory(plan)
    if share > MOST_MEMORY:
        held = plan.slot_bytes + plan.frame_bytes
        raise ConfigError(
            f"a replay of {plan.capacity} transitions needs {human_bytes(held)} of "
            f"shared memory and {human_bytes(plan.tree_bytes)} for priorities, but only "
            f"{human_bytes(plan.shared_bytes / share)} are free; lower --replay-capacity (to "
            f"{int(plan.capacity * FITTED_MEMORY / share)}, say), leave it out for as many as fit, "
            "or give the machine or container more"
        )


def _sequence_notes(config: ReplayRunConfig) -> tuple[str, ...]:
    sequences = config.sequences
    if sequences is None:
        return ()
    return (
        f"{config.model.core} core: sequences of {sequences.length} steps, one every "
        f"{sequences.stride}, of which {sequences.burn_in} are burn-in; a rollout keeps "
        f"{sequences.overlap} steps of the one before",
    )


def _clip_notes(config: ReplayRunConfig) -> tuple[str, ...]:
    clip = config.reward_clip
    if clip is None:
        return ()
    if clip == "sign":
        return ("rewards are reduced to their sign for learning (--reward-clip sign)",)
    return (f"rewards are clipped to +-{clip:g} for learning (--reward-clip None: not at all)",)


def run_notes(config: ReplayRunConfig, plan: ReplayPlan, spec: EnvSpec) -> tuple[str, ...]:
    """Return notes about a run with a replay."""
    compression = (
        f"of these, {human_bytes(sum(plan.ring_bytes))} for frames, which are compressed: enough "
        f"if they shrink {config.replay_compression_ratio:g} times, else the oldest are evicted"
    )
    return (
        *([plan.describe_envs()] if plan.envs else []),
        f"replay of {plan.capacity} transitions in {sum(plan.stored_slots)} slots: "
        f"{human_bytes(plan.slot_bytes + plan.frame_bytes)} of shared memory when full, "
        f"{human_bytes(plan.tree_bytes)} for priorities",
        *([compression] if plan.ring_bytes else []),
        *_sequence_notes(config),
        *_clip_notes(config),
        f"{describe_learners(config, plan.device)}, {plan.learner_threads} thread(s)",
        *plan.reasons,
        *([f"protocol: {spec.protocol}"] if spec.protocol else []),
    )
