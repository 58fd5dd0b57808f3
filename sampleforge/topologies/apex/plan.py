"""The numbers of an Ape-X run, fitted to the machine and checked before anything starts."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.replay.compressed import CompressedFrames, lz4_block, ring_bytes
from sampleforge.replay.limiter import ItemSteps
from sampleforge.replay.shard import EXTRAS, RECURRENT_EXTRAS, SPREADS
from sampleforge.rollouts.slots import SlotShape
from sampleforge.runtime.machine import human_bytes, shared_memory_free
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import ApexConfig
from sampleforge.topologies.sampler_plan import SamplerPlan, has_image, plan_sampler

_TREE_BYTES = 8 * 16 / 15  # per step that a slot holds


@dataclass(frozen=True)
class ApexPlan(SamplerPlan):
    """What `plan_apex` decided; every count is per run unless it says otherwise."""

    batch_size: int
    item_steps: ItemSteps  # of what is drawn, in env steps
    learning_starts: int  # env steps
    ratio: float | None  # samples per insert, in env steps
    learner_threads: int
    leases: int  # slots that an actor may have, per shard
    stored_slots: tuple[int, ...]  # per shard
    tolerance: float  # of the limiter on samples per insert
    slot_bytes: int  # of all slots together
    tree_bytes: int  # of all shards' trees
    ring_bytes: tuple[int, ...]  # of each shard, for compressed frames; none: they are raw
    frame_bytes: int  # of all rings, and of where what lies in them

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Slots of each shard: those that store, and those that actors have."""
        return tuple(stored + self.num_workers * self.leases for stored in self.stored_slots)

    @property
    def slots(self) -> int:
        return sum(self.shard_slots)

    @property
    def places(self) -> int | None:
        """Slots whose frames may lie raw at a time, if the others' are compressed."""
        return self.num_workers * self.leases * len(self.stored_slots) if self.ring_bytes else None

    def places_of(self, shard: int) -> range:
        """Those that a shard lends to actors."""
        each = self.num_workers * self.leases
        return range(shard * each, (shard + 1) * each)

    @property
    def item_ratio(self) -> float | None:
        """Samples per insert, in items."""
        return _item_ratio(self.ratio, self.item_steps)

    @property
    def learning_starts_items(self) -> int:
        return math.ceil(self.learning_starts / self.item_steps.inserted)

    @property
    def capacity(self) -> int:
        """Transitions."""
        return sum(self.stored_slots) * self.rows * self.rollout


_FOR_IMAGES: dict[str, Any] = {
    "batch_size": 512,
    "optimiser": "rmsprop",
    "learning_rate": 6.25e-5,
    "head_size": 512,
    "target_update_interval": 2500,
    "learning_starts": 50_000,
    "samples_per_insert": 1.0,
}
"""The paper's, table 1 and appendix C."""
_FOR_VECTORS: dict[str, Any] = {
    "batch_size": 256,
    "optimiser": "adam",
    "learning_rate": 5e-4,
    "head_size": 0,
    "target_update_interval": 100,
    "learning_starts": 1000,
    "samples_per_insert": 8.0,
}


_WITHOUT_CORE: dict[str, Any] = {"n_step": 3, "gamma": 0.99, "value_rescaling": False}
_WITH_CORE: dict[str, Any] = {
    "batch_size": 64,
    "n_step": 5,
    "gamma": 0.997,
    "value_rescaling": True,
}
"""Kapturowski et al. 2019, table 2."""
_WITH_CORE_FOR_IMAGES: dict[str, Any] = {
    "optimiser": "adam",
    "learning_rate": 1e-4,
    "priority_alpha": 0.9,
    "priority_beta": 0.6,
}
"""The same table's, tuned for images."""
_PRIORITIES: dict[str, Any] = {"priority_alpha": 0.6, "priority_beta": 0.4}


def _optimiser_eps(optimiser: str, *, image: bool, core: bool) -> float:
    """What is added to the denominator of a step.

    The paper's RMSProp has 1.5e-7 under the root, torch's beside it: 3.9e-4 is its root. Adam for
    images has Rainbow's 1.5e-4 (Hessel et al. 2018), with a core R2D2's 1e-3.
    """
    if not image:
        return 1e-6
    if optimiser == "rmsprop":
        return 3.9e-4
    return 1e-3 if core else 1.5e-4


def resolve_defaults(config: ApexConfig, spec: EnvSpec) -> ApexConfig:
    """``config`` with what it leaves open fitted to the observations and to the core, and whole
    strides of sequences in a rollout."""
    sequences = config.sequences
    image, core = has_image(spec), sequences is not None
    fitting = _PRIORITIES | (_FOR_IMAGES if image else _FOR_VECTORS)
    fitting |= _WITH_CORE if core else _WITHOUT_CORE
    if image and core:
        fitting |= _WITH_CORE_FOR_IMAGES
    optimiser = fitting["optimiser"] if config.optimiser == "auto" else config.optimiser
    fitting["optimiser_eps"] = _optimiser_eps(optimiser, image=image, core=core)
    left_open = {n: v for n, v in fitting.items() if getattr(config, n) in (None, "auto")}
    if config.samples_per_insert is None:
        del left_open["samples_per_insert"]  # there, none is an answer
    if "learning_starts" in left_open:
        left_open["learning_starts"] = min(config.replay_capacity, fitting["learning_starts"])
    left_open["epsilon_base"] = config.base_epsilon
    if config.reward_clip == "auto":
        rescaled = left_open.get("value_rescaling", config.value_rescaling)
        left_open["reward_clip"] = 1.0 if image and not rescaled else None
    if config.normalise_returns is None:
        clips = left_open.get("reward_clip", config.reward_clip) is not None
        left_open["normalise_returns"] = not clips and config.value_distribution != "c51"
    if sequences is not None:
        left_open["rollout"] = math.ceil(config.rollout / sequences.stride) * sequences.stride
    return dataclasses.replace(config, **left_open, **_support(config, spec))


def _support(config: ApexConfig, spec: EnvSpec) -> dict[str, Any]:
    """Return the ends of the support of a categorical distribution that were not given. Raises
    ConfigError where they cannot be derived from the observations."""
    if config.value_distribution != "c51":
        return {}
    paper = {"v_min": -10.0, "v_max": 10.0}
    left_open = {name: end for name, end in paper.items() if getattr(config, name) is None}
    if left_open and not has_image(spec):
        raise ConfigError(
            f"--value-distribution c51: {' and '.join(map(_flag, left_open))} "
            f"{'is' if len(left_open) == 1 else 'are'} missing, and {spec.env_id} does not say "
            "which returns it can have; give the lowest and the highest discounted return as "
            "--v-min and --v-max (at most r / (1 - gamma) for rewards up to r), or use "
            "--value-distribution quantile"
        )
    return left_open


def reason(config: ApexConfig, plan: ApexPlan) -> str:
    """Return what limits the replay and when learning starts, in a line; ``config`` is resolved."""
    ratio = "No limit of the replay ratio"
    if plan.ratio is not None:
        ratio = f"Replay ratio {plan.ratio:g} (tolerance {plan.tolerance:,.0f})"
    start = f"learning starts at {plan.learning_starts:,} transitions"
    return f"{ratio}, {start}, learning rate {config.learning_rate:g}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def plan_apex(config: ApexConfig, spec: EnvSpec, device: str) -> ApexPlan:
    """Decide the numbers of a config that was fitted. Raises ConfigError with the numbers, the
    reason, the remedy. ``device`` is the resolved device of learner and policy workers."""
    assert config.batch_size is not None and config.learning_starts is not None
    assert config.samples_per_insert != "auto"
    learners = config.num_learners
    if config.batch_size % learners:
        below = max(1, config.batch_size // learners) * learners
        raise ConfigError(
            f"--batch-size {config.batch_size} cannot be dealt in equal parts to --num-learners "
            f"{learners}; nearest: {below} or {below + learners}"
        )
    sampler = plan_sampler(config, spec, device)
    shape = slot_shape(config, sampler, spec)
    shards, sequences = config.num_replay_shards, config.sequences
    item_steps = ItemSteps(sequences.stride, sequences.learned) if sequences else ItemSteps()
    new_steps = sampler.rollout * sampler.rows
    stored = config.replay_capacity // new_steps
    if stored < shards:
        raise ConfigError(
            f"--replay-capacity {config.replay_capacity} does not give each of {shards} shards a "
            f"rollout of {sampler.rollout} steps x {sampler.rows} rows = {new_steps}; raise "
            "it, or lower --rollout, --num-envs-per-worker or --num-replay-shards"
        )
    per_shard = tuple(stored // shards + (i < stored % shards) for i in range(shards))
    leases = math.ceil(sampler.num_splits / shards) + 1
    slots = stored + shards * sampler.num_workers * leases
    rings = _rings(config, shape, per_shard)
    shape = replace(shape, places=shards * sampler.num_workers * leases if rings else None)
    plan = ApexPlan(
        **sampler.__dict__,
        batch_size=config.batch_size,
        item_steps=item_steps,
        learning_starts=config.learning_starts,
        ratio=None if config.sampler_only else config.samples_per_insert,
        learner_threads=config.learner_threads or 1,
        leases=leases,
        stored_slots=per_shard,
        tolerance=_tolerance(
            config,
            _item_ratio(config.samples_per_insert, item_steps),
            config.batch_size * config.prefetch_batches,
            shards * sampler.num_workers * leases * shape.items,
        ),
        slot_bytes=shape.nbytes(slots),
        ring_bytes=rings,
        frame_bytes=CompressedFrames.nbytes(shape, slots, sum(rings)) if rings else 0,
        tree_bytes=int(slots * shape.items * _TREE_BYTES) if config.priority_exponent else 0,
    )
    _check_memory(config, plan)
    return plan


def slot_shape(
    config: ApexConfig, plan: SamplerPlan, spec: EnvSpec, places: int | None = None
) -> SlotShape:
    """What a slot of the replay holds. ``places``: how many may have their frames in them."""
    rows, state_size, sequences = plan.rows, config.model.state_size, config.sequences
    if sequences is None:
        extras = EXTRAS if config.value_distribution == "none" else EXTRAS | SPREADS
        return SlotShape(plan.rollout, rows, spec, state_size, extras, True, places, final_obs=True)
    rollout = sequences.overlap + plan.rollout
    extras = RECURRENT_EXTRAS
    return SlotShape(rollout, rows, spec, state_size, extras, True, places, sequences)


def _item_ratio(ratio: float | None, each: ItemSteps) -> float | None:
    """Samples per insert in items, of that in env steps."""
    return None if ratio is None else ratio * each.inserted / each.learned


def _rings(config: ApexConfig, shape: SlotShape, stored: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes of each shard's ring of compressed frames."""
    if config.replay_compression == "none":
        return ()
    if not shape.stacks:
        raise ConfigError(
            f"--replay-compression {config.replay_compression} compresses stacks of frames, but "
            f"{shape.spec.env_id} names none of its observation leaves "
            f"({', '.join(shape.spec.observations)}) as one; leave it out, or have the environment "
            "say so in metadata['frame_stack']"
        )
    lz4_block()
    return tuple(ring_bytes(shape, slots, config.replay_compression_ratio) for slots in stored)


def _tolerance(config: ApexConfig, ratio: float | None, drawn: int, leased: int) -> float:
    """Of the limiter: all ``leased`` items may come, all ``drawn`` samples be taken, at once."""
    if ratio is None:
        return math.inf
    least, asked = leased * ratio + drawn, config.samples_per_insert_tolerance
    if asked is not None and asked < least:
        raise ConfigError(
            f"--samples-per-insert-tolerance {asked:g} is less than {least:g} = {leased} "
            f"{'transitions' if config.sequences is None else 'sequences'} of rollouts under way "
            f"x {ratio:g} samples per insert + {drawn} samples under way; raise "
            "it, or lower --rollout, --num-envs-per-worker or --prefetch-batches"
        )
    return least if asked is None else asked


def _check_memory(config: ApexConfig, plan: ApexPlan) -> None:
    held = plan.slot_bytes + plan.frame_bytes
    free, needed = shared_memory_free(), held + plan.tree_bytes
    if free is not None and needed > 0.9 * free:
        raise ConfigError(
            f"a replay of {plan.capacity} transitions needs {human_bytes(held)} of "
            f"shared memory and {human_bytes(plan.tree_bytes)} for priorities, but only "
            f"{human_bytes(free)} are free; lower --replay-capacity {config.replay_capacity} (to "
            f"{int(plan.capacity * 0.8 * free / needed)}, say), or give the machine or container "
            "more"
        )
