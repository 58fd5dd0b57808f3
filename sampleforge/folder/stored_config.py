"""config.yaml of a run folder: how a config is stored, read, and compared when a run is resumed.

Fields that the user left open (no seed, no batch size, no number of workers) are stored as they
were resolved, and as ``left_open`` besides: so the same command resumes the run, with the seed and
the batch it had. Those of them that are about the machine (`_MACHINE`) are resolved anew whenever
the file is read, because that may be on another machine.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from sampleforge.config import ConfigError, from_plain
from sampleforge.folder.atomic_file import write_atomically
from sampleforge.folder.trust import IMPORTABLE
from sampleforge.folder.versions import versions
from sampleforge.topologies.config import ALGOS

log = logging.getLogger(__name__)

C = TypeVar("C")

DEEPEST, MOST_VALUES = 50, 100_000
"""Of the values in a YAML file."""
HEADER = ("algo", "versions", "left_open")
"""Keys of config.yaml that are no fields of the config."""
OF_THE_COMMAND = ("run_dir", "resume")
"""Not stored: the folder may be moved."""
_STOP = {"train_for_env_steps", "train_for_seconds"}
_REPORTING = {
    *("report_interval", "checkpoint_interval", "keep_checkpoints", "milestone_interval"),
    *("quiet", "debug", "benchmark", "benchmark_seconds", "benchmark_peak", "sampler_only"),
    *("evaluate_interval", "evaluate_episodes", "evaluate_stochastic"),
}
_MACHINE = {
    *("serial", "device", "precision", "compile", "inference", "env_timeout", "decorrelate"),
    *("num_workers", "num_envs_per_worker", "num_splits", "num_policy_workers"),
    *("num_learners", "learner_devices", "learner_timeout"),
    "learner_threads",
    *("set_workers_cpu_affinity", "worker_niceness", "num_ranks", "rank_timeout"),
    *("sync_fraction", "min_rollout_fraction", "max_rollout_fraction"),
    *("max_rank_restarts", "max_worker_restarts", "max_env_restart_rate"),
    "max_policy_lag",  # left open, it follows the number of workers
    *("num_replay_shards", "prefetch_batches"),
    *("samples_per_insert_tolerance", "save_replay"),
}
_REMOVED = {"keep_driver_weights_in_sync": "rank 0's weights are always in shared memory"}
"""Fields of earlier versions that are no more, and why: they are left out, with a notice."""
_BEFORE_THEY_EXISTED: dict[str, Any] = {
    "rescale_actions": False,
    "noise_correlation": 0.0,
    "advantage_floor": 0.0,
}
"""What fields of today stand for in the config of a run that began before there were such fields,
where their defaults would change what was trained."""
_FIXED_DEFAULTS: dict[str, dict[str, Any]] = {
    "appo": {
        **{"async_rl": True, "rollout": 32, "num_epochs": 1, "advantage": "vtrace"},
        **{"learning_rate": 1e-4, "adam_eps": 1e-6, "max_grad_norm": 4.0},
        **{"clip_ratio": 0.1, "value_clip": 1.0, "exploration_coeff": 0.003},
        "model.separate_critic": False,
    },
    "ddppo": {
        **{"rollout": 128, "num_epochs": 2, "advantage": "gae"},
        **{"learning_rate": 2.5e-4, "adam_eps": 1e-6, "max_grad_norm": 0.2},
        **{"value_clip": 1.0, "exploration_coeff": 0.01},
        "model.separate_critic": False,
    },
    "apex": {
        **{"reward_clip": None, "head_size": 0, "priority_alpha": 0.6, "priority_beta": 0.4},
        "model.separate_critic": False,
    },
}
"""The defaults, where they were others, of the versions before defaults were fitted to the
environment: what such a run's config holds where its command line said nothing."""
_CHANGED_DEFAULTS = {*_BEFORE_THEY_EXISTED, *(n for of in _FIXED_DEFAULTS.values() for n in of)}
_FITTED_SINCE = "rescale_actions"
"""The field that came together with fitted defaults."""
MAY_CHANGE = frozenset({*OF_THE_COMMAND, *_STOP, *_REPORTING, *_MACHINE})
"""Fields that a resumed run may change: when to stop, what to report, how the work is spread over
the machine. All others shape what is learned."""


def write_config(path: Path, resolved: Any, asked: Any) -> None:
    """Store the ``resolved`` config, with what ``asked`` had left open and the versions."""
    fields, given = flat_fields(resolved), flat_fields(asked)
    for name in OF_THE_COMMAND:
        del fields[name]
    left_open = {name: given[name] for name in fields if given[name] != fields[name]}
    stored = {"algo": resolved.algo, "versions": versions(), **_nested(fields)}
    text = yaml.safe_dump(
        {**stored, "left_open": _plain(left_open)}, sort_keys=False, allow_unicode=True
    )
    write_atomically(path, f"# Written by SampleForge.\n{text}".encode())


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file of keys and values. Raises ConfigError if it is missing, damaged, or no such."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        _check_size(found)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read: {reason}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds a {type(found).__name__}, but must hold key: value lines")
    return found


def _check_size(value: Any) -> None:
    """Raise ValueError for nesting or repetition beyond reason: YAML's aliases make a value of any
    size, even an endless one, out of a few lines."""
    waiting, seen = [(value, 1)], 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if depth > DEEPEST or seen > MOST_VALUES:
            raise ValueError(
                f"its values are nested more than {DEEPEST} deep, or more than {MOST_VALUES:,}"
            )
        children = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            waiting += [(child, depth + 1) for child in children]


def config_values(path: Path, algo: str) -> dict[str, Any]:
    """The config fields in a YAML file written by hand or in a run's config.yaml, whose header is
    left out. In the latter, what was chosen for the machine is left open again, and fields that
    the run's version did not have get the meaning they had then. Raises ConfigError if the file is
    for another algorithm than ``algo``."""
    found = read_yaml(path)
    if found.get("algo", algo) != algo:
        raise ConfigError(
            f"{path} is a config for {found['algo']}, not for {algo}; train {found['algo']} with "
            "it, or give another file (in a run's folder: another --run-dir)"
        )
    for name in _REMOVED.keys() & found.keys():
        log.warning("%s: %s no longer exists and is ignored: %s", path, name, _REMOVED[name])
    fields = {key: value for key, value in found.items() if key not in {*HEADER, *_REMOVED}}
    if "versions" not in found:
        return fields
    left_open = found.get("left_open") or {}
    fields |= {name: value for name, value in left_open.items() if name in _MACHINE}
    return _as_meant(fields, algo)


def _as_meant(fields: Mapping[str, Any], algo: str) -> dict[str, Any]:
    """The fields of a run's config.yaml with what its version meant by those that it left out, or
    left empty."""
    known = flat_fields(ALGOS[algo]())
    meant = {**{n: v for n, v in _BEFORE_THEY_EXISTED.items() if n in known}, **fields}
    if _takes_whole_batches(fields):
        meant["minibatch_size"] = fields.get("batch_size")
    return meant


def _has_fixed_defaults(fields: Mapping[str, Any]) -> bool:
    """Whether the version that wrote these fields had the same defaults for all environments."""
    return _FITTED_SINCE not in fields


def _takes_whole_batches(fields: Mapping[str, Any]) -> bool:
    """Whether an empty minibatch_size is the whole batch, which since then it is with --async-rl
    only."""
    is_empty = "minibatch_size" in fields and fields["minibatch_size"] is None
    return is_empty and _has_fixed_defaults(fields) and not fields.get("async_rl")


def read_config(path: Path, cls: type[C]) -> tuple[C, dict[str, Any]]:
    """A stored config as ``cls``, and what the user had left open, or may have, by dotted name: the
    value that such a field has in a config made today.

    Raises ConfigError if the file is damaged, of another algorithm, or has fields unknown here.
    """
    algo = getattr(cls, "algo")  # noqa: B009 - a ClassVar of every topology's config
    config = from_plain(cls, config_values(path, algo), str(path))
    found = read_yaml(path)
    defaults = {name: _plain(value) for name, value in flat_fields(cls()).items()}
    may_be_open = {n for n in _BEFORE_THEY_EXISTED if n in defaults and n not in found}
    if _has_fixed_defaults(found):
        stored, then = flat_fields(config), _FIXED_DEFAULTS[algo]
        may_be_open |= {name for name, value in then.items() if stored[name] == value}
    if _takes_whole_batches(found):
        may_be_open.add("minibatch_size")
    left_open = {name: defaults[name] for name in may_be_open}
    stored_open = found.get("left_open") or {}
    return config, {**left_open, **{n: v for n, v in stored_open.items() if n not in _REMOVED}}


def changes(stored: Any, left_open: Mapping[str, Any], config: Any, fitted: Any) -> list[str]:
    """Lines ``name: old -> new`` for every field of ``config`` that would alter the learning of a
    run with the ``stored`` config.

    ``fitted`` is ``config`` as it is fitted to the environment: a value that comes out as the
    stored one is no change. ``left_open`` comes from the folder like the stored values, and excuses
    only a field that ``config`` leaves open as well: never a value that the user gave, and never
    one that names code.
    """
    old, new, fits = flat_fields(stored), flat_fields(config), flat_fields(fitted)
    defaults = flat_fields(type(config)())
    return [
        f"{name}: {_plain(old[name])!r} -> {_plain(value)!r}"
        for name, value in new.items()
        if name not in MAY_CHANGE
        and value != old[name]
        and not (name == "seed" and value is None)  # the run's own is meant
        and (name in IMPORTABLE or fits[name] != old[name])
        and not (
            _is_open(name, value, defaults[name])
            and name in left_open
            and _plain(value) == left_open[name]
        )
    ]


def _is_open(name: str, value: Any, default: Any) -> bool:
    """Whether a value leaves it to the run to choose one: the default does, too, where an earlier
    version had another one."""
    if name in IMPORTABLE:
        return False
    return value is None or value == "auto" or (value == default and name in _CHANGED_DEFAULTS)


def adopt(stored: C, config: C) -> C:
    """``config`` with every field that shapes the learning as it is in ``stored``; what names code
    is the same in both, and taken from ``config``."""
    own = {*MAY_CHANGE, *IMPORTABLE}
    kept = {k: v for k, v in flat_fields(stored).items() if k not in own}
    merged = _nested({**flat_fields(config), **kept})
    return from_plain(type(config), merged, "resumed config")


def with_own_code(config: C, own: C) -> C:
    """``config``, which came from elsewhere, with what names code as it is in ``own``."""
    kept = {name: value for name, value in flat_fields(own).items() if name in IMPORTABLE}
    return from_plain(type(config), _nested({**flat_fields(config), **kept}), "config")


def flat_fields(config: Any) -> dict[str, Any]:
    """Every field by dotted name (``model.core``)."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= {f"{field.name}.{name}": v for name, v in flat_fields(value).items()}
        else:
            found[field.name] = value
    return found


def _nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat_fields`, in YAML's plain values."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        *parents, leaf = name.split(".")
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """Tuples as lists, also within mappings: YAML has no tuples."""
    if isinstance(value, tuple | list):
        return [_plain(child) for child in value]
    if isinstance(value, Mapping):
        return {key: _plain(child) for key, child in value.items()}
    return value
