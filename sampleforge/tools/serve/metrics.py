"""The columns of one metrics.jsonl, read as far as they are asked for, and made small for a chart.

A report has 50 numbers and more, and a chart shows one of them. So a line is not parsed: the value
behind a name is found by a search for the name, which begins near the place that it has in other
lines. What has been read is kept, and only what was appended since is read the next time.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from sampleforge.run.reports.metrics import PREFIX, parse_report, policies_of
from sampleforge.tools.serve.tree import read_at

Floats = npt.NDArray[np.float64]

STEPS, SECONDS = "env_steps", "wall_s"
"""The metrics that a report begins with; they are the axes of charts."""
BEGIN = b'{"env_steps": '
"""The beginning of a report as SampleForge writes it; other lines are parsed as JSON."""
BLOCK = 1 << 20
"""Bytes that are read at a time."""
MAX_LINE = 4 << 20
"""Bytes of the longest line that is read."""
NEAR = 256
"""Bytes before a name's place in the first line of a block from which it is looked for in the other
lines: the numbers before it have other lengths in each."""
MAX_COLUMNS = 48
"""Columns of a run that are kept; the one that was asked for longest ago is dropped first."""
TAIL = 1 << 16
"""Bytes at the end of a file in which the last reports are looked for at first."""
MAX_POLICIES = 32
"""Policies whose mean is drawn."""
LAST = 5
"""Last reports whose metrics are known without reading the whole file."""
SAMPLED = 200
"""Reports that a curve consists of until the whole file has been read."""
COPIED_AT = "eval_env_steps"
"""A metric that every evaluation has, whatever else it reports."""
_EVALUATED = f'{COPIED_AT}": '.encode()


@dataclass
class _Column:
    """The values of a metric in the lines up to byte ``offset``: one per line, NaN where there is
    none."""

    values: array[float]
    offset: int = 0


class Series(NamedTuple):
    """A curve: its points, the number of reports that it was made of, and whether these are all
    (``exact``) or a sample of them. ``damaged``: lines that could not be read."""

    x: Floats
    y: Floats
    reports: int
    exact: bool
    damaged: int


class MetricsFile:
    """What has been read of one metrics.jsonl. It may be called by one thread at a time, with an
    open file descriptor of the file."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._inode = -1
        self._end = 0
        """Bytes up to the end of the last whole line, when the file was last looked at."""
        self._last_line = b""
        """That line. It tells another run's file from one that has grown: a folder that is deleted
        and made again may get the inode of the old one."""
        self._line_bytes = 4096
        self._searched = 0
        """Bytes in which reports with an evaluation were looked for."""
        self.names: dict[str, None] = {}
        """The names of the metrics that have been seen, in the order of the file."""
        self.last: dict[str, Any] = {}
        """The last report; empty if there is none."""
        self._looked: tuple[int, int, int] | None = None

    def look(self, handle: int) -> None:
        """Take note of the file's size, its last report and the names of its metrics. Everything
        that was read is forgotten if the file was replaced: by its inode, its size, or the line
        that was the last one."""
        status = os.fstat(handle)
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
        if signature == self._looked:
            return
        is_same = status.st_ino == self._inode and status.st_size >= self._end
        if not is_same or not self._has_last_line(handle):
            self._columns.clear()
            self.names.clear()
            self.last, self._inode, self._searched = {}, status.st_ino, 0
        self._looked = signature
        self._end, lines = _last_lines(handle, status.st_size)
        self._last_line = lines[-1] + b"\n" if lines else b""
        reports = [report for line in lines[-LAST:] if (report := parse_report(line)) is not None]
        if reports:
            self.last = reports[-1]
            self._line_bytes = max(256, *map(len, lines[-LAST:]))
        for report in reports:
            self._know(report)

    def _has_last_line(self, handle: int) -> bool:
        """Return whether the last line that was read is still where it was."""
        size = len(self._last_line)
        return read_at(handle, self._end - size, size) == self._last_line

    def stamp(self, names: Sequence[str]) -> str:
        """Return a text that changes when the curves of ``names`` do."""
        file = f"{self._inode}.{self._end}.{crc32(self._last_line):x}"
        return f"{file}.{int(self.is_read(names))}"

    def is_read(self, names: Sequence[str]) -> bool:
        """Return whether the columns ``names`` have been read up to the end of the file."""
        known = (self._columns.get(name) for name in names)
        return all(column is not None and column.offset >= self._end for column in known)

    def read(self, handle: int, names: Sequence[str], deadline: float) -> bool:
        """Read the columns ``names`` up to the end of the file; return whether that was done before
        ``deadline`` (of ``monotonic``). The next call goes on from there."""
        for name in names:
            column = self._columns.pop(name, None) or _Column(array("d"))
            self._columns[name] = column  # the newest is the last
        while len(self._columns) > max(MAX_COLUMNS, len(names)):
            del self._columns[next(iter(self._columns))]
        for offset in sorted({self._columns[name].offset for name in names}):
            same = [name for name in names if self._columns[name].offset == offset]
            if not self._scan(handle, {name: self._columns[name] for name in same}, deadline):
                return False
        return True

    def parts(self, metric: str) -> list[str]:
        """Return the names whose mean ``metric`` is (the largest if it ends in _max): its own, or
        those of the policies of a run that has it of each policy only."""
        if metric in self.names:
            return [metric]
        names = [f"{policy}/{metric}" for policy in policies_of(self.names)]
        return [name for name in names if name in self.names][:MAX_POLICIES] or [metric]

    def series(self, x: str, y: Sequence[str], smooth: int, points: int) -> Series:
        """Return the curve of the `parts` ``y`` of a metric over ``x`` from the columns that were
        read, those of `copied_at` among them: smoothed as the mean of ``smooth`` reports, and
        reduced to at most about ``points`` points."""
        columns = [self._columns[name].values for name in (STEPS, x, *y, *copied_at(y))]
        rows = min(map(len, columns))
        table = np.array([column[:rows] for column in columns], np.float64)
        return _series(table, x, y, smooth, points, exact=True)

    def sampled(self, handle: int, x: str, y: Sequence[str], smooth: int) -> Series:
        """Return the curve of the `parts` ``y`` of a metric over ``x`` from `SAMPLED` reports that
        are spread evenly over the file."""
        names = (STEPS, x, *y, *copied_at(y))
        rows = [_row(line, names) for line in self._lines(handle)]
        table = np.array(rows, np.float64).reshape(-1, len(names)).T
        reports = max(1, self._end // self._line_bytes)
        window = max(1, round(smooth * len(rows) / reports))
        return _series(table, x, y, window, 2 * SAMPLED, exact=False)

    def _know(self, report: dict[str, Any]) -> None:
        self.names.update(dict.fromkeys(name for name in report if name not in self.names))

    def _scan(self, handle: int, columns: dict[str, _Column], deadline: float) -> bool:
        """Read whole lines into ``columns``, which all end at the same line."""
        offset = next(iter(columns.values())).offset
        while offset < self._end:
            data = read_at(handle, offset, min(BLOCK, self._end - offset))
            end = data.rfind(b"\n") + 1
            if not end:
                data = read_at(handle, offset, min(MAX_LINE, self._end - offset))
                end = data.rfind(b"\n") + 1
            # A line that is too long ends what can be shown of the file.
            taken = end or self._end - offset
            if offset >= self._searched:
                self._know_evaluations(data)
                self._searched = offset + taken
            for name, values in zip(columns, _values(data, end, list(columns)), strict=True):
                columns[name].values.extend(values)
            offset += taken
            for column in columns.values():
                column.offset = offset
            if monotonic() > deadline:
                break
        return offset >= self._end

    def _know_evaluations(self, data: bytes) -> None:
        """Take the names of reports with an evaluation, which the last reports need not have: of
        each policy the first one's."""
        at = -1
        while (at := data.find(_EVALUATED, at + 1)) >= 0:
            name = data[data.rfind(b'"', 0, at) + 1 : at + len(_EVALUATED) - 3]
            if name.decode("ascii", "replace") in self.names:
                continue
            line = data[data.rfind(b"\n", 0, at) + 1 : data.find(b"\n", at)]
            if (report := parse_report(line)) is not None:
                self._know(report)

    def _lines(self, handle: int) -> Iterable[bytes]:
        """Yield about `SAMPLED` lines, the first and the last among them."""
        size = 3 * self._line_bytes
        positions = np.linspace(0, max(0, self._end - size), SAMPLED).astype(np.int64)
        for number, position in enumerate(dict.fromkeys(positions.tolist())):
            data = read_at(handle, position, size)
            begin = data.find(b"\n") + 1 if number else 0
            end = data.find(b"\n", begin)
            if number == SAMPLED - 1:  # the last line ends what is read
                begin, end = data.rfind(b"\n", 0, len(data) - 1) + 1, len(data) - 1
            if end > begin:
                yield data[begin:end]


def _last_lines(handle: int, size: int) -> tuple[int, list[bytes]]:
    """Return where the last whole line of a file of ``size`` bytes ends, and the whole lines of its
    last `TAIL` bytes, or of twice as many and so on where no line is that short."""
    tail = TAIL
    while True:
        begin = max(0, size - tail)
        data = read_at(handle, begin, size - begin)
        lines = data.split(b"\n")[:-1]
        if begin:  # the first one is not whole
            lines = lines[1:]
        if lines or not begin or tail >= MAX_LINE:
            return begin + data.rfind(b"\n") + 1, lines
        tail *= 2


def _values(data: bytes, end: int, names: Sequence[str]) -> list[list[float]]:
    """Return a column for each of ``names`` of the whole lines in the first ``end`` bytes: a value
    per line, NaN where there is none."""
    lines, begin, find = [], 0, data.find
    is_ours = True
    while begin < end:
        stop = find(b"\n", begin)
        lines.append((begin, stop))
        is_ours = is_ours and data.startswith(BEGIN, begin)
        begin = stop + 1
    if is_ours and lines:
        return [_column(data, lines, name) for name in names]
    rows = [_row(data[begin:stop], names) for begin, stop in lines]
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in names]


def _row(line: bytes, names: Sequence[str]) -> list[float]:
    if line.startswith(BEGIN):
        return [_column(line, [(0, len(line))], name)[0] for name in names]
    report = parse_report(line) or {}
    return [_number(report.get(name)) for name in names]


def _column(data: bytes, lines: Sequence[tuple[int, int]], name: str) -> list[float]:
    """Return the values of a metric in ``lines`` (begin, end) of ``data``."""
    key, find = json.dumps(name).encode() + b": ", data.find
    first, end = lines[0][0], lines[-1][1]
    at = find(key, first, end)
    if at < 0:
        return [math.nan] * len(lines)
    # This is a hot path: a million lines are read for a hundred long runs.
    low, size = max(0, at - first - NEAR), len(key)
    places = [find(key, begin + low, stop) + size for begin, stop in lines]
    if size - 1 not in places:
        try:
            return list(map(float, [data[at : find(b",", at)] for at in places]))
        except ValueError:  # a null, or the last number of a line
            pass
    return [_value(data, key, begin, stop) for begin, stop in lines]


def _value(data: bytes, key: bytes, begin: int, stop: int) -> float:
    """Return the number behind ``key`` in a line of ``data``; NaN if there is none."""
    at = data.find(key, begin, stop)
    if at < 0:
        return math.nan
    at += len(key)
    end = data.find(b",", at, stop)
    try:
        return float(data[at : end if end >= 0 else data.find(b"}", at, stop)])
    except ValueError:  # null, or damaged
        return math.nan


def _overall(name: str, table: Floats) -> Floats:
    """Return the mean of the values [policies, N] in each report, or the largest."""
    if len(table) == 1:
        only: Floats = table[0]
        return only
    known = np.isfinite(table)
    if name.endswith("_max"):
        largest: Floats = np.where(known, table, -math.inf).max(axis=0)
        return largest
    with np.errstate(invalid="ignore"):
        mean: Floats = np.where(known, table, 0.0).sum(axis=0) / known.sum(axis=0)
    return mean


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if is_number else math.nan
    except OverflowError:
        return math.nan


def copied_at(parts: Sequence[str]) -> list[str]:
    """Return, for each of the `MetricsFile.parts` of a metric of evaluations, the metric that has
    the env steps at which the weights were copied; none for another metric."""
    policies = [
        part.rpartition("/")[0]
        for part in parts
        if part.startswith(PREFIX) or part.partition("/")[2].startswith(PREFIX)
    ]
    return [f"{policy}/{COPIED_AT}" if policy else COPIED_AT for policy in policies]


def _series(
    table: Floats, name: str, y: Sequence[str], smooth: int, points: int, *, exact: bool
) -> Series:
    """Return the curve of a ``table`` of columns: env steps, the axis ``name``, the parts ``y`` and
    their `copied_at`. Reports of steps that a resumed run did again are left out."""
    whole = np.isfinite(table[0])
    table = table[:, whole]
    # The least of all later env steps: a report beyond it was done again.
    table = table[:, table[0] <= np.minimum.accumulate(table[0, ::-1])[::-1]]
    (steps, x), parts, copied = table[:2], table[2 : 2 + len(y)], table[2 + len(y) :]
    values = _overall(y[0], parts)
    if len(copied):
        values = np.where(np.isfinite(values), _overall(y[0], _latest(parts)), np.nan)
        at = np.where(np.isfinite(copied).any(axis=0), np.fmax.reduce(_latest(copied)), steps)
        x = at if name == STEPS else np.interp(at, np.append(0.0, steps), np.append(0.0, x))
    kept = np.isfinite(x) & np.isfinite(values)
    x, shown = x[kept], mean_of_last(values[kept], smooth)
    some = representatives(shown, points)
    return Series(x[some], shown[some], table.shape[1], exact, int((~whole).sum()))


def _latest(table: Floats) -> Floats:
    """Return the last known value of each row [R, N] so far; evaluations of several policies end in
    different reports."""
    index = np.where(np.isfinite(table), np.arange(table.shape[1]), 0)
    found: Floats = np.take_along_axis(table, np.maximum.accumulate(index, axis=1), axis=1)
    return found


def mean_of_last(values: Floats, window: int) -> Floats:
    """Return the mean of each value and of those before it, ``window`` in all (fewer at the
    beginning), float64 [n]."""
    if window <= 1 or not len(values):
        return values
    window = min(window, len(values))
    middle = float(values.mean())  # sums of small numbers lose less
    sums = np.concatenate([[0.0], np.cumsum(values - middle)])
    count = np.minimum(np.arange(1, len(values) + 1), window)
    ends = np.arange(1, len(values) + 1)
    means: Floats = (sums[ends] - sums[ends - count]) / count + middle
    return means


def representatives(values: Floats, points: int) -> npt.NDArray[np.int64]:
    """Return the indices of the values that a chart of about ``points`` points shows, in order: the
    first, the last, and the smallest and the largest of each of ``points`` / 2 equal parts, so that
    no peak is lost. All of them if there are not more than ``points``."""
    count = len(values)
    if count <= points:
        return np.arange(count)
    length = -(-count // max(1, points // 2))
    parts = -(-count // length)
    padded = np.full(parts * length, np.nan)
    padded[:count] = values
    table, starts = padded.reshape(parts, length), np.arange(parts) * length
    chosen = [[0, count - 1], starts + np.nanargmin(table, 1), starts + np.nanargmax(table, 1)]
    return np.unique(np.concatenate(chosen)).astype(np.int64)
