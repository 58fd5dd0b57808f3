"""Versions: of the packages that affect a run, and of the form in which it is stored.

All that is known of the forms of earlier versions is here: which of them this version reads, and
what it translates in them. Format 1 needs no translation, but for defaults that have changed their
form.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sampleforge.config import ConfigError
from sampleforge.version import __version__

if TYPE_CHECKING:
    import torch

FORMAT = 1
"""Number of the form in which a run is stored: its config, its checkpoints and all else in its
folder. It is increased when this version could not go on with a run of the version before it."""

FORMER_DEFAULTS = {
    "kl_coeff": 0.0,
    "lr_schedule": "constant",
    "model.initial_log_std": 0.0,
    "model.layer_norm": False,
    "model.normalise_images": False,
    "model.normalise_observations": True,
    "model.hidden_sizes": [64, 64],
}
"""Fields whose default is None now, and the value that it was, with which runs of then go on."""


def left_open(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields, by dotted name, with None in the place of `FORMER_DEFAULTS`."""
    return {
        name: None if name in FORMER_DEFAULTS and value == FORMER_DEFAULTS[name] else value
        for name, value in fields.items()
    }


RENAMED = {
    "evaluation_env": "evaluate_env",
    "evaluation_env_kwargs": "evaluate_env_kwargs",
    "evaluation_function": "evaluate_function",
}
"""Fields by the name that they had, and the one that they have now."""


FORMERLY_STORED = {"init_from"}
"""Fields that are not stored any more: a run goes on with them that has them from an earlier
version."""


def translated(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a run that an earlier version has stored, by the names that they have
    now."""
    fields = {RENAMED.get(name, name): value for name, value in fields.items()}
    if weights := fields.pop("policy_weights", None):
        fields["init_from"] = weights
    if "updates_per_env_step" in fields:  # from which the ratio follows
        fields["samples_per_insert"] = "auto"
    if fields.pop("exploration_schedule", "constant") == "linear":
        fields["anneal"] = {"exploration_coeff": "linear"}
    return fields


def translated_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint by the names that they have now. Normalisers had -mean /
    std where they have the mean now."""
    found = {}
    for name, tensor in tensors.items():
        leaf, _, buffer = name.rpartition(".")
        if buffer == "shift" and "normaliser.leaves." in leaf:
            found[f"{leaf}.mean"] = tensors[f"{leaf}.total_mean"].to(tensor.dtype)
        else:
            found[name] = tensor
    return found


def with_whole_batches(fields: Mapping[str, Any], left_open: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a stored run with the minibatch of an asynchronous run of an earlier
    version, which was the batch where it was left open. ``left_open``: the fields that its user
    left open; one of them, always open in this version, tells which version it was."""
    earlier = "model.normalise_images" not in left_open
    if earlier and fields.get("async_rl") and fields.get("minibatch_size", 0) is None:
        return {**fields, "minibatch_size": fields.get("batch_size")}
    return dict(fields)


def check_format(content: Mapping[str, Any], path: Path) -> None:
    """Raise ConfigError if this version cannot read the run whose config.yaml ``path`` has this
    ``content``."""
    stored = content.get("format", _unwritten(content))
    if stored == FORMAT:
        return
    versions = content.get("versions")
    known = versions.get("sampleforge") if isinstance(versions, Mapping) else None
    writer = f"SampleForge {known}" if known else "the version that wrote it"
    raise ConfigError(
        f"{path} is of format {stored!r}, and this version of SampleForge reads format {FORMAT}; "
        f"use {writer} for this run, or begin a new one in another --run-dir"
    )


def _unwritten(content: Mapping[str, Any]) -> int:
    """Return the format of a config.yaml that names none: the first versions of format 1 wrote no
    number, and can be told from those before by the encoding of observations."""
    model = content.get("model")
    return 1 if isinstance(model, Mapping) and "encode" in model else 0


REPOSITORY = Path(__file__).resolve().parents[3]


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def too_old() -> dict[str, tuple[str, str]]:
    """Return the packages that are older than SampleForge needs, each with its version and the
    least one. pip installs such a one where another package asks for it."""
    try:
        needed = metadata.requires("sampleforge") or []
    except metadata.PackageNotFoundError:  # not installed
        return {}
    found = {}
    for need in needed:
        package, _, least = need.partition(">=")
        if "extra ==" in need or not least:
            continue
        version = installed_version(package)
        if version is not None and _numbers(version) < _numbers(least):
            found[package] = version, least
    return found


def _numbers(version: str) -> list[int]:
    """Return the numbers of a version, such as [2, 13, 0] of 2.13.0+cpu."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def versions() -> dict[str, str | None]:
    """Return the versions of SampleForge, Python, torch, gymnasium and numpy, and the commit."""
    own: dict[str, str | None] = {"sampleforge": __version__, "git_commit": git_commit()}
    own["python"] = platform.python_version()
    return own | {name: installed_version(name) for name in ("torch", "gymnasium", "numpy")}


def git_commit(repository: Path = REPOSITORY) -> str | None:
    """Return the commit of the checkout that SampleForge runs from, with "-dirty" if files have
    changed since; None outside a checkout or without git."""
    if not (repository / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=10)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
