"""Self-play in training: the policy that learns plays against snapshots of itself.

Actors draw the opponents and play them (`sampleforge.shared.snapshots`); here the pool is filled,
the probabilities are set, and the results are kept."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sampleforge.populations.league import League, LeagueRules
from sampleforge.populations.ratings import score_of
from sampleforge.run.callback import Callback
from sampleforge.run.folder.checkpoint import (
    Checkpoint,
    CheckpointError,
    decode,
    encode,
    load_weights,
    model_tensors,
)
from sampleforge.run.folder.files import writing
from sampleforge.runtime.files import write_atomically, write_json
from sampleforge.topologies.policy_roles import OPPONENT

if TYPE_CHECKING:
    import torch

    from sampleforge.run.folder.run_folder import RunFolder
    from sampleforge.run.session import Session
    from sampleforge.shared.records import EpisodeRecord

SUFFIX = ".safetensors"


class SnapshotFiles:
    """The files ``<number>.safetensors`` in ``folder``, each with the weights of one snapshot."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}{SUFFIX}"

    def write(self, number: int, env_steps: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Write the weights of snapshot ``number``, a model's state_dict, and replace an earlier
        file of this number. Raises CannotWrite, as on a full disk."""
        self._folder.mkdir(exist_ok=True)
        tensors = {f"model/{name}": tensor for name, tensor in weights.items()}
        data = encode(Checkpoint(tensors, {"env_steps": env_steps}), {"number": number})
        with writing(self._path(number)):
            write_atomically(self._path(number), data)

    def read(self, number: int) -> Checkpoint:
        """Return a snapshot, with the tensors of the model as in a checkpoint. Raises
        FileNotFoundError if it is not there, CheckpointError, with the file, if it is damaged."""
        path = self._path(number)
        data = path.read_bytes()
        try:
            return decode(data)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error

    @property
    def numbers(self) -> list[int]:
        """The numbers of all snapshots that are there, in order."""
        return sorted(
            int(path.stem) for path in self._folder.glob(f"*{SUFFIX}") if path.stem.isdigit()
        )

    def keep_only(self, numbers: Collection[int]) -> None:
        """Remove all other snapshots."""
        for number in set(self.numbers) - set(numbers):
            self._path(number).unlink(missing_ok=True)


Model = TypeVar("Model", bound="torch.nn.Module")
STATE = "self_play"
"""The name of the league's state in checkpoints."""


class SelfPlay(Callback):
    """Takes a snapshot of the policy every ``interval`` env steps, the first one of the weights
    that it begins with, and sets the probabilities by which actors draw opponents.

    The run folder has the weights of the snapshots, and self_play.json with the results. The
    league's state is part of the checkpoints, so that a resumed run continues with the same pool;
    from a checkpoint without one, self-play begins anew.
    A benchmark, which is not resumed, has neither.
    """

    def __init__(self, rules: LeagueRules, interval: int) -> None:
        """Raises ConfigError if openskill is missing."""
        self._interval = interval
        self.league = League(rules)
        self._games_published = -1

    def on_start(self, session: Session) -> None:
        (group,) = session.graph.groups
        self._pool = next(each.pool for each in session.graph.frozen if each.id == OPPONENT)
        self._files = SnapshotFiles(session.folder.snapshots)
        self._weights = group.weights
        self._state = session.run_plan.new_model(group.id).state_dict()
        self._drawn: list[float] = []  # the probabilities that the pool has
        self._in_checkpoints: deque[frozenset[int]] = deque(
            maxlen=max(1, session.config.keep_checkpoints)
        )
        # Those of earlier checkpoints, until as many newer ones have taken their place.
        self._in_checkpoints.append(frozenset(self._files.numbers))
        earlier = session.opened.policies[0].earlier
        if STATE in earlier:
            self.league.load(earlier[STATE])
            self._fill_pool(session)
        elif earlier:  # a copy of another run; the checkpoints before it name these files
            self.league.taken = 1 + max(self._files.numbers, default=-1)
        if not self.league.snapshots:
            self._take(session)
        self._publish()

    def _fill_pool(self, session: Session) -> None:
        """Put the snapshots of the checkpoint into the pool, without those whose files are lost."""
        for snapshot in list(self.league.snapshots):
            try:
                checkpoint = self._files.read(snapshot.number)
                tensors = model_tensors(checkpoint.tensors)
                self._pool.put(
                    snapshot.entry, {name: tensors[name] for name in self._state}, snapshot.number
                )
            except (OSError, CheckpointError, KeyError) as error:
                self.league.remove(snapshot)
                session.message(
                    f"Self-play goes on without the snapshot at {snapshot.env_steps:,} env steps, "
                    f"which cannot be read: {error}",
                    "warning",
                )

    def _take(self, session: Session) -> None:
        """Take a snapshot of the newest weights."""
        env_steps = session.graph.progress.env_steps
        self._weights.read(self._state)
        taken = self.league.take(env_steps)
        if not session.config.benchmark:
            self._files.write(taken.number, env_steps, self._state)
        self._pool.put(taken.entry, self._state, taken.number)
        self._publish()

    def _publish(self) -> None:
        drawn = self.league.probabilities().tolist()
        if drawn != self._drawn:
            self._pool.set_probabilities(drawn)
            self._drawn = drawn
        self._games_published = self.league.games

    def on_poll(self, session: Session) -> None:
        newest = self.league.snapshots[-1].env_steps
        if session.graph.progress.env_steps >= newest + self._interval:
            self._take(session)
        if self.league.games != self._games_published:
            self._publish()

    def on_episode_record(self, session: Session, record: EpisodeRecord) -> None:
        if record.opponent >= 0:
            self.league.add(record.opponent, score_of(record.ret, record.opponent_ret))

    def extend_report(self, session: Session, report: dict[str, float]) -> None:
        report.update(self.league.scalars())

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        self._write(session.folder)

    def checkpoint_state(self, session: Session) -> Mapping[str, Any]:
        return {STATE: self.league.state()}

    def on_checkpoint(self, session: Session, env_steps: int) -> None:
        """Remove the files of snapshots that neither the pool nor a checkpoint has."""
        self._in_checkpoints.append(
            frozenset(snapshot.number for snapshot in self.league.snapshots)
        )
        self._files.keep_only(frozenset().union(*self._in_checkpoints))

    def extend_summary(self, session: Session, summary: dict[str, Any]) -> None:
        summary[STATE] = self.league.scalars()

    def _write(self, folder: RunFolder) -> None:
        with writing(folder.self_play_file):
            write_json(folder.self_play_file, self.league.summary())


def load_snapshots(folder: RunFolder, model: Model) -> Iterator[tuple[int, Model]]:
    """Yield the env steps of each snapshot in a run folder, and a copy of ``model`` with its
    weights, the oldest first. Raises CheckpointError for one that is damaged."""
    files = SnapshotFiles(folder.snapshots)
    for number in files.numbers:
        try:
            checkpoint, loaded = files.read(number), copy.deepcopy(model)
        except FileNotFoundError:  # the run trains, and has just taken it out of its pool
            continue
        except CheckpointError as error:
            raise CheckpointError(f"{error}; remove it to play without this snapshot") from error
        load_weights(loaded, model_tensors(checkpoint.tensors))
        yield int(checkpoint.state["env_steps"]), loaded
