"""The sizes of a run of ranks: chosen for the machine, and checked before the run starts."""

from __future__ import annotations

import math

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.config import ConfigError, typed
from sampleforge.rollouts.slots import SlotShape
from sampleforge.runtime.machine import this_machine
from sampleforge.runtime.torchrun import World
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import AnyConfig, RanksRunConfig
from sampleforge.topologies.sampler_plan import (
    Plan,
    check_memory,
    check_minibatch,
    choose_precision,
    env_threads,
    learner_threads,
    may_pin,
    minibatches,
    overlaps_inline,
    policy_lag,
    recorded_parameters,
)


def plan_ranks(
    algorithm: Algorithm,
    config: RanksRunConfig,
    spec: EnvSpec,
    device: str,
    world: World | None = None,
) -> Plan:
    """Return the sizes of a run, in which a rank counts as a worker. ``world``: given if torchrun
    has started the ranks. Raises ConfigError, with the numbers, the reason and the remedy, if the
    run is not possible."""
    _check_start(config, spec, world)
    cores, ranks = this_machine().cores, world.size if world else config.num_ranks
    assert ranks is not None, "resolve_defaults comes first"
    here = world.local_size if world else ranks
    even = (config.num_envs_per_worker or 2) % 2 == 0
    splits = config.num_splits or (2 if overlaps_inline(spec, cores, here) and even else 1)
    assert config.rollout is not None, "resolve_defaults comes first"
    envs = _envs_per_rank(config, config.rollout, splits)
    if config.variable_experience and config.num_splits is None:
        splits = envs
    # The slots that are filled, and one more that each split may be writing; see
    # `SteppingInRounds`.
    slots = splits + with_room(config, splits, ranks) if config.variable_experience else splits
    shape = slot_shape(algorithm, config, spec, envs // splits, ranks)
    image = config.model.has_pixels(spec.observations)
    precision, why_precision = choose_precision(config, device, image)
    acts_on = device if acts_on_device(config, device, spec) else "cpu"
    threads = learner_threads(config.model, spec, 1 if config.serial else cores // here)
    plan = Plan(
        num_workers=ranks,
        num_splits=splits,
        rows=shape.rows,
        num_seats=1,
        rollout=config.rollout,
        inference="inline",
        num_policy_workers=0,
        slots=ranks * slots,
        slots_per_batch=splits,
        synchronous=True,
        device=device,
        precision=precision,
        acting_precision=choose_precision(config, acts_on, image)[0],
        learner_threads=config.learner_threads or threads,
        actor_cores=cores // here if may_pin(config) else 0,
        env_threads=env_threads(spec, cores // here, splits, shape.rows),
        slot_bytes=here * shape.nbytes(slots),
        reasons=(why_precision,),
        records=config.record is not None,
        lag=policy_lag(
            config,
            splits * shape.rows * config.rollout,
            batches=1.0 if config.variable_experience else 0.0,
        ),
    )
    flags = "--batch-size, --num-envs-per-worker, --rollout, --max-rollout-fraction or --num-ranks"
    check_memory(plan, shape, flags)
    check_minibatch(config, plan, whole_rollouts=algorithm.whole_rollouts(config))
    check_lag(config, plan)
    return plan


def _check_start(config: RanksRunConfig, spec: EnvSpec, world: World | None) -> None:
    """Raise ConfigError for a process that torchrun has started otherwise than as a rank of
    ``world``, and for several agents."""
    launched = World.of_environment()
    if world is None and launched is not None and launched.size > 1:
        raise ConfigError(
            f"WORLD_SIZE is {launched.size}, as torchrun sets it, but this process was not started "
            "as one of its ranks, and each would train by itself; under torchrun use the command "
            f"line (train.py {config.algo}), or start it without torchrun"
        )
    if spec.num_seats > 1:
        raise ConfigError(
            f"{spec.env_id} has {spec.num_seats} agents, and {config.algo} takes single-agent "
            "environments only: a rank learns from its own rollouts before it samples the next "
            "ones, with one policy; use appo or apex"
        )


def acts_on_device(config: RanksRunConfig, device: str, spec: EnvSpec) -> bool:
    """Return whether the ranks on ``device`` compute actions on their GPUs: for images, except with
    variable experience, whose rows ask for actions one by one."""
    images = device.startswith("cuda") and config.model.has_pixels(spec.observations)
    return images and not config.variable_experience


def check_lag(config: RanksRunConfig, plan: Plan) -> None:
    """Raise ConfigError if env steps that continue during an update would be too old to learn from.
    They are those of the slowest environments, whose experience must count."""
    updates = plan.lag.steps_per_batch
    if plan.lag.versions > plan.lag.limit:
        raise ConfigError(
            f"--max-policy-lag {plan.lag.limit}: with --variable-experience env steps continue "
            f"during an update of {updates} gradient steps ({config.num_epochs} epochs x "
            f"{minibatches(config, plan.batch_size)} minibatches), and would then be too old to "
            f"learn from; use at least --max-policy-lag {2 * updates}, or leave it out"
        )


def slot_shape(
    algorithm: Algorithm, config: RanksRunConfig, spec: EnvSpec, rows: int, ranks: int
) -> SlotShape:
    """Return the shape of a rank's slots."""
    state, variable = config.model.state_size, config.variable_experience
    assert config.rollout is not None, "resolve_defaults comes first"
    rollout = config.rollout if variable else with_room(config, config.rollout, ranks)
    parameters = recorded_parameters(config, spec)
    columns = algorithm.columns(config)
    return SlotShape(rollout, rows, spec, state, columns, variable=variable, parameters=parameters)


def with_room(config: RanksRunConfig, count: int, ranks: int) -> int:
    """Return ``count`` (steps or slots) plus what an early rank may add while it waits for other
    ranks."""
    return math.ceil(config.max_rollout_fraction * count - 1e-9) if ranks > 1 else count


def _envs_per_rank(config: RanksRunConfig, rollout: int, splits: int) -> int:
    """Return the env rows of a rank: as given, or as many as fill the batch."""
    envs, batch = config.num_envs_per_worker, config.batch_size
    assert envs is not None or batch is not None, "resolve_defaults comes first"
    if envs is not None and envs % splits:
        raise ConfigError(
            f"--num-envs-per-worker {envs} (of one rank) cannot be split into {splits} equal "
            f"parts; use a multiple of {splits} or another --num-splits"
        )
    unit = rollout * (envs or splits)
    if batch is not None and (batch != unit if envs else batch % unit):
        near = unit if envs else max(unit, round(batch / unit) * unit)
        what = f"{envs} envs" if envs else f"a multiple of {splits} envs (--num-splits)"
        raise ConfigError(
            f"--batch-size {batch} is not {what} x {rollout} steps (--rollout): a rank "
            f"learns from one rollout of each of its envs; leave it out, or use {near}"
        )
    return envs or (batch or 0) // rollout


def check_world(config: AnyConfig, world: World) -> RanksRunConfig:
    """Return the config as that of a rank of ``world``. Raises ConfigError if such a run is not
    possible under torchrun."""
    if not isinstance(config, RanksRunConfig):
        raise ConfigError(
            f"WORLD_SIZE is {world.size}, as torchrun sets it, but {config.algo} is of one "
            "machine, and every process would train by itself; use ddppo, or start it without "
            "torchrun"
        )
    if config.num_ranks not in (None, world.size):
        raise ConfigError(
            f"--num-ranks is {config.num_ranks} (as asked for, or by the preset), but WORLD_SIZE "
            f"is {world.size}; under torchrun leave it out, or give --num-ranks None"
        )
    if config.record is not None:
        raise ConfigError(
            f"{typed('record', config.record)}: ranks that torchrun starts share no memory with a "
            "recorder; leave it out, or use --num-ranks instead of torchrun"
        )
    for name in ("serial", "benchmark"):
        if getattr(config, name):
            raise ConfigError(
                f"--{name} is for one machine without torchrun, which has set WORLD_SIZE to "
                f"{world.size}; leave it out, or use --num-ranks instead of torchrun"
            )
    if world.max_attempts and config.run_dir is None:
        raise ConfigError(
            f"torchrun may start the ranks again {world.max_attempts} times (--max-restarts), but "
            "without --run-dir each start has a new folder and finds no checkpoint; give --run-dir"
        )
    return config
