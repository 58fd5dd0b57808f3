"""Datasets in Minari's format, read as numpy arrays in the form of the slots.

A dataset is data from an unknown source: arrays and JSON. Nothing in it is imported, unpickled or
made into an environment; a dataset whose metadata has no spaces, for which Minari would make the
environment that it names, is refused. So is one that leads to files outside of its folder, or
whose arrays are not as long and as large as they must be (`sampleforge.data.episode_files`).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.config import ConfigError
from sampleforge.data import minari_format as fields
from sampleforge.data.episode_files import ArrowEpisodes, Hdf5Episodes
from sampleforge.data.fit import check_fits, sizes
from sampleforge.env.adapter import action_offsets, box_units, env_spec, offset
from sampleforge.env.bounds import LeafBounds, bounds_of, cut
from sampleforge.env.spec_json import spec_from_plain
from sampleforge.spec import (
    ACTION,
    ACTION_MASK,
    OBSERVATION,
    ActionSpec,
    ArraySpec,
    EnvSpaces,
    EnvSpec,
    flatten,
    leaves,
)

Array = npt.NDArray[Any]
_UNREADABLE = (
    KeyError,
    ValueError,
    TypeError,
    IndexError,
    OSError,
    RuntimeError,
    MemoryError,
    StopIteration,
)
"""What a damaged file may make of h5py and numpy."""
_MINARI_ID = re.compile(r"([-_\w][-_\w/]*[-_\w]+/)?[-_\w]+-v\d+")


class EpisodeUnreadable(ConfigError):
    """An episode of a dataset cannot be read, which is found out when a run reads it."""

    exit_code = 1


@dataclass(frozen=True)
class StoredEpisode:
    """An episode, or a part of one, of T steps, in the form of the slots.

    ``observations``: leaf -> [T+1, ...], stacks of frames whole; the last one is the final
    observation, or the one that the next part begins with. ``actions``: leaf -> [T, ...] in the
    policy's units (discrete values from 0 on; Box actions as the policy drew them, if that was
    recorded, else as the environment took them). ``rewards`` float32 [T], ``terminations`` and
    ``truncations`` bool [T].

    ``begins``: whether ``observations[0]`` is that of a reset. Both flags of the last step are
    False if the episode goes on in another part, or was not recorded to its end.

    ``shortened``: the first episode of an env row in the training, which --decorrelate gave a
    shorter limit than the environment has. Its steps are as good as any, but its return is not that
    of an episode.

    None if it was not recorded, or recorded in other units of the actions: ``log_probs`` float32
    [T]; ``policy_version`` int64 [T]; ``parameters`` float32 [T, P], of the distribution that the
    action was drawn from, in the order of `sampleforge.ops.distributions`; ``independent`` bool
    [T]: whether it was drawn from it, independently of the steps before; ``number``: stream and
    count of the episode, the same for all its parts, which follow each other in the dataset;
    ``span``: env steps of the whole run when the episode began, and when its last step was taken,
    both to within a rollout.
    """

    observations: dict[str, Array]
    actions: dict[str, Array]
    rewards: npt.NDArray[np.float32]
    terminations: npt.NDArray[np.bool_]
    truncations: npt.NDArray[np.bool_]
    begins: bool = True
    log_probs: npt.NDArray[np.float32] | None = None
    policy_version: npt.NDArray[np.int64] | None = None
    parameters: npt.NDArray[np.float32] | None = None
    shortened: bool = False
    independent: npt.NDArray[np.bool_] | None = None
    number: tuple[int, ...] | None = None
    span: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def ends(self) -> bool:
        """Whether the last step ended the episode."""
        return bool(len(self) and (self.terminations[-1] or self.truncations[-1]))


class OfflineDataset:
    """A dataset on disk. ``source``: as it was given; ``path``: its folder ``data``; ``spec``: of
    the environment, with the units that `episodes` gives actions in; ``recorded``: the spec with
    which SampleForge recorded it (None: the dataset is from elsewhere); ``squashed``: whether its
    Box actions are tanh-squashed (None: it does not say); ``metadata``: Minari's; ``dropped``: what
    its recordings have dropped."""

    def __init__(
        self,
        source: str,
        path: Path,
        metadata: Mapping[str, Any],
        spec: EnvSpec | None = None,
        *,
        clip_observations: bool = False,
    ) -> None:
        self.source = source
        self.path = path
        self.metadata = metadata
        self.dropped = fields.Dropped.of(metadata)
        said = metadata.get(fields.SQUASHED_KEY)
        self.squashed: bool | None = said if isinstance(said, bool) else None
        observation, action = (
            fields.read_space(source, name, metadata[name]) for name in fields.SPACES
        )
        stored = EnvSpaces(observation, action)
        self.recorded = _recorded_spec(source, metadata)
        found = self.recorded or env_spec(str(metadata.get("dataset_id", source)), stored)
        if spec is not None:
            check_fits(source, spec, found)
        self.spec = found if spec is None else spec
        self._stored = _stored_episodes(source, path, metadata, stored)
        self._reader = _EpisodeReader(stored, found, self.recorded is not None, self.spec)
        if clip_observations:
            self._reader.clip_observations()

    @property
    def num_episodes(self) -> int:
        """Number of episodes; parts of an episode count as episodes of their own."""
        return int(self.metadata["total_episodes"])

    @property
    def num_steps(self) -> int:
        """Number of env steps."""
        return int(self.metadata["total_steps"])

    @property
    def nbytes(self) -> int:
        """Bytes of all observations and actions in memory."""
        observation = sum(leaf.nbytes for leaf in self.spec.observations.values())
        action = sum(
            math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
            for leaf in self.spec.actions.values()
        )
        return observation * (self.num_steps + self.num_episodes) + action * self.num_steps

    def episodes(self, indices: Iterable[int] | None = None) -> Iterator[StoredEpisode]:
        """Yield the episodes ``indices`` (0 to `num_episodes` - 1; None: all of them, in the order
        in which they were written). Raises EpisodeUnreadable for one that cannot be read."""
        chosen = range(self.num_episodes) if indices is None else [int(i) for i in indices]
        stored, steps = self._stored.read(chosen), 0
        for index in chosen:
            try:
                read = self._reader.read(*next(stored))
                steps += len(read)
                if steps > self.num_steps:
                    raise ValueError(f"the episodes have more than total_steps {self.num_steps:,}")
            except _UNREADABLE as error:
                raise EpisodeUnreadable(
                    f"{self.source}: episode {index} cannot be read: {_why(error)}"
                ) from error
            yield read

    def check(self, spec: EnvSpec) -> None:
        """Raise ConfigError, with the expected and the found spaces, unless the dataset's
        observations and actions are those of ``spec``."""
        check_fits(self.source, spec, self.spec)


def open_dataset(
    source: str | Path, spec: EnvSpec | None = None, *, clip_observations: bool = False
) -> OfflineDataset:
    """Open a dataset, given its folder or the id of a local Minari dataset (``name-v0``).

    ``spec``: the environment that the data must fit, in whose units actions are given. None: the
    one that the dataset has itself. ``clip_observations``: cut numbers that are beyond the bounds
    of their Box off at the bound, as --clip-observations does. Raises ConfigError for what is no
    dataset, or does not fit; the message names the expected and the found spaces."""
    source = str(source)
    fields.minari(f"the dataset {source}")
    path = _data_path(source)
    metadata = fields.read_metadata(source, path)
    return OfflineDataset(source, path, metadata, spec, clip_observations=clip_observations)


def _stored_episodes(
    source: str, path: Path, metadata: Mapping[str, Any], spaces: EnvSpaces
) -> Hdf5Episodes | ArrowEpisodes:
    """Return the episodes as they are stored. Raises ConfigError if they cannot be opened, or are
    fewer than the metadata say."""
    total = metadata["total_episodes"]
    jpeg = bool(metadata.get("jpeg_encoding", True))  # as Minari: older datasets do not say it
    kind = Hdf5Episodes if metadata["data_format"] == "hdf5" else ArrowEpisodes
    try:
        stored = kind(path, spaces, metadata["total_steps"], jpeg=jpeg)
        count = len(stored)
    except Exception as error:  # whatever a damaged file makes of h5py
        raise ConfigError(f"{source} cannot be opened: {_why(error)}") from error
    if count < total:
        raise ConfigError(
            f"{source}: its metadata say total_episodes {total:,}, but there are {count:,}"
        )
    return stored


def _data_path(source: str) -> Path:
    """Return the folder that holds the metadata of the dataset ``source``."""
    folder = Path(source)
    for path in (folder / "data", folder):
        if (path / fields.METADATA_FILE).is_file():
            return path
    if folder.exists():
        raise ConfigError(
            f"{source} is no dataset of Minari: it has no data/{fields.METADATA_FILE}; give the "
            "folder that --record or `sampleforge record` wrote, or one of Minari's"
        )
    if _MINARI_ID.fullmatch(source):
        from minari.storage import get_dataset_path

        path = Path(get_dataset_path(source)) / "data"
        if (path / fields.METADATA_FILE).is_file():
            return path
        raise ConfigError(
            f"{source} is neither a folder nor a local dataset of Minari ({path.parent}); check "
            f"the name, or download it: minari download {source}"
        )
    raise ConfigError(f"{source}: there is no such folder; check the path")


def _recorded_spec(source: str, metadata: Mapping[str, Any]) -> EnvSpec | None:
    """Return the spec with which SampleForge recorded a dataset, if it did."""
    plain = metadata.get(fields.SPEC_KEY)
    if plain is None:
        return None
    return spec_from_plain(plain, f"{source}: {fields.METADATA_FILE}: {fields.SPEC_KEY}")


class _EpisodeReader:
    """Turns stored episodes into the form of the slots. ``stored``: their spaces; ``found``: the
    dataset's spec; ``wanted``: the one whose units are asked for."""

    def __init__(self, stored: EnvSpaces, found: EnvSpec, recorded: bool, wanted: EnvSpec) -> None:
        assert found.spaces is not None
        self._observation_space = stored.observation
        self._action_space = stored.action
        self._found, self._wanted = found, wanted
        self._same_units = recorded and dict(found.actions) == dict(wanted.actions)
        self._stacks = {n: leaf for n, leaf in found.observations.items() if leaf.stack}
        declared = dict(leaves(found.spaces.observation, OBSERVATION))
        self._offsets = {name: offset(leaf) for name, leaf in declared.items()}
        self._within: dict[str, LeafBounds] = {}

    def clip_observations(self) -> None:
        """From now on, cut numbers of observations that are beyond the bounds of their Box off at
        the nearest bound."""
        spaces = self._wanted.spaces or self._found.spaces
        assert spaces is not None
        self._within = bounds_of(spaces.observation)

    def read(self, episode: Mapping[str, Any], about: Mapping[str, Any]) -> StoredEpisode:
        """Return a stored episode; ``about``: its attributes."""
        infos = episode.get("infos") or {}
        steps = len(episode["rewards"])
        terminations, truncations = (
            _cast(name, np.asarray(episode[name]), np.bool_)
            for name in ("terminations", "truncations")
        )
        read = StoredEpisode(
            self._observations(
                episode["observations"],
                infos,
                begins=_begins(about),
                terminated=bool(terminations[-1:].any()),
            ),
            self._actions(episode["actions"], infos),
            _cast("rewards", np.asarray(episode["rewards"]), np.float32),
            terminations,
            truncations,
            _begins(about),
            self._info(infos, fields.LOG_PROB, np.float32, steps, units=True),
            self._info(infos, fields.VERSION, np.int64, steps),
            self._info(infos, fields.PARAMETERS, np.float32, steps, units=True),
            bool(about.get("shortened", False)),
            self._info(infos, fields.INDEPENDENT, np.bool_, steps),
            _number(about),
            _span(about),
        )
        for kind, columns in (("observation", read.observations), ("action", read.actions)):
            _check_finite(**{f"{kind} leaf {name!r}": leaf for name, leaf in columns.items()})
        _check_finite(rewards=read.rewards, log_prob=read.log_probs)
        self._check_values(read)
        if not self._within:
            return read
        observations = {name: leaf.copy() for name, leaf in read.observations.items()}
        cut(observations, self._within)
        return dataclasses.replace(read, observations=observations)

    def _check_values(self, read: StoredEpisode) -> None:
        """Raise ValueError for a category that there is not, and for an end that is not the last
        step."""
        for name, leaf in read.observations.items():
            _check_categories(f"observation leaf {name!r}", leaf, self._found.observations[name])
        for name, leaf in read.actions.items():
            _check_categories(f"action leaf {name!r}", leaf, self._wanted.actions[name])
        ends = np.flatnonzero(read.terminations[:-1] | read.truncations[:-1])
        if len(ends):
            raise ValueError(f"step {ends[0]} of {len(read)} ends it, but more steps follow")

    def _info(
        self, infos: Mapping[str, Any], name: str, dtype: Any, steps: int, units: bool = False
    ) -> Any:
        """Return one array of ``infos`` with ``steps`` entries, or None. ``units``: its meaning
        depends on the units of the actions."""
        given = infos.get(name)
        if given is None or (units and not self._same_units):
            return None
        array = np.asarray(given, dtype)
        if len(array) != steps:
            raise ValueError(f"infos/{name} has {len(array)} entries for {steps} steps")
        return array

    def _observations(
        self, given: Any, infos: Mapping[str, Any], *, begins: bool, terminated: bool
    ) -> dict[str, Array]:
        read = {}
        for name, value in flatten(self._observation_space, given, OBSERVATION).items():
            spec, start = self._found.observations[name], self._offsets.get(name)
            column = np.asarray(value if start is None else np.asarray(value) - start)
            if name in self._stacks:
                before = infos.get(fields.FRAMES_BEFORE, {}).get(name)
                column = stacked(column, spec, None if begins else before)
            if column.shape[1:] != spec.shape:
                raise ValueError(f"observation leaf {name!r} has the shape {column.shape[1:]}")
            if terminated:
                column = _with_finite_end(column, spec.dtype)
            read[name] = _cast(f"observation leaf {name!r}", column, spec.dtype)
        if ACTION_MASK in self._found.observations and ACTION_MASK not in read:
            mask = np.asarray(infos[fields.MASK])
            read[ACTION_MASK] = _cast(f"observation leaf {ACTION_MASK!r}", mask, np.bool_)
        return read

    def _actions(self, given: Any, infos: Mapping[str, Any]) -> dict[str, Array]:
        drawn = infos.get(fields.POLICY_ACTION, {}) if self._same_units else {}
        return {
            name: _cast(
                f"action leaf {name!r}",
                np.asarray(drawn[name] if name in drawn else _from_env(spec, np.asarray(value))),
                spec.dtype,
            )
            for name, value in flatten(self._action_space, given, ACTION).items()
            for spec in (self._wanted.actions[name],)
        }


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _begins(about: Mapping[str, Any]) -> bool:
    return bool(about.get("begins", True))


def _number(about: Mapping[str, Any]) -> tuple[int, ...] | None:
    if "stream" not in about or "number" not in about:
        return None
    return (*np.ravel(about["stream"]).tolist(), int(about["number"]))


def _span(about: Mapping[str, Any]) -> tuple[int, int] | None:
    if "span" not in about:
        return None
    began, until = np.ravel(about["span"]).tolist()
    return int(began), int(until)


def _with_finite_end(leaf: Array, dtype: npt.DTypeLike) -> Array:
    """Return an observation leaf [T+1, ...] of an episode that terminated, with 0 for numbers of
    its last observation that are not finite as ``dtype``: nothing is bootstrapped from it."""
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(leaf[-1:].astype(dtype))
    if leaf.dtype.kind != "f" or finite.all():
        return leaf
    return np.concatenate((leaf[:-1], np.where(finite, leaf[-1:], 0).astype(leaf.dtype)))


def _cast(name: str, column: Array, dtype: npt.DTypeLike) -> Array:
    """Return a column [T, ...] as ``dtype``. Raises ValueError for a value that this would make
    another one, but for the rounding of floats."""
    dtype = np.dtype(dtype)
    if np.can_cast(column.dtype, dtype):
        return column.astype(dtype, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = column.astype(dtype)
        changed = np.isfinite(column) & ~np.isfinite(cast) if dtype.kind == "f" else cast != column
    if changed.any():
        step, *at = np.argwhere(changed)[0].tolist()
        where = f" at {at}" if at else ""
        wanted = {"f": f"a number that {dtype} can hold", "b": "0 or 1"}
        raise ValueError(
            f"{name} is {column[(step, *at)]}{where} in step {step}, but must be "
            f"{wanted.get(dtype.kind, f'a whole number of {dtype}')}; correct the data"
        )
    return cast


def _check_finite(**columns: Array | None) -> None:
    """Raise ValueError if one of the columns [T, ...] has a value that is not finite."""
    for name, column in columns.items():
        if column is not None and column.dtype.kind == "f" and not np.isfinite(column).all():
            step, *at = np.argwhere(~np.isfinite(column))[0].tolist()
            where = f" at {at}" if at else ""
            raise ValueError(f"{name} is {column[(step, *at)]}{where} in step {step}")


def _check_categories(name: str, column: Array, spec: ArraySpec | ActionSpec) -> None:
    """Raise ValueError if a column [T, ...] of categories, counted from 0, has one that is not in
    the space."""
    if not spec.categories:
        return
    count = np.reshape(spec.categories, spec.shape if len(spec.categories) > 1 else ())
    wrong = np.argwhere((column < 0) | (column >= count))
    if len(wrong):
        step, *at = wrong[0].tolist()
        where = f" at {at}" if at else ""
        raise ValueError(
            f"{name}{where} is category {column[(step, *at)]} (from 0 on) in step {step}, but "
            f"there are {sizes(spec.categories)}"
        )


def stacked(frames: Array, leaf: ArraySpec, before: Array | None) -> Array:
    """Return the stacks [T+1, k, ...] of single frames [T+1, ...] of an episode. ``before``: the
    k-1 frames before the first one (None: the episode begins there, and its first stacks are padded
    as ``leaf.stack`` says)."""
    depth = leaf.shape[0]
    if before is None:
        first = frames[:1] if leaf.stack == "reset" else np.zeros_like(frames[:1])
        before = np.repeat(first, depth - 1, axis=0)
    whole = np.concatenate((before, frames))
    windows = np.lib.stride_tricks.sliding_window_view(whole, depth, axis=0)
    return np.ascontiguousarray(np.moveaxis(windows, -1, 1))


def _from_env(spec: ActionSpec, actions: Array) -> Array:
    """Return the environment's actions [T, ...] of one leaf in the units of the slots."""
    if spec.kind != "box":
        return actions - action_offsets(spec) if np.any(spec.start) else actions
    _, _, half, centre = box_units(spec)
    if half is None or centre is None:
        return actions
    away = actions.astype(np.float64) - centre
    return np.divide(away, half, out=np.zeros_like(away), where=half != 0)  # 0 where it is fixed


_PER_STEP = (
    "rewards",
    "terminations",
    "truncations",
    "log_probs",
    "policy_version",
    "parameters",
    "independent",
)


def whole_episodes(parts: Iterable[StoredEpisode]) -> Iterator[StoredEpisode]:
    """Yield the episodes of which ``parts`` consist, in the order in which they end; those whose
    ends are missing come last, or when the same stream's next recording begins.

    A long episode is recorded in several parts if it does not fit the recorder's memory. If these
    were taken for episodes without an end, long episodes would be missing."""
    unfinished: dict[tuple[int, ...], list[StoredEpisode]] = {}
    for part in parts:
        if part.number is None:
            yield part
            continue
        before = unfinished.pop(part.number, [])
        if before and (part.begins or not _follows(before[-1], part)):
            yield _joined(before)
            before = []
        if part.ends or not (part.begins or before):
            yield _joined([*before, part])
        else:
            unfinished[part.number] = [*before, part]
    for left in unfinished.values():
        yield _joined(left)


def _follows(before: StoredEpisode, part: StoredEpisode) -> bool:
    """Return whether ``part`` begins with the observation that ``before`` ends with."""
    return all(
        np.array_equal(leaf[-1], part.observations[name][0])
        for name, leaf in before.observations.items()
    )


def _joined(parts: Sequence[StoredEpisode]) -> StoredEpisode:
    """Return one episode of consecutive parts."""
    if len(parts) == 1:
        return parts[0]
    last = parts[-1]
    observations = {
        name: np.concatenate([*(part.observations[name][:-1] for part in parts[:-1]), leaf])
        for name, leaf in last.observations.items()
    }
    actions = {n: np.concatenate([part.actions[n] for part in parts]) for n in last.actions}
    columns: dict[str, Any] = {
        name: _column([getattr(part, name) for part in parts]) for name in _PER_STEP
    }
    begin, end = parts[0].span, last.span
    span = None if begin is None or end is None else (begin[0], end[1])
    return dataclasses.replace(
        parts[0], observations=observations, actions=actions, span=span, **columns
    )


def _column(parts: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[Any] | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None
