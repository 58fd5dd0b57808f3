"""Episodes and evaluations in shared memory, without locks: queues of records from workers to the
driver, and what the evaluators of one policy share."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import sleep
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import torch

from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.newest import SharedWeights


def _nothing() -> None:
    pass


NO_SNAPSHOT = -1
"""In the place of a snapshot: no frozen opponent has played, or not the whole episode."""


class EpisodeRecord(NamedTuple):
    """One finished episode of an agent: the actor, split and row that played it, ``ret`` the sum of
    its raw rewards, ``length`` in env steps, ``policy`` the index of the policy group that acted
    when it ended, ``seat`` that of the agent.

    With several agents, the records of a game (see `sampleforge.env.games`) are sent together when
    it has ended. ``more``: number of the records of the same game that follow; ``game_length``: its
    length (0: that of the episode).

    ``opponent`` is the snapshot with which a frozen policy played all other agents of the game
    (`NO_SNAPSHOT`: none), and ``opponent_ret`` the mean of these agents' returns. ``stats`` is the
    number of the event that has the statistics of the episode, and was sent before the record (0:
    none)."""

    actor: int
    split: int
    row: int
    ret: float
    length: int
    policy: int = 0
    seat: int = 0
    opponent: int = NO_SNAPSHOT
    opponent_ret: float = 0.0
    more: int = 0
    game_length: int = 0
    stats: int = 0


def games(records: Iterable[EpisodeRecord]) -> list[list[EpisodeRecord]]:
    """Return records, as a queue returns them, by game."""
    found, game = [], []
    for record in records:
        game.append(record)
        if not record.more:
            found.append(game)
            game = []
    return found


class Episodes(Protocol):
    """A queue of finished episodes from the actors to the driver."""

    def put(
        self, records: Iterable[EpisodeRecord], waiting: Callable[[], None] = _nothing
    ) -> None: ...

    def take(self) -> list[EpisodeRecord]: ...


class EpisodeList:
    """A queue of episodes within one process."""

    def __init__(self) -> None:
        self._records: list[EpisodeRecord] = []

    def put(self, records: Iterable[EpisodeRecord], waiting: Callable[[], None] = _nothing) -> None:
        self.extend(records)

    def extend(self, records: Iterable[EpisodeRecord]) -> None:
        self._records += records

    def take(self) -> list[EpisodeRecord]:
        """Remove and return all episodes."""
        records, self._records = self._records, []
        return records


class EpisodesOf:
    """The episodes of one ``actor``, which they are counted for whatever they say themselves: the
    actor of a rank does not know the other ranks, and each has a ring of its own."""

    def __init__(self, episodes: Episodes, actor: int) -> None:
        self._episodes = episodes
        self._actor = actor

    def put(self, records: Iterable[EpisodeRecord], waiting: Callable[[], None] = _nothing) -> None:
        self._episodes.put([record._replace(actor=self._actor) for record in records], waiting)

    def take(self) -> list[EpisodeRecord]:
        return self._episodes.take()


class EpisodeQueue:
    """A queue of episodes between processes, with a ring for each of ``actors``. An actor whose
    ring is full waits: no episode is dropped.

    There is no lock, because an actor that is killed inside `put` would leave it locked, and the
    driver, which replaces that actor, would wait for ever.
    """

    def __init__(self, actors: int, capacity: int = 16384) -> None:
        each = (actors, capacity)
        self._arrays = SharedArrays(
            {
                # split, row, length, policy, seat, opponent, more, game_length, stats
                "who": ((*each, 9), "int64"),
                "ret": ((*each, 2), "float64"),  # the agent's, the opponent's
                "head": ((actors, 8), "int64"),  # a cache line each
                "tail": ((actors, 8), "int64"),
            }
        )

    def put(self, records: Iterable[EpisodeRecord], waiting: Callable[[], None] = _nothing) -> None:
        """Send finished episodes. Waits for room as long as the driver takes none, and calls
        ``waiting`` again and again meanwhile: a driver that is held goes on, and one that has died
        takes its workers with it."""
        arrays, tails = self._arrays, self._arrays["tail"]
        capacity, written = arrays["ret"].shape[1], 0
        for record in records:
            actor, split, row, ret, length, policy, seat, opponent, opponent_ret, *game = record
            if not written:
                self._wait_for_room(actor, capacity - record.more, waiting)
            at = (tails[actor, 0] + written) % capacity
            arrays["who"][actor, at] = split, row, length, policy, seat, opponent, *game
            arrays["ret"][actor, at] = ret, opponent_ret
            written += 1
            if not record.more:
                tails[actor, 0] += written  # last: an incomplete game is never read
                written = 0

    def _wait_for_room(self, actor: int, capacity: int, waiting: Callable[[], None]) -> None:
        heads, tails = self._arrays["head"], self._arrays["tail"]
        while tails[actor, 0] - heads[actor, 0] >= capacity:
            waiting()
            sleep(0.001)

    def take(self) -> list[EpisodeRecord]:
        """Remove and return all episodes in the rings, without waiting for more."""
        arrays, records = self._arrays, []
        capacity = arrays["ret"].shape[1]
        heads, tails = arrays["head"][:, 0], arrays["tail"][:, 0].copy()
        for actor in np.flatnonzero(heads != tails).tolist():
            tail = int(tails[actor])
            for at in (n % capacity for n in range(int(heads[actor]), tail)):
                split, row, length, policy, seat, opponent, *game = arrays["who"][
                    actor, at
                ].tolist()
                ret, opponent_ret = arrays["ret"][actor, at].tolist()
                who = policy, seat, opponent, opponent_ret, *game
                records.append(EpisodeRecord(actor, split, row, ret, length, *who))
            arrays["head"][actor, 0] = tail
        return records


OF_EPISODES = "#episodes"
"""The end of the name of an extra value that is no metric: the number of episodes that have the
metric of the name before it, if not all have it."""


class Evaluation(NamedTuple):
    """The result of one evaluation, or of one evaluator's part of it.

    ``policy_version`` and ``env_steps`` (of training) are those of the moment when the weights were
    copied. Returns are sums of raw rewards; lengths are in env steps. ``extra`` has further metrics
    by name: of the types of agents, if there are several, and of an evaluation function of the
    user's own, with which the statistics that it does not return are NaN; and beside some of these
    the number of episodes that have it (`OF_EPISODES`)."""

    policy_version: int
    env_steps: int
    episodes: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float
    extra: Mapping[str, float] = MappingProxyType({})

    @classmethod
    def of(cls, policy_version: int, env_steps: int, values: Mapping[str, float]) -> Evaluation:
        """Return the evaluation of these weights with the statistics ``values``, by name. Those of
        its own that are missing are NaN; others become ``extra``."""
        own = dict.fromkeys(cls._fields[3:-1], math.nan)
        extra = {name: value for name, value in values.items() if name not in cls._fields}
        known = {name: values.get(name, nan) for name, nan in own.items()}
        episodes = int(values["episodes"])
        return cls(policy_version, env_steps, episodes, **known, extra=extra)

    def scalars(self) -> dict[str, float]:
        """Return all values that are known, by name."""
        known = {n: v for n, v in zip(self._fields, self[:-1], strict=False) if not math.isnan(v)}
        return {**known, **{n: v for n, v in self.extra.items() if not n.endswith(OF_EPISODES)}}


def combined(parts: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluation that consists of these parts, of the same weights. A metric of the
    user's own whose name ends in _min or _max is the extreme of the parts that have it, any other
    one their mean weighted by the episodes that have it."""
    if len(parts) == 1:
        return parts[0]
    episodes = sum(part.episodes for part in parts)
    weights = [part.episodes / episodes if episodes else 1 / len(parts) for part in parts]

    def mean(values: Sequence[float]) -> float:
        return sum(weight * value for weight, value in zip(weights, values, strict=True))

    center = mean([part.return_mean for part in parts])
    variance = mean([part.return_std**2 + (part.return_mean - center) ** 2 for part in parts])
    names = sorted({name for part in parts for name in part.extra})
    extra = {name: _combined(name, parts) for name in names if not name.endswith(OF_EPISODES)}
    return Evaluation(
        parts[0].policy_version,
        parts[0].env_steps,
        episodes,
        center,
        math.sqrt(variance),
        min(part.return_min for part in parts),
        max(part.return_max for part in parts),
        mean([part.length_mean for part in parts]),
        extra,
    )


def _combined(name: str, parts: Sequence[Evaluation]) -> float:
    """Return the extra metric ``name`` of all parts together."""
    having = [part for part in parts if name in part.extra]
    values = [part.extra[name] for part in having]
    if name.endswith(("_min", "_max")):
        return min(values) if name.endswith("_min") else max(values)
    counts = [part.extra.get(name + OF_EPISODES, part.episodes) for part in having]
    weights = counts if any(counts) else [1] * len(counts)
    return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)


class Evaluations:
    """The queue of evaluations from an evaluator to the driver.

    It is a ring with one producer and one consumer and without a lock, so that an evaluator that is
    killed leaves it usable, and its successor continues with it. ``extra_bytes``: room for the
    metrics of an evaluation function of the user's own, as JSON."""

    def __init__(self, capacity: int = 256, extra_bytes: int = 0) -> None:
        self._arrays = SharedArrays(
            {
                "records": ((capacity, len(Evaluation._fields) - 1), "float64"),
                "extra": ((capacity, extra_bytes), "uint8"),
                "head": ((1,), "int64"),
                "tail": ((1,), "int64"),
            }
        )

    def has_room(self) -> bool:
        """Return whether there is room for one more evaluation."""
        arrays = self._arrays
        return int(arrays["tail"][0] - arrays["head"][0]) < len(arrays["records"])

    def put(self, evaluation: Evaluation) -> None:
        """Send an evaluation. Raises ValueError if its extra metrics have too long names."""
        assert self.has_room(), "check has_room() before an evaluation begins"
        records, tail = self._arrays["records"], self._arrays["tail"]
        at = tail[0] % len(records)
        records[at] = evaluation[:-1]
        self._put_extra(at, evaluation.extra)
        tail[0] += 1  # last: an incomplete record is never read

    def _put_extra(self, at: int, extra: Mapping[str, float]) -> None:
        room = self._arrays["extra"].shape[1]
        data = json.dumps(dict(extra)).encode() if extra else b""
        if len(data) > room:
            raise ValueError(f"{len(extra)} metrics take {len(data)} bytes, but there are {room}")
        if room:
            self._arrays["extra"][at] = np.frombuffer(data.ljust(room), np.uint8)

    def take(self) -> list[Evaluation]:
        """Remove and return all evaluations in the ring, in order, without waiting for more."""
        records, head = self._arrays["records"], self._arrays["head"]
        tail = int(self._arrays["tail"][0])
        evaluations = []
        for at in range(int(head[0]), tail):
            version, env_steps, episodes, *floats = records[at % len(records)].tolist()
            written = self._arrays["extra"][at % len(records)].tobytes().strip()
            extra = json.loads(written) if written else {}
            whole = int(version), int(env_steps), int(episodes)
            evaluations.append(Evaluation._make([*whole, *floats, extra]))
        head[0] = tail
        return evaluations


class DividedEvaluations:
    """The evaluations that several evaluators of one policy play together. ``parts``: their queues,
    in the order of the evaluators."""

    def __init__(self, parts: Sequence[Evaluations]) -> None:
        self._parts = parts
        self._waiting: list[dict[tuple[int, int], Evaluation]] = [{} for _ in parts]

    def take(self) -> list[Evaluation]:
        """Remove and return the evaluations of which all parts have come, in order. An evaluator
        that was killed may send its part twice; the first one counts."""
        for waiting, part in zip(self._waiting, self._parts, strict=True):
            for evaluation in part.take():
                waiting.setdefault((evaluation.env_steps, evaluation.policy_version), evaluation)
        complete = sorted(set.intersection(*(set(waiting) for waiting in self._waiting)))
        done = [combined([waiting[at] for waiting in self._waiting]) for at in complete]
        for waiting in self._waiting:
            for at in [at for at in waiting if complete and at <= complete[-1]]:
                del waiting[at]
        return done


class EvaluationBoard:
    """The weights and the number of the current evaluation, and which of the evaluators have played
    their part of it.

    Evaluator 0 leads: it begins an evaluation when all have finished the one before. There is no
    lock: the number is written after everything else, and each evaluator writes only its own entry.
    The successor of a killed evaluator finds its part unfinished and plays it again, with the same
    weights.
    """

    def __init__(self, evaluators: int, states: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """``states``: state dicts of the models that play, whose tensors are not copied."""
        self.weights = [SharedWeights(state) for state in states]
        self._arrays = SharedArrays(
            {
                "number": ((1,), "int64"),
                "env_steps": ((1,), "int64"),
                "finished": ((evaluators, 8), "int64"),  # a cache line each
            }
        )

    @property
    def number(self) -> int:
        """The number of the current or last evaluation, from 1; 0 before the first."""
        return int(self._arrays["number"][0])

    @property
    def env_steps(self) -> int:
        """The env steps of training at which the current evaluation's weights were copied."""
        return int(self._arrays["env_steps"][0])

    def begin(self, env_steps: int) -> None:
        """Begin the next evaluation, whose weights have been published to ``weights``. Called by
        the leader."""
        self._arrays["env_steps"][0] = env_steps
        self._arrays["number"][0] += 1  # last: the evaluators begin now

    def finish(self, evaluator: int, number: int) -> None:
        """Record that ``evaluator`` has played its part of evaluation ``number``."""
        self._arrays["finished"][evaluator, 0] = number

    def has_finished(self, evaluator: int) -> bool:
        """Return whether ``evaluator`` has no part of the current evaluation left to play."""
        return bool(self._arrays["finished"][evaluator, 0] == self.number)

    @property
    def all_finished(self) -> bool:
        """Whether all evaluators have played their parts."""
        return bool((self._arrays["finished"][:, 0] == self.number).all())
