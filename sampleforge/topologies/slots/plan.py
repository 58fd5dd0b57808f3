"""The sizes of a run with slots: chosen for the machine, and checked before the run starts."""

from __future__ import annotations

import math

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.config import ConfigError
from sampleforge.rollouts.slots import SlotShape
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import SlotsRunConfig
from sampleforge.topologies.devices import check_compiler, uses_cuda_graphs
from sampleforge.topologies.policy_roles import learning_agents
from sampleforge.topologies.sampler_plan import (
    MIN_BATCH,
    MOST_ROWS_OF_IMAGES,
    Plan,
    SamplerPlan,
    check_asynchronous_lag,
    check_memory,
    check_minibatch,
    cores_beside_actors,
    learner_threads,
    plan_sampler,
    policy_lag,
    recorded_parameters,
    usual_rows,
    with_actor_cores,
)
from sampleforge.workers.split import LATE


def slot_shape(
    algorithm: Algorithm, config: SlotsRunConfig, plan: SamplerPlan, spec: EnvSpec
) -> SlotShape:
    """Return the shape of the slots of a policy group."""
    state, parameters = config.model.state_size, recorded_parameters(config, spec)
    columns = algorithm.columns(config)
    return SlotShape(plan.rollout, plan.rows, spec, state, columns, parameters=parameters)


def plan_slots(algorithm: Algorithm, config: SlotsRunConfig, spec: EnvSpec, device: str) -> Plan:
    """Decide what the config leaves open. Raises ConfigError with the numbers, the reason, the
    remedy.

    ``device`` is the resolved device of learner and policy workers.
    """
    sampler = plan_sampler(config, spec, device, fills=config.batch_size)
    uses_cuda_graphs(config, device)  # refuses what cannot be
    if config.compile:
        for where in {device, device if sampler.inference == "worker" else "cpu"}:
            check_compiler(where)
    shape = slot_shape(algorithm, config, sampler, spec)
    streams = _streams(sampler, spec)
    slots_per_batch = _slots_per_batch(config, shape, streams)
    synchronous = not config.async_rl or config.num_batches_to_accumulate == 0
    slots = _slots(config, slots_per_batch, sampler.num_workers, streams, synchronous)
    cores = cores_beside_actors(config, synchronous=synchronous)
    learners = config.num_learners * config.num_policies
    threads = config.learner_threads or learner_threads(config.model, spec, cores // learners)
    busy = 0
    if device == "cpu":
        busy += config.num_policies * sampler.num_policy_workers
        busy += 0 if synchronous or config.sampler_only else learners * threads
    # Every slot may wait for the learner, and so may the batch that is gathered ahead.
    ahead = _gathers_ahead(device, synchronous=synchronous, serial=config.serial)
    batches = 0.0 if synchronous else slots / slots_per_batch + ahead
    if sampler.variable:
        batches += (LATE - 1) * streams / slots_per_batch  # rollouts of late rows are older
    plan = Plan(
        **with_actor_cores(config, spec, sampler, busy).__dict__,
        slots=slots,
        slots_per_batch=slots_per_batch,
        synchronous=synchronous,
        learner_threads=threads,
        slot_bytes=shape.nbytes(slots),
        lag=policy_lag(config, slots_per_batch * shape.env_steps, batches),
    )
    flags = (
        "--batch-size, --num-envs-per-worker, --rollout, --num-workers or "
        "--num-batches-to-accumulate"
    )
    check_memory(plan, shape, flags)
    check_minibatch(config, plan, whole_rollouts=algorithm.whole_rollouts(config))
    check_asynchronous_lag(config, plan.lag)
    return plan


def batch_of_slots(algorithm: Algorithm, config: SlotsRunConfig, spec: EnvSpec, device: str) -> int:
    """Return the env steps of a batch of the run that `plan_slots` plans, without what it checks.
    Raises ConfigError for sizes that do not fit together."""
    sampler = plan_sampler(config, spec, device, fills=config.batch_size)
    shape = slot_shape(algorithm, config, sampler, spec)
    return _slots_per_batch(config, shape, _streams(sampler, spec)) * shape.env_steps


def gathers_ahead(plan: Plan, *, serial: bool) -> bool:
    """Return whether a thread of the learner prepares the next batch. It does so only on a CUDA
    device: on a CPU the thread would take time from learning and sampling, without a gain
    (measured: benchmarks/results/learner.md)."""
    return _gathers_ahead(plan.device, synchronous=plan.synchronous, serial=serial)


def _gathers_ahead(device: str, *, synchronous: bool, serial: bool) -> bool:
    return device.startswith("cuda") and not synchronous and not serial


def _rows_of_a_batch(config: SlotsRunConfig, spec: EnvSpec) -> int:
    """Return the number of rows whose rollouts make a batch of an asynchronous run: all those that
    two actors would have, so that learning does not depend on the cores; with pixels as many as
    make the batch of a run that samples and learns in turn."""
    if config.num_envs_per_worker is not None:
        envs = config.num_envs_per_worker * (config.num_workers or 2)
    elif config.model.has_pixels(spec.observations):
        envs = max(2, MOST_ROWS_OF_IMAGES // spec.num_seats)
    else:
        envs = usual_rows(config, spec)
    return envs * spec.num_agents


def _streams(sampler: SamplerPlan, spec: EnvSpec) -> int:
    """Return the number of streams of all actors that one policy can have."""
    return sampler.num_workers * sampler.num_splits * spec.num_agents


def _slots_per_batch(config: SlotsRunConfig, shape: SlotShape, streams: int) -> int:
    """Return the number of slots of a batch, which is divided equally among the ``streams`` (if
    synchronous), which are those of all actors that one policy can have, and the learners. Of a
    batch of a given size only those streams have a share that are learned from at the same time;
    the usual size counts all agents."""
    learners = config.num_learners
    synchronous = not config.async_rl or config.num_batches_to_accumulate == 0
    unit = math.lcm(streams if synchronous else 1, learners)
    if config.batch_size is None:
        rows = 0 if synchronous else _rows_of_a_batch(config, shape.spec)
        return unit * math.ceil(max(MIN_BATCH, rows * shape.rollout) / (shape.env_steps * unit))
    count = config.batch_size // shape.env_steps
    agents = learning_agents(config, shape.spec)
    streams = streams // shape.spec.num_agents * agents
    unit = math.lcm(streams if synchronous else 1, learners) * shape.env_steps
    if count == 0 or config.batch_size % unit:
        below = max(unit, config.batch_size // unit * unit)
        asked = config.batch_size
        nearest = sorted({below, below + unit}, key=lambda size: abs(size - asked))
        what = f"{shape.rows} rows x {shape.rollout} steps"
        if synchronous:
            splits = f"{streams} splits" if agents == 1 else f"{streams} agents of splits"
            what += f" x {splits} (synchronous: each gives its share to every batch)"
        if learners > 1:
            what += f", in equal shares for {learners} learners"
        raise ConfigError(
            f"--batch-size {config.batch_size} is not a multiple of {unit} = {what}; "
            f"nearest: {nearest[0]} or {nearest[-1]}"
            f"{', or use another --num-learners' if learners > 1 else ''}"
        )
    return count


def _slots(
    config: SlotsRunConfig, slots_per_batch: int, workers: int, streams: int, synchronous: bool
) -> int:
    """Return the number of slots in circulation, which limits how far the actors run ahead.

    Synchronous: exactly one batch, whose slots return after its update. Asynchronous: one slot that
    is being written per split, and as many complete ones as may wait. Each actor has an equal
    share, with at least one slot per stream, so that no actor waits for a slot that only it could
    free. Each learner has an equal share, too.
    """
    if synchronous:
        return slots_per_batch
    total = streams + config.num_batches_to_accumulate * slots_per_batch
    unit = workers * config.num_learners
    return math.ceil(total / unit) * unit
