"""The config.yaml of a run folder: storing and reading a config, and comparing it on a resume.

Fields that the user has not set (no seed, no batch size, no number of workers) are stored with
their resolved values, and listed under ``left_open``. So the same command resumes the run, with the
same seed and batch size. Those that depend on the machine (`_MACHINE`) are resolved again whenever
the file is read, because that may be on another machine; what they come to in all (`RANKS`,
`ENV_ROWS`) is kept.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from sampleforge.algorithms.annealing import Annealing
from sampleforge.config import ConfigError, from_plain, typed
from sampleforge.env.given import PREFIX
from sampleforge.run.folder.trust import IMPORTABLE, MAIN
from sampleforge.run.folder.versions import (
    FORMAT,
    FORMERLY_STORED,
    check_format,
    translated,
    versions,
    with_whole_batches,
)
from sampleforge.runtime.files import write_atomically
from sampleforge.runtime.yaml_text import parsed_yaml

C = TypeVar("C")

HEADER = ("algo", "format", "versions", "left_open")
"""Keys of config.yaml that are not fields of the config."""
NOT_STORED = (
    "run_dir",
    "resume",
    "init_from",
    "init_parts",
    "init_mismatch",
    "record",
    "record_max_gb",
    "record_segment_mb",
    "record_compression",
)
"""Fields that are not in config.yaml: the folder may be moved, and one that another user has made
must not name a place to write to."""
_STOP = {"train_for_env_steps", "train_for_seconds", "stop"}
REPORTS = {
    "report_interval",
    "checkpoint_interval",
    "keep_checkpoints",
    "milestone_interval",
    "evaluate_interval",
    "evaluate_episodes",
    "evaluate_stochastic",
    "num_evaluators",
    "evaluate_env",
    "evaluate_env_kwargs",
    "evaluate_function",
    "metrics_window",
    "track",
    "track_project",
    "track_name",
    "track_group",
}
"""Fields that say what a run reports, evaluates and keeps, and where."""
EVALUATED = ("evaluate_env", "evaluate_env_kwargs", "evaluate_function", "evaluate_stochastic")
"""Fields that say what an evaluation measures."""
_REPORTING = {
    *REPORTS,
    "quiet",
    "debug",
    "benchmark",
    "benchmark_seconds",
    "benchmark_peak",
    "sampler_only",
    "serial",
}
_MACHINE = {
    "serial",
    "device",
    "precision",
    "compile",
    "inference",
    "env_timeout",
    "decorrelate",
    "num_workers",
    "num_envs_per_worker",
    "num_splits",
    "num_policy_workers",
    "num_learners",
    "learner_devices",
    "learner_timeout",
    "learner_threads",
    "set_workers_cpu_affinity",
    "worker_niceness",
    "num_ranks",
    "rank_timeout",
    "sync_fraction",
    "min_rollout_fraction",
    "max_rollout_fraction",
    "max_rank_restarts",
    "max_worker_restarts",
    "max_env_restart_rate",
    "max_policy_lag",  # its default depends on the number of workers
    "num_replay_shards",
    "prefetch_batches",
    "replay_gpu_memory",
    "cuda_graphs",
    "samples_per_insert_tolerance",
    "save_replay",
}
RANKS, OF_A_RANK = "num_ranks", {"rollout", "batch_size", "minibatch_size"}
"""The number of DD-PPO's ranks, and the sizes of one rank: they are chosen so that those of all
ranks together do not depend on it."""
ENV_ROWS = {"num_workers", "num_envs_per_worker"}
"""Fields of which a run that samples and learns in turn keeps the product, on any machine."""
_OF_ONE_PART = {
    *NOT_STORED,
    *_STOP,
    "quiet",
    "debug",
    "benchmark",
    "benchmark_seconds",
    "benchmark_peak",
    "sampler_only",
}
"""Fields that say what one command does, and that a resumed run does not take over."""
MAY_CHANGE = frozenset({*NOT_STORED, *_STOP, *_REPORTING, *_MACHINE})
"""Fields that a resumed run may change and that affect not what is learned: the stop condition,
reporting, and the use of the machine."""
_OF_LEARNING = {
    "learning_rate",
    "lr_schedule",
    "lr_target_kl",
    "anneal",
    "max_grad_norm",
    "batch_size",
    "minibatch_size",
    "num_epochs",
    "num_batches_to_accumulate",
    "reward_clip",
    "reward_scale",
    "clip_observations",
    "value_coeff",
    "rnd_learning_rate",
    # PPO
    "async_rl",
    "adam_betas",
    "adam_eps",
    "advantage",
    "advantage_floor",
    "normalise_advantages",
    "clip_ratio",
    "value_clip",
    "exploration_coeff",
    "kl_coeff",
    "gae_lambda",
    "vtrace_rho",
    "vtrace_c",
    # Q-learning
    "return_lambda",
    "epsilon_first",
    "epsilon_last",
    "epsilon_env_steps",
    "epsilon_base",
    "epsilon_exponent",
    "double",
    "huber_delta",
    "optimiser_eps",
    "target_update_interval",
    # any replay
    "replay_capacity",
    "learning_starts",
    "samples_per_insert",
    "updates_per_env_step",
    "priority_beta",
    "priority_beta_final",
    "weights_refresh_interval",
    # critics of actions
    "actor_interval",
    "exploration_noise",
    "exploration_spread",
    "target_entropy",
    "target_noise",
    "target_noise_clip",
    "target_rate",
    # imitation
    "advantage_exponent",
    "max_advantage_weight",
}
"""Fields that a resumed run may change, though they affect what is learned: they shape no weights,
no optimiser's state and no stored experience."""
_OF_NEW_EXPERIENCE = {"gamma", "rollout"}
"""The same, of algorithms that learn from each batch of experience once: what is stored in a replay
or a dataset depends on them."""
SAME_SETTING = frozenset({"seed", "save_replay", *NOT_STORED, *_REPORTING})
"""Fields in which runs of the same setting may differ: their seeds, places, reporting, and what is
kept of them."""


def write_config(path: Path, resolved: Any, asked: Any) -> None:
    """Store the ``resolved`` config, the fields that ``asked`` (the user's config) has not set, and
    the versions."""
    fields, given = flat_fields(resolved), flat_fields(asked)
    for name in NOT_STORED:
        fields.pop(name, None)  # some algorithms do not have it
    left_open = {name: given[name] for name in fields if given[name] != fields[name]}
    header = {"algo": resolved.algo, "format": FORMAT, "versions": versions()}
    stored = {**header, **nested(fields)}
    content = _in_text({**stored, "left_open": _plain(left_open)})
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_atomically(path, f"# Written by SampleForge.\n{text}".encode())


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the keys and values of a YAML file. Raises ConfigError if it is missing or damaged,
    or if it has a key twice."""
    try:
        content = copy.deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read: {reason}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise ConfigError(f"{path} holds a {kind}, but must hold key: value lines")
    return content


@lru_cache(maxsize=4)
def _parsed(text: str) -> Any:
    """Return the value of a YAML text, which callers must not change. Opening a folder reads its
    config.yaml three times, and parsing takes 20 ms."""
    return parsed_yaml(text)


def config_values(path: Path, algo: str) -> dict[str, Any]:
    """Return the config fields of a YAML file: one written by hand, or the config.yaml of a run.

    In a config.yaml, fields whose values were chosen for the machine are unset again. Raises
    ConfigError if the file is for another algorithm than ``algo``, or of a run whose format this
    version does not read."""
    fields, left_open = _stored_fields(path, algo)
    if RANKS in left_open:  # the sizes of a rank are those of as many ranks
        fields |= {n: value for n, value in left_open.items() if n in {RANKS, *OF_A_RANK}}
    if "batch_size" in left_open and _has_several_rollouts(fields):
        fields["batch_size"] = left_open["batch_size"]
    return fields | {n: value for n, value in left_open.items() if n in ENV_ROWS}


def _has_several_rollouts(fields: Mapping[str, Any]) -> bool:
    """Return whether ``fields`` are of a run that samples and learns in turn, and whose batch is
    not one rollout of each env row: the rows do not follow from it, but the batch from them."""
    sizes = [fields.get(name) for name in (*ENV_ROWS, "rollout")]
    each = math.prod(size for size in sizes if isinstance(size, int))
    return fields.get("async_rl") is False and each != fields.get("batch_size")


def _stored_fields(path: Path, algo: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config fields of a YAML file as `config_values` does, but with the batch, the env
    rows and the number of ranks that a run had, and the sizes of one of them; and what the user of
    the run has left open."""
    content = read_yaml(path)
    other = content.get("algo", algo)
    if other != algo:
        raise ConfigError(
            f"{path} is a config for {other}, not for {algo}; train {other} with it, or give "
            "another file (in a run's folder: another --run-dir)"
        )
    fields = {key: value for key, value in content.items() if key not in HEADER}
    if "versions" not in content:
        return fields, {}
    check_format(content, path)
    left_open = _left_open(content, path)
    fields = with_whole_batches(translated(fields), left_open)
    reopened = {n: value for n, value in left_open.items() if n in _MACHINE - {RANKS, *ENV_ROWS}}
    return fields | reopened, left_open


def _left_open(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what a config.yaml says was left open. Raises ConfigError if that is no mapping."""
    left_open = content.get("left_open") or {}
    if not isinstance(left_open, dict):
        raise ConfigError(f"{path}: left_open must hold key: value lines")
    return left_open


def read_config(path: Path, cls: type[C]) -> tuple[C, dict[str, Any]]:
    """Return a stored config as ``cls``, and the fields that the user has not set: dotted name ->
    the value that such a field has in the user's config.

    Raises ConfigError if the file is damaged, of another algorithm or format, or has unknown
    fields."""
    algo = getattr(cls, "algo")  # noqa: B009 - a ClassVar of every topology's config
    fields, left_open = _stored_fields(path, algo)
    return from_plain(cls, fields, str(path)), left_open


def _of_learning(config: Any) -> set[str]:
    """Return the fields of this kind of config that affect what is learned, and that a resumed run
    may change all the same."""
    stores = hasattr(config, "replay_capacity") or hasattr(config, "shuffle_buffer")
    return _OF_LEARNING if stores else _OF_LEARNING | _OF_NEW_EXPERIENCE


def changes(stored: Any, left_open: Mapping[str, Any], config: Any, resolved: Any) -> list[str]:
    """Return a line ``name: old -> new`` for every field of ``config`` that a run with the
    ``stored`` config cannot go on with, because it shapes what the run has learned.

    ``resolved`` is ``config`` with its defaults resolved for the environment: a field that resolves
    to the stored value is no change. ``left_open`` comes from the run folder, like the stored
    values. It excuses only fields that ``config`` leaves unset as well, never a value that the user
    gave, and never one that names code.
    """
    old, new, chosen = flat_fields(stored), flat_fields(config), flat_fields(resolved)
    defaults, free = flat_fields(type(config)()), MAY_CHANGE | _of_learning(config)
    return [
        f"{name}: {_plain(old[name])!r} -> {_plain(value)!r}"
        for name, value in new.items()
        if name not in free
        and value != old[name]
        and not (name == "seed" and value is None)  # None means the stored seed
        and not (name in IMPORTABLE and _is_named_now(name, old[name], value))
        and (name in IMPORTABLE or chosen[name] != old[name])
        and not (_is_unset(name, value, defaults[name]) and _is_left(name, value, left_open))
    ]


def _is_named_now(name: str, old: Any, value: Any) -> bool:
    """Return whether an object of the program that trained, or code of its main module, which no
    other program can import, is given under a name."""
    before, now = (str(each).startswith((PREFIX, MAIN)) for each in (old, value))
    return before and not now and (name == "env" or ":" in str(value))


def _is_unset(name: str, value: Any, default: Any) -> bool:
    """Return whether a value leaves the choice to the run. A default does, but for code."""
    return name not in IMPORTABLE and (value is None or value == "auto" or value == default)


def inherited(stored: C, left_open: Mapping[str, Any], config: C) -> tuple[C, list[str]]:
    """Return ``config`` with the value that the run was given for every field which ``config``
    leaves at its default, and these fields as they are typed. Fields that say what one command
    does, and those that name code, are ``config``'s own; schedules that are functions must be given
    again (ConfigError).

    A default that is given explicitly cannot be told from one that is not. So switches that may
    change are ``config``'s own, too: they could not be turned back.
    """
    given, defaults = flat_fields(config), flat_fields(type(config)())
    kept = {
        name: value
        for name, value in flat_fields(stored).items()
        if name not in {*_OF_ONE_PART - FORMERLY_STORED, *IMPORTABLE, *left_open}
        and given[name] == defaults[name] != value
        and not (name in MAY_CHANGE and isinstance(value, bool))
    }
    if any(Annealing(*item).is_code for item in kept.get("anneal", {}).items()):
        raise ConfigError(
            f"{typed('anneal', kept['anneal'])}: the run has it, and code that a run folder names "
            "is never imported from there; repeat it, or give another --anneal"
        )
    merged = from_plain(type(config), nested({**given, **kept}), "resumed config")
    return merged, [typed(name, value) for name, value in kept.items() if name != "seed"]


def with_ranks_of(stored: Any, left_open: Mapping[str, Any], asked: Any, resolved: Any) -> Any:
    """Return the ``stored`` config for as many ranks as ``resolved`` has, which is ``asked`` with
    its defaults. A batch is that of all ranks together, so the sizes of one rank that were not
    given change with the number of ranks."""
    from sampleforge.topologies.pairings.ddppo_config import DdppoConfig

    if not isinstance(stored, DdppoConfig) or None in (stored.num_ranks, resolved.num_ranks):
        return stored
    if stored.num_ranks == resolved.num_ranks:
        return stored
    from sampleforge.topologies.pairings.ppo_defaults import for_ranks

    shape = {name: getattr(asked, name) for name in ("num_envs_per_worker", "num_splits")}
    return for_ranks(dataclasses.replace(stored, **shape), resolved.num_ranks, left_open)


def change_of_ranks(before: Any, now: Any) -> list[str]:
    """Return what the user is to know if a run goes on with another number of ranks: a line with
    the sizes of all ranks together. ``now``: what `with_ranks_of` has returned for ``before``."""
    from sampleforge.topologies.pairings.ddppo_config import DdppoConfig

    if not isinstance(before, DdppoConfig) or before.num_ranks == now.num_ranks:
        return []

    def of_all(size: str) -> str:
        was, is_now = (config.num_ranks * getattr(config, size) for config in (before, now))
        return f"{is_now:,} (before {was:,})"

    ranks = "1 rank" if now.num_ranks == 1 else f"{now.num_ranks} ranks"
    return [
        f"{ranks} in place of {before.num_ranks}: a batch of all of them has "
        f"{of_all('batch_size')} env steps, and a minibatch {of_all('minibatch_size')}"
    ]


def adopt(stored: C, left_open: Mapping[str, Any], config: C) -> C:
    """Return ``config`` with the ``stored`` value of every field that affects what is learned,
    unless it is changed. Fields that name code are equal in both, and taken from ``config``. A
    learning rate that by default fell until the end is constant in a run without an end."""
    own = {*MAY_CHANGE, *IMPORTABLE, *changed_learning(stored, left_open, config)}
    kept = {k: v for k, v in flat_fields(stored).items() if k not in own}
    if "lr_schedule" in kept.keys() & left_open.keys() and not cast(Any, config).has_end:
        kept["lr_schedule"] = "constant"
    merged = nested({**flat_fields(config), **kept})
    return from_plain(type(config), merged, "resumed config")


def with_rows_of(
    stored: Any, left_open: Mapping[str, Any], asked: Any, resolved: Any, used: Any
) -> Any:
    """Return ``used``, what a resumed run goes on with, with the env rows that the run has had:
    they are among what it learns with, but the fields that make them up are the machine's.
    ``resolved`` is ``asked`` with its defaults. What ``asked`` changes of the batch, the rollout or
    a worker's env rows has other env rows."""
    from sampleforge.topologies.pairings.ppo_config import AppoConfig

    sizes = {"batch_size", "rollout", "async_rl"}
    if (
        not isinstance(used, AppoConfig)
        or used.async_rl is not False
        or used.num_envs_per_worker not in (None, stored.num_envs_per_worker)
        or sizes & changed_learning(stored, left_open, asked).keys()
    ):
        return used
    from sampleforge.topologies.pairings.ppo_defaults import for_rows

    return for_rows(used, stored, resolved.num_envs_per_worker)


def changed_learning(stored: Any, left_open: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Return the fields of ``config``, with their values, that change what a resumed run learns
    from now on."""
    old, defaults, free = flat_fields(stored), flat_fields(type(config)()), _of_learning(config)
    return {
        name: value
        for name, value in flat_fields(config).items()
        if name in free
        and value != old[name]
        and not (_is_unset(name, value, defaults[name]) and _is_left(name, value, left_open))
    }


def new_settings(stored: Any, left_open: Mapping[str, Any], config: Any) -> list[str]:
    """Return each field, of those that may change and do not say what one command does, for which
    a resumed run is given another value than it had: as it is typed, with the earlier value."""
    old = flat_fields(stored)
    return [
        f"{typed(name, value)} (was {'automatic' if name in left_open else _plain(old[name])})"
        for name, value in flat_fields(config).items()
        if name in MAY_CHANGE
        and name not in _OF_ONE_PART
        and value != old[name]
        and not _is_left(name, value, left_open)
    ]


def notes_of_evaluations(stored: Any, left_open: Mapping[str, Any], config: Any) -> list[str]:
    """Return what the user is to know if evaluations measure something else than those of the run
    so far: a line on the best checkpoint."""
    if stored.evaluate_interval is None:
        return []
    old, new = flat_fields(stored), flat_fields(config)
    changed = [
        typed(name, new[name])
        for name in EVALUATED
        if new[name] != old[name] and not _is_left(name, new[name], left_open)
    ]
    if not changed:
        return []
    return [
        f"{', '.join(changed)}: the best checkpoint stays that of the evaluations before, until a "
        "new one has a higher return; for one of the new evaluations alone, use another --run-dir"
    ]


def _is_left(name: str, value: Any, left_open: Mapping[str, Any]) -> bool:
    """Return whether a field is still as open as the run's user has left it."""
    return name in left_open and bool(_plain(value) == left_open[name])


def with_own_code(config: C, own: C) -> C:
    """Return ``config``, which came from another process, with the values of ``own`` for the fields
    that can name code."""
    code = {*IMPORTABLE, "anneal"}
    kept = {name: value for name, value in flat_fields(own).items() if name in code}
    return from_plain(type(config), nested({**flat_fields(config), **kept}), "config")


def flat_fields(config: Any) -> dict[str, Any]:
    """Return the value of every field by its dotted name, such as ``model.core``."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            fields |= {f"{field.name}.{name}": v for name, v in flat_fields(value).items()}
        else:
            fields[field.name] = value
    return fields


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested fields, in plain values of YAML: the inverse of `flat_fields`."""
    nested: dict[str, Any] = {}
    for name, value in fields.items():
        *parents, leaf = name.split(".")
        parent_fields = nested
        for parent in parents:
            parent_fields = parent_fields.setdefault(parent, {})
        parent_fields[leaf] = _plain(value)
    return nested


def _in_text(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with the bare text of each text: of an environment that was given as an object,
    its name (`sampleforge.env.given`)."""
    return {key: str(value) if isinstance(value, str) else value for key, value in fields.items()}


def _plain(value: Any) -> Any:
    """Return a value with lists in the place of tuples, also within mappings: YAML has no
    tuples."""
    if isinstance(value, tuple | list):
        return [_plain(child) for child in value]
    if isinstance(value, Mapping):
        return {key: _plain(child) for key, child in value.items()}
    return value
