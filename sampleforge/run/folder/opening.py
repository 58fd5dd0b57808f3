"""The opening of a run folder: create or lock it, and read the checkpoint to resume from."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.replay.snapshot import ReplayFolder
from sampleforge.run.folder.checkpoint import CheckpointStore
from sampleforge.run.folder.replays import Replays
from sampleforge.run.folder.run_folder import RunFolder, default_run_dir
from sampleforge.topologies.config import ONLY_POLICY, AnyConfig


@dataclass(frozen=True)
class StoredPolicy:
    """What the folder of a run has of the policy group ``id``. ``earlier``: the driver's part of
    its latest checkpoint; empty where the policy begins. ``stored_replay``: that checkpoint's, or
    why there is none."""

    id: str
    store: CheckpointStore
    replays: Replays
    stored_replay: ReplayFolder
    earlier: dict[str, Any]


@dataclass(frozen=True)
class OpenRun:
    """An open run folder.

    ``asked``: the user's config; if the run resumes, with the settings that its first part was
    given and the user leaves at their defaults. ``config``: the same with a seed, and with the
    values that the first part had chosen. ``policies``: one entry per policy group; if there are
    several, each has a folder of checkpoints. ``notes``: what the user is to know."""

    asked: AnyConfig
    config: AnyConfig
    folder: RunFolder
    policies: tuple[StoredPolicy, ...]
    notes: Sequence[str] = ()

    @property
    def earlier(self) -> dict[str, Any]:
        """The driver's part of the newest checkpoint; empty where a run begins."""
        return max(
            (policy.earlier for policy in self.policies),
            key=lambda earlier: int(earlier.get("env_steps", -1)),
        )

    def prepare(self, resources: ExitStack) -> None:
        """Prepare the folder for the run, once nothing can be refused any more. ``resources``
        removes what it leaves unfinished. Raises OSError or ConfigError if that is not possible."""
        self.folder.prepare()
        for policy in self.policies:
            resources.callback(policy.replays.remove_unfinished)


def open_folder(
    asked: AnyConfig,
    resolve: Callable[[AnyConfig], AnyConfig],
    resources: ExitStack,
    interrupted: Callable[[], bool],
    log: Callable[[str], None],
    policies: Sequence[str] = (ONLY_POLICY,),
) -> OpenRun:
    """Open the run folder of the config ``asked`` (as the user gave it); ``resources`` closes it.
    Nothing in it changes before `OpenRun.prepare`.

    ``resolve`` resolves the defaults of a config for the environment. ``interrupted`` returns
    whether the run was asked to end; ``log`` gets messages about damaged files; ``policies``: ids
    of the policy groups. Raises ConfigError if the run may not start, or resume, in the folder."""
    path = Path(asked.run_dir) if asked.run_dir else default_run_dir(asked)
    folder = RunFolder(path.absolute())
    folder.create()
    resources.callback(folder.close)
    try:
        return _opened(folder, asked, resolve, interrupted, log, policies)
    except BaseException:
        folder.discard()
        raise


def _opened(
    folder: RunFolder,
    asked: AnyConfig,
    resolve: Callable[[AnyConfig], AnyConfig],
    interrupted: Callable[[], bool],
    log: Callable[[str], None],
    policies: Sequence[str],
) -> OpenRun:
    """Read what a locked folder has; see `open_folder`."""
    config, notes = asked, list[str]()
    resuming = folder.resumes(config)
    if resuming:
        asked, config, notes = folder.check_resume(config, resolve)
    stored = []
    for policy in policies:
        path = folder.checkpoints if len(policies) == 1 else folder.checkpoints / policy
        stored.append(_stored_policy(policy, path, asked, interrupted, log))
    if resuming:
        _check_policies(folder, stored, log)
    if config.seed is None:
        config = dataclasses.replace(config, seed=secrets.randbelow(2**31))
    if resuming and config.benchmark:
        raise ConfigError(
            f"run folder {folder.path} holds a training run, whose config and summary --benchmark "
            "would overwrite; give another --run-dir"
        )
    if config.benchmark:  # its length is --benchmark-seconds
        config = dataclasses.replace(config, train_for_env_steps=None, train_for_seconds=None)
    return OpenRun(asked, config, folder, tuple(stored), notes)


def _stored_policy(
    policy: str,
    checkpoints: Path,
    asked: AnyConfig,
    interrupted: Callable[[], bool],
    log: Callable[[str], None],
) -> StoredPolicy:
    """Open the ``checkpoints`` of one policy group."""
    store = CheckpointStore(checkpoints, asked.keep_checkpoints)
    replays = Replays(checkpoints, interrupted)
    found = store.load(log=log)
    earlier = {} if found is None else found[0].state
    return StoredPolicy(policy, store, replays, replays.find(earlier.get("replay"), log), earlier)


def _check_policies(
    folder: RunFolder, policies: Sequence[StoredPolicy], log: Callable[[str], None]
) -> None:
    """Tell ``log`` of policies without a checkpoint: a run that is killed while it writes its first
    checkpoints has those of some only. Raises ConfigError if no policy has one."""
    fresh = [policy.id for policy in policies if not policy.earlier]
    if len(fresh) == len(policies):
        raise ConfigError(
            f"the checkpoints in {folder.checkpoints} are of other policies than "
            f"{', '.join(fresh)}; give another --run-dir"
        )
    for policy in fresh:
        log(f"there is no checkpoint of {policy} yet: it begins anew")
