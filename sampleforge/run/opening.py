"""The opening of a run folder: create or lock it, and read the checkpoints to resume from."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sampleforge.algorithms.annealing import check_learning_rate
from sampleforge.config import ConfigError, typed
from sampleforge.models.encoder_registry import with_import_string
from sampleforge.replay.snapshot import ReplayFolder
from sampleforge.run.folder.checkpoint import CheckpointStore, ResumeCheckpoint
from sampleforge.run.folder.initial import (
    InitialWeights,
    initial_weights,
    keep_weights,
    kept_weights,
    places_of,
)
from sampleforge.run.folder.kinds import check_kind
from sampleforge.run.folder.new_folder import run_dir_of
from sampleforge.run.folder.replays import Replays
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.spec import EnvSpec, with_action_units
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.datasets import check_datasets
from sampleforge.topologies.evaluator import check_evaluation
from sampleforge.topologies.policy_roles import OPPONENT, PolicyRoles
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.starts import ResumePoint
from sampleforge.workers.learner_change import LOAD

if TYPE_CHECKING:
    from sampleforge.topologies.graph import FrozenGroup


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

    def unsaved_changes(self, config: AnyConfig) -> dict[str, Any]:
        """Return the hyperparameters, with their values in ``config``, that of the policy's agents,
        in which it differs from their config of the latest checkpoint: those that are changed now,
        and those of a part of the run that was killed before its first checkpoint, which
        config.yaml alone has."""
        before = self.configured
        now = {name: getattr(config, name, value) for name, value in before.items()}
        return {name: value for name, value in now.items() if value != before[name]}

    @property
    def configured(self) -> dict[str, Any]:
        """The hyperparameters in the config of the policy's agents, as of the latest checkpoint."""
        configured: dict[str, Any] = self.earlier.get("configured", {})
        return configured

    @property
    def set_during_run(self) -> dict[str, Any]:
        """The hyperparameters, with the learner's values, that a callback or a state from elsewhere
        has set."""
        learner = self.earlier.get("learner", {}).get("hyperparameters", {})
        configured = self.configured.items()
        return {n: learner[n] for n, value in configured if n in learner and learner[n] != value}


@dataclass(frozen=True)
class OpenRun:
    """An open run folder.

    ``asked``: the user's config; if the run resumes, with the settings that its first part was
    given and the user leaves at their defaults. ``config``: the same with a seed, and with the
    values that the first part had chosen. ``policies``: one entry per policy group; if there are
    several, each has a folder of checkpoints. ``spec``: the environment's, as the run sees it.
    ``warnings``, ``notes``: what the user is to know. ``changed``: what a resumed run changes of
    the learning, new values by name. ``initial``: the weights of --init-from that policies begin
    with, by their ids; ``frozen``: the frozen policies, each with the checkpoint of its weights in
    this folder (None: it begins)."""

    asked: AnyConfig
    config: AnyConfig
    spec: EnvSpec
    folder: RunFolder
    policies: tuple[StoredPolicy, ...]
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    changed: Mapping[str, Any] = field(default_factory=dict)
    initial: Mapping[str, InitialWeights] = field(default_factory=dict)
    frozen: Mapping[str, ResumeCheckpoint | None] = field(default_factory=dict)

    @property
    def earlier(self) -> dict[str, Any]:
        """The driver's part of the newest checkpoint; empty where a run begins."""
        return max(
            (policy.earlier for policy in self.policies),
            key=lambda earlier: int(earlier.get("env_steps", -1)),
        )

    @property
    def newest_request(self) -> int:
        """The largest number of a `ChangeRequest` that is part of a policy's state."""
        tags = [each.earlier.get("learner", {}).get("tag", {}) for each in self.policies]
        return max(int(tag.get(LOAD, 0)) for tag in tags)

    @property
    def resume_point(self) -> ResumePoint:
        """Where the run begins: at its start, or after an earlier run of the folder."""
        earlier, seed = self.earlier, self.config.seed
        assert seed is not None
        return ResumePoint(
            seed=seed,
            resumes=earlier.get("resumes", -1) + 1,
            env_steps=earlier.get("env_steps", 0),
            wall_s=earlier.get("wall_s", 0.0),
        )

    def resume(self, stored: StoredPolicy, config: Any) -> ResumeCheckpoint | None:
        """Return the checkpoint from which a policy goes on, with the hyperparameters that have
        been changed since; None where it begins. ``config``: that of the policy's agents."""
        if not stored.earlier:
            return None
        return ResumeCheckpoint(stored.store, {**self.changed, **stored.unsaved_changes(config)})

    def notes_of_learning(self, config_of: Callable[[str], Any]) -> list[str]:
        """Return a line for each hyperparameter with which policies go on, though it is not
        `changed`, and their config of the latest checkpoint has another value. ``config_of``: id of
        a policy -> the config of its agents."""
        lines: dict[str, list[str]] = {}
        says_so = getattr(self.config, "pbt", False) or getattr(self.config, "schedule", None)
        for policy in self.policies:
            unsaved = policy.unsaved_changes(config_of(policy.id))
            for name in unsaved.keys() - self.changed:
                was = f"the latest checkpoint has {policy.configured[name]}"
                line = f"Changed from here on: {typed(name, unsaved[name])} ({was})"
                lines.setdefault(line, []).append(policy.id)
            was_set = {} if says_so else policy.set_during_run
            for name in was_set.keys() - {*self.changed, *unsaved}:
                line = f"As it was set during the run: {typed(name, was_set[name])}"
                lines.setdefault(line, []).append(policy.id)
        every = len(self.policies)
        return [
            line if len(of) == every else f"{line} (of {', '.join(of)})"
            for line, of in sorted(lines.items())
        ]

    def prepare(self, resources: ExitStack, frozen: Sequence[FrozenGroup]) -> None:
        """Prepare the folder for the run, once nothing can be refused any more: it keeps the
        weights of policies that are ``frozen`` from the beginning. ``resources`` removes what it
        leaves unfinished. Raises OSError or ConfigError if that is not possible."""
        self.folder.prepare()
        for each in frozen:
            if each.id in self.frozen and self.frozen[each.id] is None:
                keep_weights(self.folder, each)
        for policy in self.policies:
            resources.callback(policy.replays.remove_unfinished)


def with_code(config: AnyConfig) -> AnyConfig:
    """Return the config with an encoder's import string in the place of the name that the user's
    own code may have registered. Raises ConfigError for what is not there."""
    return dataclasses.replace(config, model=with_import_string(config.model))


def open_run(
    asked: AnyConfig,
    spec: EnvSpec,
    roles: PolicyRoles,
    resources: ExitStack,
    interrupted: Callable[[], bool],
) -> OpenRun:
    """Open the folder of a run in the environment of ``spec``; ``resources`` closes it. Nothing in
    it changes before `OpenRun.prepare`.

    ``asked``: the config as the user gave it. ``roles``: the policies of the run.
    ``interrupted()``: whether the run was asked to end. Raises ConfigError if the run may not
    start, or resume, in the folder."""
    check_learning_rate(asked)
    check_evaluation(asked, spec)
    warnings = check_datasets(asked, spec)
    folder = RunFolder(run_dir_of(asked, resources).absolute())
    check_kind(folder.path, "run", "--run-dir")
    folder.create()
    resources.callback(folder.close)
    try:
        return _opened(folder, asked, spec, roles, interrupted, warnings)
    except BaseException:
        folder.discard()
        raise


def _opened(
    folder: RunFolder,
    asked: AnyConfig,
    spec: EnvSpec,
    roles: PolicyRoles,
    interrupted: Callable[[], bool],
    warnings: list[str],
) -> OpenRun:
    """Read what a locked folder has; see `open_run`. ``warnings`` gets those of damaged files."""
    config, notes = asked, list[str]()
    changed: Mapping[str, Any] = {}
    resuming = folder.resumes(config)
    if resuming:
        resumed = folder.check_resume(config, lambda c: pairing(c).resolved(c, spec))
        asked, config, notes, changed = resumed
    stored = []
    for policy in roles.trained:
        path = folder.checkpoints if len(roles.trained) == 1 else folder.checkpoints / policy
        stored.append(_stored_policy(policy, path, asked, interrupted, warnings.append))
    frozen = {
        name: kept_weights(folder, name, warnings.append) if resuming else None
        for name in roles.frozen
        if name != OPPONENT
    }
    begin = [policy.id for policy in stored if not policy.earlier]
    begin += [name for name, kept in frozen.items() if kept is None]
    places = places_of(asked, roles.trained)
    taken = {name: at for name, at in places.items() if name in begin}
    weights = {
        at: initial_weights(asked, at, warnings.append) for at in dict.fromkeys(taken.values())
    }
    initial = {name: weights[at] for name, at in taken.items()}
    notes = [*notes, *_notes_of_weights(asked, places, initial)]
    if resuming:
        _check_policies(folder, stored, warnings.append)
    if config.seed is None:
        config = dataclasses.replace(config, seed=secrets.randbelow(2**31))
    if resuming and config.benchmark:
        raise ConfigError(
            f"run folder {folder.path} holds a training run, whose config and summary --benchmark "
            "would overwrite; give another --run-dir"
        )
    if config.benchmark:  # its length is --benchmark-seconds
        config = dataclasses.replace(config, train_for_env_steps=None, train_for_seconds=None)
    spec = with_action_units(spec, rescale=config.rescale_actions)
    opened = OpenRun(
        asked, config, spec, folder, tuple(stored), warnings, notes, changed, initial, frozen
    )
    if opened.earlier:
        folder.check_spec(spec)
    return opened


def _notes_of_weights(
    asked: AnyConfig, places: Mapping[str, str], initial: Collection[str]
) -> list[str]:
    """Return a line for each of the ``places`` (see `places_of`): whether the policy begins with
    the weights there. ``initial``: the policies that do."""
    lines = dict[str, None]()
    parts = ", ".join(asked.init_parts)
    taken = f"The weights of the {parts}" if parts else "The weights"
    for policy, place in places.items():
        of = f" of {policy}" if isinstance(asked.init_from, dict) else ""
        if policy in initial:
            lines[f"{taken}{of} are those of {place} at the beginning"] = None
        else:
            lines[f"--init-from {place}: this run goes on from its own checkpoint{of}"] = None
    return [*lines]


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
