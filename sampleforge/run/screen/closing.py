"""The messages at the end of a run: its duration, its result and the next commands."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sampleforge.config import typed
from sampleforge.run.folder.stored_config import flat_fields
from sampleforge.run.folder.trust import imports_code
from sampleforge.run.screen.progress import duration, number
from sampleforge.topologies.config import policy_ids

if TYPE_CHECKING:
    from sampleforge.topologies.config import AnyConfig


def end_line(status: str, measured: Mapping[str, Any], folder: Path) -> str:
    """Return the result of a run in one line. ``measured``: the values of summary.json; ``status``:
    finished or interrupted."""
    mean, best = measured["return_mean"], measured["return_best"]
    reached = "no episode has ended"
    if mean is not None:
        reached = f"mean return {number(mean, ',.2f')} {_rests_on(measured)}"
    evaluated = measured.get("eval_return_mean")
    if mean is None and evaluated is not None:
        reached = f"last evaluated return {number(evaluated, ',.2f')}"
    if best is not None:
        reached += f", best {number(best, ',.2f')}"
    return (
        f"{status.capitalize()} after {duration(measured['wall_s'])}: "
        f"{measured['env_steps']:,} env steps, {reached}, in {shown(folder)}"
    )


def _rests_on(measured: Mapping[str, Any]) -> str:
    """Return in words the episodes that the mean return rests on."""
    count = int(measured["return_episodes"])
    episodes = f"{count:,} episodes" if count > 1 else "episode"
    if not measured["return_is_early"]:
        return f"of the last {episodes}"
    return (
        f"of the first {episodes} only (not every env row has ended one, and short episodes end "
        "first; evaluate the policy)"
    )


def next_commands(config: AnyConfig, folder: Path, status: str) -> list[str]:
    """Return the lines with the commands that resume, evaluate and plot a run. ``config``: as the
    user gave it. The list is empty if the run has no learner or is a benchmark."""
    if config.sampler_only or config.benchmark:
        return []
    path = shlex.quote(shown(folder))
    policy = "" if len(policy_ids(config)) == 1 else f" --policy {policy_ids(config)[0]}"
    trust = " --trust" if imports_code(config) else ""  # the run's own environment or encoder
    to_resume = "To resume"
    if status == "finished":
        to_resume += " (with a later stop condition)"
    return [
        f"{to_resume}: {resume_command(config, folder)}",
        f"To evaluate: sampleforge eval {path}{policy}{trust}",
        f"To plot: sampleforge plot {path}",
    ]


def resume_command(config: AnyConfig, folder: Path) -> str:
    """Return the command line that resumes the run in ``folder`` with ``config``, as the user
    gave it."""
    return train_command(dataclasses.replace(config, run_dir=shown(folder), resume="auto"))


def train_command(config: AnyConfig) -> str:
    """Return the command line that trains with ``config`` (as the user gave it): every flag that is
    not at its default."""
    defaults = flat_fields(type(config)())
    flags = [
        typed(name, value) for name, value in flat_fields(config).items() if value != defaults[name]
    ]
    return " ".join(["sampleforge train", config.algo, *flags])


def shown(folder: Path) -> str:
    """Return a folder as it is typed here: relative to the working directory if it is below it. The
    working directory may have been removed during the run."""
    try:
        relative = os.path.relpath(folder)
    except FileNotFoundError:
        return str(folder)
    return str(folder) if relative.startswith("..") else relative
