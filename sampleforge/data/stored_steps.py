"""The steps of whole datasets in memory, and the batches of them that a learner learns from.

Every pass over a dataset is in a random order of its own, which depends on nothing but the seed and
the number of the pass. So a run that is resumed goes on where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.config import ConfigError
from sampleforge.data.config import Source
from sampleforge.data.dataset import StoredEpisode, open_dataset
from sampleforge.env.adapter import box_units
from sampleforge.ops.far_values import FarFound, TypicalSize, Unusual, bound_rewards
from sampleforge.ops.returns import learned_rewards, returns_to_go
from sampleforge.ops.running_stats import Gather
from sampleforge.rollouts.batch import BatchSource, Taken
from sampleforge.shared.counters import Progress
from sampleforge.shared.wakeup import Wakeup
from sampleforge.spec import EnvSpec

log = logging.getLogger(__name__)
Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
ROWS_READ = "rows_read"
"""The entry of a checkpoint for the number of rows that were read until then."""
PART = 1024
"""Observations that are looked at together for values far beyond all others."""


@dataclass(frozen=True)
class RewardRule:
    """How rewards are learned from: times ``scale``, clipped to +- ``clip`` (None: not clipped),
    and discounted by ``gamma``."""

    gamma: float
    scale: float = 1.0
    clip: float | None = None

    def returns_to_go(self, reward: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the discounted sums [T] of an episode's raw rewards [T] from each step on."""
        return returns_to_go(learned_rewards(reward, self.scale, self.clip), self.gamma)


@dataclass(frozen=True)
class StoredBatch:
    """``B`` rows of ``T`` consecutive steps of an episode, time first; T is 1 for single steps.

    The value target of a step is ``return_to_go + final_discount * V(final observation)``: rewards
    are summed to the end of the recorded episode, and what follows a truncation is the value of the
    observation there. ``final_obs`` has the final observations of the rows ``final_rows``; for all
    others ``final_discount`` is 0. ``passes``: passes over the data until this batch.
    """

    obs: dict[str, torch.Tensor]  # [T, B, ...]
    is_first: torch.Tensor  # bool [T, B]: the recurrent state is zero before these steps
    actions: dict[str, torch.Tensor]  # [T, B, ...]
    return_to_go: torch.Tensor  # float32 [T, B], of scaled and clipped rewards
    final_discount: torch.Tensor  # float32 [T, B]: gamma ** steps to a truncation, else 0
    final_obs: dict[str, torch.Tensor]  # [K, ...]
    final_rows: torch.Tensor  # int64 [K]
    mask: torch.Tensor  # bool [T, B]: False beyond the end of a shorter row
    passes: float

    def to(self, device: torch.device) -> StoredBatch:
        """Return the batch on another device."""
        moved: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if isinstance(column, dict):
                moved[field.name] = {name: leaf.to(device) for name, leaf in column.items()}
            elif isinstance(column, torch.Tensor):
                moved[field.name] = column.to(device)
        return StoredBatch(**moved, passes=self.passes)


class StoredSteps:
    """The steps of one dataset, in arrays over all of its E episodes with N steps in total.

    ``observations``: leaf -> [N + E, ...], because every episode has one more than it has steps.
    An episode that was not recorded to its end counts as truncated. ``length``: steps of a row.
    Observations and rewards that are far beyond all others are bounded
    (`sampleforge.ops.far_values`); ``far`` has a text for each kind of them.
    """

    def __init__(
        self, episodes: Iterable[StoredEpisode], rule: RewardRule, length: int = 1
    ) -> None:
        kept = [episode for episode in episodes if len(episode)]
        if not kept:
            raise ConfigError("the dataset has no env steps to learn from")
        self.far: list[str] = []
        self.observations = _joined([episode.observations for episode in kept])
        for name, leaf in self.observations.items():
            if leaf.dtype.kind == "f" and (found := _bound(leaf)) is not None:
                self.far.append(_described(f"observation leaf {name!r}", found))
        self.actions = _joined([episode.actions for episode in kept])
        rewards = np.concatenate([episode.rewards for episode in kept])
        column = rewards[:, None]
        as_ends = np.ones(column.shape, np.bool_)  # so that none is replaced for being the first
        if found := bound_rewards(TypicalSize(few=0), column, as_ends, Unusual(1)):
            self.far.append(_described("the rewards", found))
        sizes = np.array([len(episode) for episode in kept])
        self._ends = np.cumsum(sizes)  # [E]: index of the step after each episode
        begins = self._ends - sizes
        self.return_to_go = np.concatenate(
            [rule.returns_to_go(each) for each in np.split(rewards, self._ends[:-1])]
        )
        self._episode = np.repeat(np.arange(len(kept)), sizes)  # [N]
        to_end = self._ends[self._episode] - np.arange(sizes.sum())
        goes_on = np.array([not episode.terminations[-1] for episode in kept])
        discount = np.float64(rule.gamma) ** to_end * goes_on[self._episode]
        self.final_discount = discount.astype(np.float32)
        self._length = length
        self._rows: Indices = np.concatenate(
            [np.arange(b, e, length) for b, e in zip(begins, self._ends, strict=True)]
        )

    @property
    def num_steps(self) -> int:
        return len(self.return_to_go)

    @property
    def num_rows(self) -> int:
        """Number of rows that a pass over the dataset consists of."""
        return len(self._rows)

    def rows(self, index: Indices) -> tuple[dict[str, Array], ...]:
        """Return the rows ``index`` (int64 [B]) as arrays: observations and actions by leaf, and
        the other columns of `StoredBatch` by name."""
        first = self._rows[index]
        last = np.minimum(first + self._length, self._ends[self._episode[first]]) - 1
        step = first + np.arange(self._length)[:, None]  # [T, B]
        mask, step = step <= last, np.minimum(step, last)
        episode = self._episode[first]
        discount = self.final_discount[step]
        (cut,) = np.nonzero((discount > 0).any(0))  # that of a first step may be too small
        final = self._ends[episode[cut]] + episode[cut]
        is_first = np.zeros(step.shape, np.bool_)
        is_first[0] = True
        return (
            {name: leaf[step + episode] for name, leaf in self.observations.items()},
            {name: leaf[step] for name, leaf in self.actions.items()},
            {name: leaf[final] for name, leaf in self.observations.items()},
            {
                "is_first": is_first,
                "return_to_go": self.return_to_go[step],
                "final_discount": discount,
                "final_rows": cut,
                "mask": mask,
            },
        )


def _joined(columns: Sequence[dict[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}


def _bound(leaf: Array) -> FarFound | None:
    """Replace elements of floats [N, ...] that are far beyond all others, in place; return them,
    or None if there are none. See `sampleforge.ops.far_values`. What is typical begins with the
    largest element, by the size that a tenth of some observations of it exceed."""
    some = np.abs(leaf[:: -(-len(leaf) // PART)].astype(np.float64))
    typical, first, number = TypicalSize(few=0), None, 0
    typical.add(float(np.quantile(some, 0.9, axis=0).max(initial=0.0)) ** 2, 1)
    for begin in range(0, len(leaf), PART):
        part = leaf[begin : begin + PART]
        if typical.takes(part):
            continue
        given = part.copy()
        far = typical.bound(part)
        number += int(np.count_nonzero(far))
        if first is None and far.any():
            row, *at = np.argwhere(far)[0].tolist()
            first = FarFound(number, (begin + row, *at), float(given[(row, *at)]))
    return None if first is None else first._replace(number=number)


def _described(what: str, found: FarFound) -> str:
    numbers = f"{found.number:,} number{'s' if found.number > 1 else ''}"
    return f"{numbers} of {what}, the first one {found.value:g}"


def _warn_beyond(source: str, actions: Mapping[str, Array], spec: EnvSpec) -> None:
    """Warn of Box actions that are beyond their bounds by more than rounding."""
    for name, leaf in spec.actions.items():
        if leaf.kind != "box":
            continue
        low, high = (np.reshape(bound, leaf.shape) for bound in (leaf.low, leaf.high))
        column = actions[name].astype(np.float64)
        away = np.maximum(low - column, column - high)
        beyond = (away > 0.01 * (high - low)) & (low < high)
        if beyond.any():
            units = box_units(leaf)
            if units.half is not None and units.centre is not None:
                column, away = column * units.half + units.centre, away * units.half
            log.warning(
                "%s: %.3g%% of the numbers of action leaf %r are beyond the bounds of the "
                "environment, the farthest %g, and are learned as they are; correct the data, or "
                "clip the actions to the bounds",
                source,
                100 * beyond.mean(),
                name,
                column.flat[np.where(beyond, away, -np.inf).argmax()],
            )


class RowOrder:
    """The order of the rows of a dataset in pass after pass, each in a random order of its own."""

    def __init__(self, rows: int, seed: Sequence[int]) -> None:
        self._rows = rows
        self._seed = tuple(seed)
        self._pass = -1
        self._order: Indices = np.empty(0, np.int64)

    def take(self, position: int, count: int) -> Indices:
        """Return ``count`` rows from ``position`` on, counted from the first row of pass 0."""
        taken = []
        while count > 0:
            number, offset = divmod(position, self._rows)
            if number != self._pass:
                self._pass = number
                self._order = np.random.default_rng([*self._seed, number]).permutation(self._rows)
            part = self._order[offset : offset + count]
            taken.append(part)
            position, count = position + len(part), count - len(part)
        return np.concatenate(taken)


class Mixture:
    """Batches of ``rows`` rows from several datasets, each of which gives the share of its
    ``weight``."""

    def __init__(
        self, parts: Sequence[StoredSteps], weights: Sequence[float], rows: int, seed: int
    ) -> None:
        self.parts = tuple(parts)
        self.rows = rows
        self._shares = np.asarray(weights, np.float64) / np.sum(weights)
        self._passes = [RowOrder(part.num_rows, (seed, i)) for i, part in enumerate(parts)]

    def batch(self, number: int, ahead: int = 0) -> StoredBatch:
        """Return the ``number``-th batch, from 0 on. ``ahead``: rows that were read beyond those of
        the batches before, because some of them had another size."""
        begin = ahead + number * self.rows
        begins, ends = self._positions(begin), self._positions(begin + self.rows)
        columns = [
            part.rows(passes.take(begin, end - begin))
            for part, passes, begin, end in zip(self.parts, self._passes, begins, ends, strict=True)
            if end > begin
        ]
        obs, actions, final_obs, others = (
            _side_by_side([each[i] for each in columns], axis)
            for i, axis in enumerate((1, 1, 0, 1))
        )
        done = max(end / part.num_rows for end, part in zip(ends, self.parts, strict=True))
        return StoredBatch(obs=obs, actions=actions, final_obs=final_obs, passes=done, **others)

    def _positions(self, rows: int) -> list[int]:
        """Return how many of the first ``rows`` rows are of each dataset; the first one has what
        rounding leaves."""
        others = [int(rows * share) for share in self._shares[1:]]
        return [rows - sum(others), *others]


def _side_by_side(parts: Sequence[dict[str, Array]], axis: int) -> dict[str, torch.Tensor]:
    """Return the rows of several datasets, one after the other, as tensors. ``final_rows`` count
    from the first row of all."""
    joined = {}
    for name in parts[0]:
        columns = [part[name] for part in parts]
        if name == "final_rows":
            starts = np.cumsum([0, *(part["mask"].shape[1] for part in parts[:-1])])
            joined[name] = np.concatenate([c + s for c, s in zip(columns, starts, strict=True)])
        else:
            joined[name] = columns[0] if len(columns) == 1 else np.concatenate(columns, axis)
    return {name: torch.from_numpy(column) for name, column in joined.items()}


@dataclass(frozen=True)
class StoredBatches:
    """What a learner of offline data learns from: batches of ``rows`` rows of ``length`` steps from
    ``inputs``, which are read into the learner's memory. ``spec``: the environment that the data
    must fit; ``progress``: the run's; once it is done, the batches end; ``clip_observations``: as
    in `open_dataset`; ``ahead``: as in `Mixture.batch`."""

    inputs: tuple[Source, ...]
    spec: EnvSpec
    rule: RewardRule
    rows: int
    length: int
    seed: int
    progress: Progress
    device: torch.device
    clip_observations: bool = False
    ahead: int = 0

    @cached_property
    def mixture(self) -> Mixture:
        """The datasets, read when they are first asked for. Raises ConfigError if one cannot be
        read, or does not fit."""
        datasets = [
            open_dataset(each.name, self.spec, clip_observations=self.clip_observations)
            for each in self.inputs
        ]
        parts = [StoredSteps(each.episodes(), self.rule, self.length) for each in datasets]
        for dataset, steps in zip(datasets, parts, strict=True):
            if dataset.recorded is None:  # what a policy draws may be beyond the bounds
                _warn_beyond(dataset.source, steps.actions, self.spec)
        for each, steps in zip(self.inputs, parts, strict=True):
            for far in steps.far:
                log.warning(
                    "%s: far beyond all others, and bounded: %s; correct the data, or, if they "
                    "are meant, scale them",
                    each.name,
                    far,
                )
        return Mixture(parts, [each.weight for each in self.inputs], self.rows, self.seed)

    def source(
        self,
        wakeup: Wakeup,
        count: Mapping[str, npt.NDArray[np.float64]],
        version: int,
        gather: Gather,
    ) -> StoredBatchSource:
        """Return the source of the batches from number ``version`` on; see
        `sampleforge.rollouts.batch.Batches`."""
        return StoredBatchSource(self.mixture, self.progress, wakeup, count, version, self.ahead)

    def take_over(self) -> None:
        """Do nothing: the next process reads the same data."""


class StoredBatchSource(BatchSource):
    """Gives batch after batch of stored steps until the run is done, and counts the steps of each
    as env steps of the run once it has been learned from."""

    def __init__(
        self,
        mixture: Mixture,
        progress: Progress,
        wakeup: Wakeup,
        count: Mapping[str, npt.NDArray[np.float64]],
        number: int,
        ahead: int = 0,
    ) -> None:
        self.wakeup = wakeup
        self._mixture = mixture
        self._progress = progress
        self._count = count
        self._number = number
        self._ahead = ahead
        self._steps = 0

    def gather(self) -> bool:
        return False

    def take(self, progress: float) -> Taken | None:
        if self._progress.done or self._progress.clock.halted:
            return None
        batch = self._mixture.batch(self._number, self._ahead)
        self._steps = int(batch.mask.sum())
        return Taken(batch, progress)

    def done(self, errors: npt.NDArray[np.float32] | None = None) -> None:
        self._number += 1
        self._count["env_steps"] += self._steps

    def plain_state(self) -> dict[str, Any]:
        return {ROWS_READ: self._ahead + self._number * self._mixture.rows}

    def abandon(self) -> None:
        """Do nothing: the same batch comes again."""
