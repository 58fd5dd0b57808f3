"""A run's folder, opened: created or found, locked, and with what the run goes on from."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.folder.checkpoint import CheckpointStore
from sampleforge.folder.replays import Replays
from sampleforge.folder.run_folder import RunFolder, default_run_dir
from sampleforge.replay.snapshot import ReplayFolder
from sampleforge.topologies.config import AnyConfig


@dataclass(frozen=True)
class OpenRun:
    """``config``: what was asked for, with a seed, and in what a resumed run had decided itself as
    it was. ``earlier``: the driver's part of its checkpoint; empty where a run begins.
    ``stored_replay``: that checkpoint's, or why there is none."""

    config: AnyConfig
    folder: RunFolder
    store: CheckpointStore
    replays: Replays
    stored_replay: ReplayFolder
    earlier: dict[str, Any]


def open_folder(
    asked: AnyConfig,
    fitted: AnyConfig,
    resources: ExitStack,
    interrupted: Callable[[], bool],
    log: Callable[[str], None],
) -> OpenRun:
    """Open the folder that a run was asked to have; ``resources`` closes it. ``fitted``: what was
    asked for as it is fitted to the environment. ``log`` is told what of it is damaged and left
    out. Raises ConfigError if the run may not begin, or go on, in it."""
    path = Path(asked.run_dir) if asked.run_dir else default_run_dir(asked)
    folder = RunFolder(path.absolute())
    folder.create()
    resources.callback(folder.close)
    store = CheckpointStore(folder.checkpoints, asked.keep_checkpoints)
    replays = Replays(folder.checkpoints, interrupted)
    config, earlier = asked, {}
    resuming = folder.resumes(config)
    if resuming:
        config = folder.check_resume(config, fitted)
        found = store.load(log=log)
        assert found is not None
        earlier = found[0].state
    stored_replay = replays.find(earlier.get("replay"), log)
    resources.callback(replays.remove_unfinished)
    if config.seed is None:
        config = dataclasses.replace(config, seed=secrets.randbelow(2**31))
    if resuming and config.benchmark:
        raise ConfigError(
            f"run folder {path} holds a training run, whose config and summary --benchmark "
            "would overwrite; give another --run-dir"
        )
    if config.benchmark:  # it has a length of its own
        config = dataclasses.replace(config, train_for_env_steps=None, train_for_seconds=None)
    return OpenRun(config, folder, store, replays, stored_replay, earlier)
