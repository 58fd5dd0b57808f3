"""The writer and the reader of episodes.csv: a line for each training episode, in the form of
Stable-Baselines3's Monitor."""

from __future__ import annotations

import csv
import io
import json
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.env.games import OF_ENV
from sampleforge.run.folder.files import LineFile, writing
from sampleforge.run.reports.policy_statistics import mean_return
from sampleforge.run.reports.statistics import FirstEpisodes, first_of, is_population, rows_of
from sampleforge.runtime.files import write_atomically
from sampleforge.shared.records import EpisodeRecord, games

if TYPE_CHECKING:
    from sampleforge.run.session import Session

Floats = npt.NDArray[np.float64]

LIMIT = 8 << 20
"""Bytes of episodes.csv above which every second episode is removed from it."""
FLUSH_S = 1.0
"""Seconds for which lines wait to be written together."""
MOST_STATS = 64
"""Statistics of an environment that have a column; further ones have none."""
COLUMNS = ("r", "l", "t", "env_steps", "episode", "actor", "env")
"""The columns of every file. ``policy`` follows in a run with several, ``copies`` in a population:
how many of these had replaced the policy's weights when its own episodes began. ``epsilon`` and
``third`` follow where env rows explore differently (see `Exploration`), then ``env_*``, the
statistics of the environment."""
LEAST_OF_COPY = 10
"""Episodes of new weights from which on a curve has their mean, if the run goes on for so long."""
PART = ("env_steps", "rows", "window")
"""What the first line says of each part of a run, from its beginning or from a resume on: the env
steps after which it begins, and the arguments of its `FirstEpisodes`."""


class _Line(NamedTuple):
    """A line that waits: the number of the episode, the values of all columns but statistics, and
    the numbers of the events that have these, one for each agent (0: none)."""

    episode: int
    text: str
    stats: tuple[int, ...]


class EpisodesFile:
    """Writes episodes.csv of a run. If it has more than ``limit`` bytes, every second of its
    episodes is removed, and from then on every second one of those that were written so far is: the
    number of each is a multiple of ``every``, which the first line has.

    A resumed run drops the episodes after env step ``first_step``, because it does these steps
    again. The first line has a `PART` for each part of the run. The file is opened when the first
    episode is written.
    """

    def __init__(self, path: Path, session: Session, first_step: int, limit: int = LIMIT) -> None:
        groups = session.graph.groups
        self._path, self._first_step, self._limit = path, first_step, limit
        self._progress = session.graph.progress
        self._env = session.config.env
        self._rows = session.plan.rows
        self._policies = [group.id for group in groups] if len(groups) > 1 else []
        self._exploration = [group.exploration for group in groups]
        self._statistics = session.statistics.policies
        optional = {
            "policy": bool(self._policies),
            "copies": is_population(session.resolved) or any(p.copies for p in self._statistics),
            "epsilon": any(self._exploration),
            "third": any(self._exploration),
        }
        self._own = (*COLUMNS, *(name for name, is_there in optional.items() if is_there))
        self._parts = [_part_of(session, first_step)]
        self._of_stats: list[str] = []
        self._every, self._size, self._began = 1, 0, time.time()
        self._file: LineFile | None = None
        self._waiting: list[_Line] = []
        self._stats: dict[int, Mapping[str, float]] = {}
        self._earlier_stats = self._stats
        self._flushed = monotonic()

    def take_stats(self, number: int, stats: Mapping[str, float]) -> None:
        """Take what is reported of the episode whose record has ``number``, by name."""
        self._stats[number] = stats

    def take(self, records: Sequence[EpisodeRecord], before: int) -> None:
        """Take the records of games that have ended now, after ``before`` others in the run. Raises
        OSError, which names the file, if it cannot be written."""
        if monotonic() - self._flushed >= FLUSH_S:
            self.flush()  # without the new ones: the events of these may yet come
        if not records:
            return
        now = f"{self._progress.wall_s:.3f},{self._progress.env_steps}"
        for number, game in enumerate(games(records), before + 1):
            if number % self._every == 0:
                for policy in dict.fromkeys([record.policy for record in game]):
                    own = [record for record in game if record.policy == policy]
                    stats = tuple(record.stats for record in own)
                    self._waiting.append(_Line(number, self._text(own, number, now), stats))

    def _text(self, game: Sequence[EpisodeRecord], number: int, now: str) -> str:
        """Return the values of a game, of the records of one policy's agents."""
        first = game[0]
        length, env = first.game_length or first.length, first.split * self._rows + first.row
        text = f"{mean_return(game):.10g},{length},{now},{number},{first.actor},{env}"
        if self._policies:
            text += f",{self._policies[first.policy]}"
        if "copies" in self._own:
            text += f",{self._statistics[first.policy].copies}"
        if "epsilon" in self._own:
            own, row = self._exploration[first.policy], first[:3]
            text += f",{own.epsilon[row]:.6g},{own.third[row]}" if own else ",,"
        return text

    def flush(self) -> None:
        """Write the lines that wait. Raises OSError, which names the file."""
        waiting, self._waiting, self._flushed = self._waiting, [], monotonic()
        if not waiting:
            return
        if self._file is None:
            self._open()
        waiting = [line for line in waiting if line.episode % self._every == 0]
        stats = {**self._earlier_stats, **self._stats}
        known = [_means_of([stats.get(each, {}) for each in line.stats]) for line in waiting]
        self._earlier_stats, self._stats = self._stats, {}  # some are of records yet to come
        names = dict.fromkeys([name for own in known for name in own])
        if new := [name for name in names if name not in self._of_stats]:
            new = new[: max(0, MOST_STATS - len(self._of_stats))]
            self._of_stats += new
            if new:
                self._rewrite(len(new))
        self._append([self._line(*each) for each in zip(waiting, known, strict=True)])
        if self._size > self._limit:
            self._every *= 2
            self._rewrite()

    def _line(self, line: _Line, stats: Mapping[str, float]) -> str:
        values = [stats.get(name, "") for name in self._of_stats]
        return ",".join([line.text, *(f"{value:.10g}" if value != "" else "" for value in values)])

    def _append(self, lines: Sequence[str]) -> None:
        if self._file is not None and lines:
            text = "\n".join(lines)
            self._file.write(text)
            self._size += len(text) + 1

    def _open(self) -> None:
        """Begin the file, with the episodes of the earlier part of the run."""
        header, rows = read_rows(self._path)
        kept = [row for row in rows if int(row["env_steps"]) <= self._first_step]
        if kept:
            self._every, self._began = header["every"], header["t_start"]
            self._of_stats = [name for name in kept[0] if name not in self._own]
            begun = [part for part in header["parts"] if part["env_steps"] < self._first_step]
            self._parts = [*begun, *self._parts]
        columns = [*self._own, *self._of_stats]
        self._begin([_csv([row.get(name, "") for name in columns]) for row in kept])

    def _rewrite(self, more: int = 0) -> None:
        """Write the file anew: ``more`` empty fields in each line, and only the episodes whose
        numbers are multiples of ``every``."""
        number = COLUMNS.index("episode")
        with writing(self._path):
            lines = self._path.read_text(encoding="utf-8").splitlines()[2:]
        kept = [
            line for line in lines if int(line.split(",", number + 1)[number]) % self._every == 0
        ]
        self._begin([line + "," * more for line in kept])

    def _begin(self, lines: Sequence[str]) -> None:
        """Write the file with the present columns and these lines; open it for more."""
        self.close()
        header = {"t_start": self._began, "env_id": self._env, "every": self._every}
        header["parts"] = self._parts
        columns = _csv([*self._own, *self._of_stats])
        data = "".join(f"{x}\n" for x in (f"#{json.dumps(header)}", columns, *lines)).encode()
        with writing(self._path):
            write_atomically(self._path, data, sync=False)
            self._file = LineFile(self._path)
        self._size = len(data)

    def close(self) -> None:
        """Close the file; lines that wait are not written."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _means_of(stats: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the environment's statistics of the agents of a game, by name: of those that several
    agents have, the mean, as in the metrics."""
    values: dict[str, list[float]] = {}
    for own in stats:
        for name in filter(lambda name: name.startswith(OF_ENV), own):
            values.setdefault(name, []).append(own[name])
    return {name: sum(each) / len(each) for name, each in values.items()}


def _csv(values: Sequence[str]) -> str:
    """Return one line of CSV, without its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


def read_rows(path: Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return the values in the first line of an episodes.csv, and its episodes by column: none of
    a file that is not there, or whose first line is damaged. Other damaged lines are left out, and
    an incomplete last one."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    header = _header(lines[0]) if lines else None
    if header is None:
        return {}, []
    return header, [row for row in csv.DictReader(lines[1:]) if _is_whole(row)]


def mean_returns(
    header: Mapping[str, Any], rows: Sequence[Mapping[str, str]], window: int, policy: str = ""
) -> dict[str, Floats]:
    """Return ``env_steps``, ``wall_s`` and ``return_mean``, the mean over the last ``window``
    episodes, of an episodes.csv (of one policy's rows, if it is named), as reports have it: where
    env rows explore differently, of the third that explores least, and at the beginning of each
    part of the run over as many episodes of each row (`FirstEpisodes`). If none counts in this way,
    it is the mean of all so far. Where copies have replaced a policy's weights, it is over episodes
    since the newest one, from the `LEAST_OF_COPY`-th on.

    A file that was thinned has fewer episodes: the mean is over ``window`` of these.
    """
    policies = list(dict.fromkeys(row.get("policy") or "" for row in rows))
    rows = _least_exploring(rows)
    counted = list(_counted(header, rows, policies))
    if not counted:
        counted, window = [(row, [_record(row, policies)]) for row in rows], max(1, len(rows))
    own = [
        (float(at["env_steps"]), float(at["t"]), record.ret, _copies(at))
        for at, game in counted
        for record in game
        if policy in ("", policies[record.policy])
    ]
    has_one = policy != "" or len(policies) == 1
    stretches = [[*each] for _, each in groupby(own, key=lambda each: has_one and each[3])]
    means = [
        _means(each, window, LEAST_OF_COPY if number else 1)
        for number, each in enumerate(stretches)
    ]
    env_steps, wall_s, returns = np.concatenate([np.zeros((0, 3)), *means]).T
    return {"env_steps": env_steps, "wall_s": wall_s, "return_mean": returns}


def _means(own: Sequence[tuple[float, float, float, str]], window: int, least: int) -> Floats:
    """Return env steps, seconds and the mean over the last ``window`` returns after each of the
    episodes, [N, 3], from the ``least``-th on, or the last one, if there are fewer."""
    table = np.array([each[:3] for each in own], np.float64)
    returns = np.cumsum(table[:, 2])
    counts = np.minimum(np.arange(1, len(own) + 1), window)
    before = np.concatenate([np.zeros(min(window, len(own))), returns[: max(0, len(own) - window)]])
    table[:, 2] = (returns - before) / counts
    return table[min(least, window, len(own)) - 1 :]


def _copies(row: Mapping[str, str]) -> str:
    """Return how many copies had replaced the weights of a row's policy; what an earlier version
    has written does not say so."""
    return row.get("copies") or "0"


def _least_exploring(rows: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Return the rows whose episodes count: where env rows explore differently, those of the third
    that explores least. Where an earlier version has not written which these are, it is the third
    of the epsilons there."""
    untold = [row for row in rows if row.get("epsilon") and not row.get("third")]
    ladder = sorted({float(row["epsilon"]) for row in untold})
    most = ladder[(len(ladder) - 1) // 3] if ladder else 0.0

    def counts(row: Mapping[str, str]) -> bool:
        if row.get("third"):
            return row["third"] == "0"
        return not row.get("epsilon") or float(row["epsilon"]) <= most

    return [row for row in rows if counts(row)]


def _counted(
    header: Mapping[str, Any], rows: Sequence[Mapping[str, str]], policies: Sequence[str]
) -> Iterator[tuple[Mapping[str, str], Sequence[EpisodeRecord]]]:
    """Yield the games that count, in the order of `RunStatistics`, each with the row of the episode
    after which it does. Of a part that an earlier version has written, all count as they end."""
    parts = header.get("parts", [])
    begins = [part["env_steps"] for part in parts]
    first, copies = FirstEpisodes(0, 0), "0"
    by_part = groupby(rows, key=lambda row: bisect_left(begins, float(row["env_steps"])))
    for number, group in by_part:
        own = list(group)
        for game in first.waiting:  # those of the part before count in a run that is resumed
            yield {**own[0], "copies": copies}, game
        copies = _copies(own[-1])
        first = _first_episodes(parts[number - 1], header, own) if number else FirstEpisodes(0, 0)
        for _, lines in groupby(own, key=lambda row: row["episode"]):
            ended = list(lines)
            for game in first.take([_record(row, policies) for row in ended]):
                yield ended[0], game


def _first_episodes(
    part: Mapping[str, int], header: Mapping[str, Any], rows: Sequence[Mapping[str, str]]
) -> FirstEpisodes:
    """Return what decides which of the ``rows`` of a part count first. Of a file that was thinned,
    some env rows may have none: those that have some are waited for."""
    known = part["rows"]
    if header["every"] > 1:
        known = min(known, len({(row["actor"], row["env"]) for row in rows}))
    return FirstEpisodes(known, part["window"])


def _record(row: Mapping[str, str], policies: Sequence[str]) -> EpisodeRecord:
    """Return the record of an episode; in it, each env row of an actor is a split of its own."""
    actor, env, length = (int(float(row[name])) for name in ("actor", "env", "l"))
    policy = policies.index(row.get("policy") or "")
    return EpisodeRecord(actor, env, 0, float(row["r"]), length, policy)


def _part_of(session: Session, first_step: int) -> dict[str, int]:
    """Return the `PART` of a run that begins after ``first_step``, as `RunStatistics` counts it."""
    first = first_of(session.graph, rows_of(session), session.resolved.metrics_window)
    return dict(zip(PART, (first_step, *first), strict=True))


def _header(line: str) -> dict[str, Any] | None:
    """Return the values in the first line of a file; None if they are damaged."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        header = json.loads(line.removeprefix("#"))
        if header["every"] >= 1 and isfinite(header["t_start"]):
            parts = [{name: int(part[name]) for name in PART} for part in header.get("parts", [])]
            return {**header, "every": int(header["every"]), "parts": parts}
    return None


def _is_whole(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a number in each of the `COLUMNS`, and no field too many."""
    try:
        return None not in row and all(isfinite(float(row[name])) for name in COLUMNS)
    except (KeyError, TypeError, ValueError):
        return False
