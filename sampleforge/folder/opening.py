"""The opening of a run folder: create or lock it, and read the checkpoint to resume from."""

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
    """An open run folder.

    ``config``: the user's config with a seed; if the run resumes, also with the values that its
    first part had chosen. ``earlier``: the driver's part of the checkpoint to resume from; empty if
    the run is new. ``stored_replay``: the replay of that checkpoint, or the reason why there is
    none."""

    config: AnyConfig
    folder: RunFolder
    store: CheckpointStore
    replays: Replays
    stored_replay: ReplayFolder
    earlier: dict[str, Any]


def open_folder(
    asked: AnyConfig,
    resolved: AnyConfig,
    resources: ExitStack,
    interrupted: Callable[[], bool],
    log: Callable[[str], None],
) -> OpenRun:
    """Open the run folder of the config ``asked`` (as the user gave it); ``resources`` closes it.

    ``resolved``: the same config with its defaults resolved for the environment. ``interrupted``
    returns whether the run was asked to end; ``log`` gets messages about damaged files. Raises
    ConfigError if the run may not start, or resume, in the folder."""
    path = Path(asked.run_dir) if asked.run_dir else default_run_dir(asked)
    folder = RunFolder(path.absolute())
    folder.create()
    resources.callback(folder.close)
    store = CheckpointStore(folder.checkpoints, asked.keep_checkpoints)
    replays = Replays(folder.checkpoints, interrupted)
    config, earlier = asked, {}
    resuming = folder.resumes(config)
    if resuming:
        config = folder.check_resume(config, resolved)
        loaded = store.load(log=log)
        assert loaded is not None
        earlier = loaded[0].state
    stored_replay = replays.find(earlier.get("replay"), log)
    resources.callback(replays.remove_unfinished)
    if config.seed is None:
        config = dataclasses.replace(config, seed=secrets.randbelow(2**31))
    if resuming and config.benchmark:
        raise ConfigError(
            f"run folder {path} holds a training run, whose config and summary --benchmark "
            "would overwrite; give another --run-dir"
        )
    if config.benchmark:  # its length is --benchmark-seconds
        config = dataclasses.replace(config, train_for_env_steps=None, train_for_seconds=None)
    return OpenRun(config, folder, store, replays, stored_replay, earlier)
