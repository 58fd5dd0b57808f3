"""The defaults of APPO and DD-PPO that depend on the environment.

There are two kinds of settings (measured in benchmarks/results/defaults.md and levers.md):

* `ON_POLICY`: sampling and learning take turns, and each batch of 2048 env steps is learned from
  several times. This is the default for all but pixels on a GPU: on-policy experience teaches more
  per env step, and on a CPU learning and sampling share the cores anyway.
* `ASYNCHRONOUS`: sampling continues while the learner trains; V-trace. This is the default for
  pixels on a GPU, which learns while the cores sample, and with --async-rl or
  --variable-experience.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from sampleforge.algorithms.annealing import usual_lr_schedule
from sampleforge.algorithms.ppo.algorithm import PPO
from sampleforge.models.config import ModelConfig
from sampleforge.ops.distributions import action_layout
from sampleforge.runtime.machine import this_machine
from sampleforge.runtime.torchrun import World
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import RanksRunConfig
from sampleforge.topologies.registry import RANKS, SLOTS, Pairing
from sampleforge.topologies.sampler_plan import (
    MIN_BATCH,
    most_workers,
    nearest_minibatch,
    run_device,
)
from sampleforge.topologies.slots.plan import batch_of_slots

if TYPE_CHECKING:
    from sampleforge.topologies.pairings.ddppo_config import DdppoConfig
    from sampleforge.topologies.pairings.ppo_config import AppoConfig

    PpoConfig = AppoConfig | DdppoConfig

BATCH = 2048
"""Env steps of an on-policy batch, over all env rows of the run."""
ROWS = 16
"""Env rows of an on-policy run on any number of cores, so that learning does not depend on the
machine."""
FEWEST_ROWS = 4
"""Least number of env rows that is chosen for a given batch: a forward pass for one row takes as
long as one for four."""
SHORTEST_ROLLOUT = 32
"""Least number of env steps of an on-policy rollout, even if all rows together then give more than
`BATCH`; with more ranks than rows it may be shorter."""
MINIBATCH = 256
"""Env steps of an on-policy minibatch, over all ranks."""
RECURRENT_ROWS = 64
"""Env rows of an on-policy run with a recurrent core, so that rollouts are short: a core takes the
steps of a rollout one after the other, and a step of many rows takes hardly longer than one of
few."""
RECURRENT_MINIBATCH = 512
"""Env steps of an on-policy minibatch with a recurrent core, over all ranks."""

ON_POLICY: dict[str, Any] = {
    "async_rl": False,
    "num_epochs": 10,
    "advantage": "gae",
    "learning_rate": 5e-4,
    "exploration_coeff": 0.003,
    "kl_coeff": 0.2,
}
ON_POLICY_GRIDS: dict[str, Any] = {**ON_POLICY, "num_epochs": 4, "learning_rate": 1e-3}
"""Settings for planes that are not pixels (MinAtar) but go through convolutions: fewer epochs, one
encoder."""
ON_POLICY_IMAGES: dict[str, Any] = {
    **ON_POLICY,
    "num_epochs": 2,
    "exploration_coeff": 0.01,
    "kl_coeff": 0.0,
}
"""Settings for pixels: fewer epochs, because the network takes most of the time. For ranks they are
those of the code of DD-PPO's paper (habitat-baselines), but with smaller minibatches and larger
steps (Pong: 19.8 in place of 3.4 after 400,000 env steps)."""
ASYNCHRONOUS: dict[str, Any] = {
    "async_rl": True,
    "rollout": 32,
    "num_epochs": 1,
    "advantage": "vtrace",
    "learning_rate": 3e-4,
    "exploration_coeff": 0.003,
    "kl_coeff": 0.0,
}
ASYNCHRONOUS_IMAGES: dict[str, Any] = {
    **ASYNCHRONOUS,
    "num_epochs": 2,
    "learning_rate": 5e-4,
    "exploration_coeff": 0.01,
}
"""Settings for images, with minibatches as in turn: with one gradient step for each batch
Breakout has a return of 3 after two million env steps (benchmarks/results/levers.md)."""
RECURRENT_RANKS_WITH_IMAGES: dict[str, Any] = {**ON_POLICY_IMAGES, "learning_rate": 2.5e-4}
"""The settings of that code, with a recurrent core, which it has."""
RECURRENT_MINIBATCH_OF_IMAGES = 1024
"""Env steps of a minibatch for images with a recurrent core, over all ranks: two make a batch, as
in that code, whose ranks have 8 rows with rollouts of 128; two of these make `BATCH`."""
ROLLOUT_OF_IMAGES = 128
"""Env steps of a rank's rollout for images, as in that code."""


def resolve_defaults(config: PpoConfig, spec: EnvSpec) -> PpoConfig:
    """Return ``config`` with its unset fields resolved as far as their defaults depend on the
    environment; see the head of this file."""
    settings = _settings(config, spec)
    falling = "cooldown" if _has_boxes(spec) else "constant"
    values = {**_values(settings, spec), "lr_schedule": usual_lr_schedule(config, falling)}
    chosen = {name: value for name, value in values.items() if getattr(config, name) is None}
    if "rollout" in chosen and config.batch_size is not None:
        chosen["rollout"] = _part(config.batch_size, chosen["rollout"])
    config = dataclasses.replace(config, **chosen)
    if not config.async_rl:
        config = dataclasses.replace(config, **_shape(config, settings, spec))
    config = dataclasses.replace(config, model=_model(config, spec))
    if config.minibatch_size is not None:
        return config
    if not config.async_rl:
        minibatch = _minibatch(config, settings, spec.num_agents)
        return dataclasses.replace(config, minibatch_size=minibatch)
    if isinstance(config, RanksRunConfig) or settings is ASYNCHRONOUS or config.sampler_only:
        return config  # whole batches
    batch = batch_of_slots(PPO, config, spec, run_device(config, spec))
    minibatch = nearest_minibatch(batch, _usual_minibatch(config, settings), _unit(config))
    return dataclasses.replace(config, minibatch_size=minibatch)


def for_ranks(config: DdppoConfig, ranks: int, left_open: Collection[str]) -> DdppoConfig:
    """Return the config of a run that its ``config.num_ranks`` ranks go on with as ``ranks``: the
    batch and the minibatch of all ranks together stay, as nearly as equal minibatches of whole
    rollouts allow, and so do the gradient steps per env step. Sizes of a rank that are not in
    ``left_open`` were given, and stay as they are."""
    before, batch, minibatch = config.num_ranks, config.batch_size, config.minibatch_size
    rollout, rows = config.rollout, config.num_envs_per_worker
    if before is None or batch is None or minibatch is None or rollout is None:
        return config  # of a version that did not store what it chose
    if "batch_size" in left_open:
        parts, unit = batch // minibatch, config.num_splits or 1
        whole = PPO.whole_rollouts(config)
        usual = math.ceil(batch // rollout * before / ranks)
        rows = rows or _multiple(usual, math.lcm(unit, parts) if whole else unit)
        if "rollout" in left_open:
            steps = batch * before / (ranks * rows)
            rollout = _rollout_of_parts(steps, rows, 1 if whole else parts)
        batch = rows * rollout
    sizes: dict[str, Any] = {"num_ranks": ranks, "batch_size": batch, "rollout": rollout}
    if "minibatch_size" not in left_open:
        return dataclasses.replace(config, **sizes)
    config = dataclasses.replace(config, **sizes, minibatch_size=None)
    nearest = nearest_minibatch(batch, minibatch * before / ranks, _unit(config))
    return dataclasses.replace(config, minibatch_size=nearest)


def for_rows(config: AppoConfig, before: AppoConfig, usual: int | None) -> AppoConfig:
    """Return the config of a run that samples and learns in turn, and goes on with as many env rows
    as it had ``before``: spread over the workers of this machine, or over as many as it had, if
    only these fill its batch in equal shares. ``usual``: the env rows of a worker of a new run;
    where it is 1, a process may be able to have no second one."""
    workers, rows = config.num_workers, config.num_envs_per_worker
    had, each = before.num_workers, before.num_envs_per_worker
    batch, rollout = config.batch_size, config.rollout
    if had is None or each is None or batch is None or rollout is None:
        return config  # of a version that did not store what it chose
    rows = 1 if usual == 1 else rows
    if rows is not None:
        several = 1 if config.serial and rows == 1 else had * each // rows
        workers = workers or several
        return dataclasses.replace(config, num_workers=workers, num_envs_per_worker=rows)
    splits, cores = config.num_splits or 1, 1 if config.serial else this_machine().cores
    total = _multiple(had * each, splits * (workers or 1))
    share = rollout * config.num_learners
    filling = (
        n
        for n in (*range(cores, 0, -1), had)
        if total % (n * splits) == 0 and batch % (total // (n * splits) * share) == 0
    )
    workers = workers or next(filling, most_workers(total // splits, cores))
    return dataclasses.replace(config, num_workers=workers, num_envs_per_worker=total // workers)


def reason(config: PpoConfig, _plan: object, spec: EnvSpec) -> str:
    """Return a line with the chosen settings and the reason; ``config`` is resolved."""
    settings = _settings(config, spec)
    planes = "planes" if config.model.has_convolved(spec.observations) else "no convolutions"
    kind = "images" if config.model.has_pixels(spec.observations) else planes
    if settings["async_rl"]:
        why = f"{kind}, variable experience" if config.variable_experience else kind
        mode = f"Sampling continues while the learner trains ({why})"
    else:
        mode = f"Sampling and learning take turns ({kind})"
    given = [n for n, value in _values(settings, spec).items() if getattr(config, n) != value]
    epochs = "epoch" if config.num_epochs == 1 else "epochs"
    rate = f"learning rate {config.learning_rate:g}"
    if config.lr_schedule == "cooldown":
        rate += ", which falls to 0 in the last quarter"
    shown = [f"{config.num_epochs} {epochs}", rate]
    if config.minibatch_size is not None:
        shown.insert(1, f"minibatches of {config.minibatch_size}")
    exceptions = f"; not the default: {', '.join(given)}" if given else ""
    return f"{mode}: {', '.join(shown)}{exceptions}"


def _settings(config: PpoConfig, spec: EnvSpec) -> dict[str, Any]:
    model, leaves = config.model, spec.observations
    pixels = model.has_pixels(leaves)
    on_policy = ON_POLICY_GRIDS if model.has_convolved(leaves) else ON_POLICY
    if isinstance(config, RanksRunConfig):
        with_images = ON_POLICY_IMAGES if model.core == "none" else RECURRENT_RANKS_WITH_IMAGES
        return with_images if pixels else on_policy
    asynchronous = config.async_rl
    if asynchronous is None:
        on_gpu = pixels and run_device(config, spec) != "cpu"
        asynchronous = on_gpu or config.sampler_only or config.variable_experience
    if asynchronous:
        return ASYNCHRONOUS_IMAGES if pixels else ASYNCHRONOUS
    return ON_POLICY_IMAGES if pixels else on_policy


def _values(settings: dict[str, Any], spec: EnvSpec) -> dict[str, Any]:
    """Return ``settings`` adapted to the kind of actions. An entropy bonus keeps a categorical
    policy from becoming deterministic when all advantages are noise, but for Box actions it lets
    the standard deviation grow."""
    if _has_boxes(spec) and settings is not ASYNCHRONOUS:
        return {**settings, "exploration_coeff": 0.0}
    return settings


def _has_boxes(spec: EnvSpec) -> bool:
    return any(action.kind == "box" for action in spec.actions.values())


def _model(config: PpoConfig, spec: EnvSpec) -> ModelConfig:
    """Return the model with its unset fields resolved. The more elements an action has, the less
    noise each begins with: with a standard deviation of 1 in each of six, HalfCheetah falls on its
    back and learns to move there."""
    model = config.model
    values: dict[str, Any] = {}
    if model.normalise_images is None:
        values["normalise_images"] = all(
            model.has_pixels(group.observations) for group in spec.agent_groups
        )
    if model.separate_critic is None:
        convolved = model.has_convolved(spec.observations)
        values["separate_critic"] = not convolved and model.core == "none"
    elements = action_layout(spec.actions).num_boxes
    if model.initial_log_std is None and elements:
        values["initial_log_std"] = 0.0 - round(0.5 * math.log(elements), 3)
    return dataclasses.replace(model, **values)


def _shape(config: PpoConfig, settings: dict[str, Any], spec: EnvSpec) -> dict[str, Any]:
    """Return the workers (or ranks), env rows and rollout of a run that samples and learns in turn,
    so that whole rollouts of all rows, with all agents of one policy in each, make a batch:
    --batch-size if it is given, else `BATCH` or more."""
    if isinstance(config, RanksRunConfig):
        return _rank_shape(config, settings, _ranks(config, settings, spec))
    agents, cores = spec.num_agents, 1 if config.serial else this_machine().cores
    batch = None if config.batch_size is None else config.batch_size // agents
    rollout, splits = config.rollout, config.num_splits or 1
    rows, usual = config.num_envs_per_worker, _usual_rows(config)
    if rows is None:
        unit = splits * (config.num_workers or 1)
        usual = min(usual, _most_rows(agents))
        total = _rows(batch, rollout, usual, unit) or _multiple(usual, unit)
        workers = config.num_workers or most_workers(total // splits, cores)
        rows = total // workers
    else:
        most, unit = config.num_workers or min(cores, usual // FEWEST_ROWS), rows * (rollout or 1)
        possible = [config.num_workers] if config.num_workers else range(most, 0, -1)
        filling = (w for w in possible if batch is None or batch % (w * unit) == 0)
        workers = next(filling, most)
    if rollout is None:
        rollout = _rollout(batch, rows * workers * (1 if batch else agents))
    return {"num_workers": workers, "num_envs_per_worker": rows, "rollout": rollout}


def _rank_shape(config: DdppoConfig, settings: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Return the number of ranks, and the env rows and the rollout of each, so that the rollouts of
    all ranks make about `BATCH`; ``config.batch_size`` is that of one rank."""
    batch, rollout, splits = config.batch_size, config.rollout, config.num_splits or 1
    images, rows = _has_rank_images(settings), config.num_envs_per_worker
    parts = BATCH // _usual_minibatch(config, settings)
    whole = PPO.whole_rollouts(config)
    usual = _group_rows(config, settings)
    about = _multiple(math.ceil(usual / ranks), math.lcm(splits, parts) if whole else splits)
    if images and rollout is None:
        unit = ROLLOUT_OF_IMAGES * (rows or splits)
        fits = batch % unit == 0 if batch is not None else rows is not None
        rollout = ROLLOUT_OF_IMAGES if fits else None
    rows = rows or _rows(batch, rollout, about, splits)
    if rollout is None:
        if batch is not None:
            rollout = _rollout(batch, rows or about)
        elif config.num_envs_per_worker is not None:
            rollout = _rollout(None, (rows or about) * ranks)
        else:  # of equal minibatches, as many as on any other number of ranks
            rollout = _rollout_of_parts(BATCH / (about * ranks), about, 1 if whole else parts)
    return {"num_ranks": ranks, "num_envs_per_worker": rows, "rollout": rollout}


def _rows(batch: int | None, rollout: int | None, about: int, unit: int) -> int | None:
    """Return the number of env rows: a multiple of ``unit``, near ``about``, whose rollouts make a
    ``batch``. None if there is no such number: the plan then raises an error that names the nearest
    batch size."""
    usual = _multiple(about, unit)
    if batch is None:
        return usual
    if rollout is not None:
        return None if batch % (rollout * unit) else batch // rollout
    fewer = range(usual, min(usual, FEWEST_ROWS) - 1, -unit)
    more = range(usual + unit, 2 * usual + 1, unit)
    return next((n for n in (*fewer, *more) if batch % n == 0), None)


def _rollout(batch: int | None, rows: int) -> int:
    """Return the env steps of a rollout, so that the rollouts of all rows make the ``batch``. If it
    is None, they make about `BATCH`, and the rollout is a multiple of `SHORTEST_ROLLOUT`, which has
    many divisors for minibatches."""
    if batch is not None:
        return max(1, batch // rows)
    return max(1, BATCH // rows // SHORTEST_ROLLOUT) * SHORTEST_ROLLOUT


def _rollout_of_parts(steps: float, rows: int, parts: int) -> int:
    """Return the length near ``steps`` of a rollout of ``rows`` rows which divides into so many
    equal ``parts``."""
    unit = parts // math.gcd(parts, rows)
    return max(1, round(steps / unit)) * unit


def _part(batch: int, rollout: int) -> int:
    """Return the longest rollout between half of ``rollout`` and ``rollout`` that divides
    ``batch``; ``rollout`` if there is none."""
    return next((n for n in range(rollout, rollout // 2, -1) if batch % n == 0), rollout)


def _multiple(number: int, unit: int) -> int:
    """Return ``number`` rounded up to a multiple of ``unit``."""
    return math.ceil(number / unit) * unit


def _most_rows(agents: int) -> int:
    """Return the number of env rows, a power of two, of which the shortest rollouts of all
    ``agents`` make no more than `BATCH`; at least 1."""
    return 1 << max(0, (BATCH // (SHORTEST_ROLLOUT * agents)).bit_length() - 1)


def _usual_rows(config: PpoConfig) -> int:
    """Return the number of env rows of the whole run, where nothing says otherwise."""
    return ROWS if config.model.core == "none" else RECURRENT_ROWS


def _ranks(config: DdppoConfig, settings: dict[str, Any], spec: EnvSpec) -> int:
    """Return the number of ranks: one per GPU, or on the CPU one per core, but no more than there
    are rows for them: one for each, or where minibatches are of whole rollouts one for each
    minibatch."""
    world = World.of_environment()
    if world is not None:
        return world.size
    if config.num_ranks or config.serial:
        return config.num_ranks or 1
    device, machine = run_device(config, spec), this_machine()
    if device != "cpu":
        return machine.gpus if device == "cuda" else 1
    usual, parts = _group_rows(config, settings), BATCH // _usual_minibatch(config, settings)
    return min(machine.cores, usual // parts if PPO.whole_rollouts(config) else ROWS)


def _group_rows(config: DdppoConfig, settings: dict[str, Any]) -> int:
    """Return the number of env rows of all ranks, where nothing says otherwise."""
    return ROWS if _has_rank_images(settings) else _usual_rows(config)


def _has_rank_images(settings: dict[str, Any]) -> bool:
    """Return whether the ``settings`` of ranks are those for images."""
    return settings in (ON_POLICY_IMAGES, RECURRENT_RANKS_WITH_IMAGES)


def _usual_minibatch(config: PpoConfig, settings: dict[str, Any]) -> int:
    """Return the env steps of a minibatch, over all ranks, where nothing says otherwise."""
    if config.model.core == "none":
        return MINIBATCH
    images = settings is RECURRENT_RANKS_WITH_IMAGES
    return RECURRENT_MINIBATCH_OF_IMAGES if images else RECURRENT_MINIBATCH


def _unit(config: PpoConfig) -> int:
    """Return the env steps that a minibatch is a multiple of."""
    return (config.rollout or 1) if PPO.whole_rollouts(config) else 1


def _minibatch(config: PpoConfig, settings: dict[str, Any], agents: int) -> int | None:
    """Return the minibatch size that divides the batch (of one rank) into equal parts and is
    nearest to the default, as a ratio. It is a multiple of the rollout if the loss or the core
    looks along time. None for a batch that the plan refuses."""
    rollout, rows = config.rollout, config.num_envs_per_worker
    if rollout is None or rows is None:
        return None
    about: float = _usual_minibatch(config, settings)
    if isinstance(config, RanksRunConfig):
        batch, about = config.batch_size or rollout * rows, about / (config.num_ranks or 1)
    else:
        each = rollout * rows * (config.num_workers or 1) * agents
        batch = config.batch_size or _multiple(MIN_BATCH, each)
    return nearest_minibatch(batch, about, _unit(config))


APPO = Pairing(PPO, SLOTS, resolve_defaults, reason)
DDPPO = Pairing(PPO, RANKS, resolve_defaults, reason)
