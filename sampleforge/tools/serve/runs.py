"""The runs below a folder as the page shows them: a list, curves, one run in full, and the lineage
of a population, of which the page draws table and figure.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.populations.lineage import parse
from sampleforge.run.folder.kinds import POPULATION, STUDY
from sampleforge.run.reports.metrics import policies_of
from sampleforge.runtime.folder_lock import HeldLocks
from sampleforge.tools.plots.descent import History, Stretch
from sampleforge.tools.plots.lineage import changing
from sampleforge.tools.plots.lineage_lanes import lane_order
from sampleforge.tools.serve.metrics import SECONDS, STEPS, MetricsFile, Series, copied_at
from sampleforge.tools.serve.tree import (
    Entries,
    Place,
    Refused,
    Tree,
    from_id,
    read_at,
    shown,
    to_id,
)

MAX_BYTES = 16 << 20
"""Bytes of the longest lineage.jsonl that is shown."""
MAX_MEMBERS = 200
ORDERED_UP_TO = 32
"""Members up to which the lanes are ordered so that curves between them are short."""
MAX_RESUMED = 10_000_000
"""Lines times resumes of a file up to which it is read: the time grows with both."""


def population(data: bytes, name: str) -> dict[str, Any]:
    """Return members, lines of descent and hyperparameters of the population whose lineage is
    ``data``, read from a file ``name``. Raises Refused, with the reason, for a lineage that cannot
    be read or shown."""
    if data.count(b"\n") * data.count(b'"resume"') > MAX_RESUMED:
        raise Refused(f"{name} is too long: too many resumes")
    try:
        history = History(parse(data.decode("utf-8", errors="replace"), name))
    except (ConfigError, ValueError, RecursionError) as error:
        raise Refused(str(error)) from error
    members = history.members
    if len(members) > MAX_MEMBERS:
        raise Refused(f"{name} has {len(members)} members; at most {MAX_MEMBERS} are shown")
    if not members:
        return {"members": [], "stretches": [], "hyperparameters": [], "best": None}
    order = lane_order(history) if len(members) <= ORDERED_UP_TO else members
    stretches = [stretch for member in members for stretch in history.stretches[member]]
    number = {stretch: index for index, stretch in enumerate(stretches)}
    best = {stretch: end for stretch, end in history.ancestry(history.best)}
    survival = history.survival()
    return {
        "best": history.best,
        "hyperparameters": changing(history),
        "members": [_member(member, history.stretches[member]) for member in order],
        "stretches": [
            {
                "member": each.member,
                "begin": each.begin,
                "end": each.end,
                "parent": None if each.parent is None else number[each.parent],
                "copied_at": None if each.origin is None else each.origin.donor_env_steps,
                "kept_until": survival.get(each),
                "best_until": best.get(each),
                "scores": [[s.env_steps, _finite(s.objective)] for s in each.scores],
                "settings": [[s.env_steps, dict(s.values), list(s.mutated)] for s in each.settings],
            }
            for each in stretches
        ],
    }


def _member(member: str, stretches: list[Stretch]) -> dict[str, Any]:
    """Return a member's row of the table."""
    last = stretches[-1]
    objectives = [stretch.objective for stretch in stretches]
    known = [objective for objective in objectives if not math.isnan(objective)]
    settings = [setting for stretch in stretches for setting in stretch.settings]
    return {
        "id": member,
        "objective": known[-1] if known else None,
        "env_steps": last.end,
        "copied_from": None if last.origin is None else last.origin.donor,
        "copies": len(stretches) - 1,
        "mutations": sum(bool(setting.mutated) for setting in settings),
        "hyperparameters": dict(settings[-1].values) if settings else {},
    }


def population_status(data: bytes) -> str:
    """Return the status of a population of runs from its results.json, which is also written when
    its launcher is interrupted. Raises ValueError for another file."""
    result = json.loads(data)
    counts = result if isinstance(result, dict) else {}
    members, finished, failed = (counts.get(name) for name in ("members", "finished", "failed"))
    if not (isinstance(members, int) and isinstance(finished, int) and isinstance(failed, int)):
        raise ValueError(f"{RESULTS} has no numbers of members that have finished and failed")
    if finished + failed < members:
        return "interrupted"
    return "failed" if not finished else "finished"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


MAX_RUNS = 2000
"""Runs that are listed; the others are counted as left out."""
MAX_FOLDERS = 20_000
MAX_DEPTH = 5
"""Folders that are searched for runs, and how deep."""
SEARCH_S = 2.0
"""Seconds between two searches for runs; a search that takes long is made more seldom."""
EXACT_S = 0.25
"""Seconds that one request may spend on reading whole files; curves of other runs are sampled, and
the page asks again at once."""
MAX_CURVES = 500
"""Curves in one request; the page asks for more in several."""
POINTS = 1200
"""Points of a curve, if there are not many."""
ALL_POINTS = 60_000
"""Points of all curves of one chart together."""
MAX_NAMES = 1000
"""Names of metrics that the page offers."""
MAX_TEXT = 1 << 20
"""Bytes of the largest config.yaml, summary.json or workers.json that is shown."""
LOG_TAIL = 1 << 16
LOG_PART = 1 << 18
"""Bytes of the end of log.txt that are shown first, and that are added at a time."""
RECENT_S = 60.0
"""Seconds within which a run without a known lock must have written to count as running."""

CONFIG, METRICS, SUMMARY, LOG = "config.yaml", "metrics.jsonl", "summary.json", "log.txt"
WORKERS, LOCK, LINEAGE, RESULTS = "workers.json", ".lock", "lineage.jsonl", "results.json"
_WATCHED = (CONFIG, METRICS, SUMMARY, LOG, WORKERS, LOCK, LINEAGE, RESULTS)
_OF_RUN = {METRICS, LOG, LOCK}
"""A folder with config.yaml is a run's if it has one of these, too."""
_OF_SEVERAL = {LINEAGE, POPULATION, "sweep.yaml", STUDY}
"""A folder with one of these is that of a population or of a sweep."""
_SKIPPED = {"checkpoints", "tb", "snapshots", "scratch", "published", "jobs", "lineages"}
"""Folders in such a folder that have no runs. Elsewhere they may have any name."""
VIDEOS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
"""Suffix -> content type of the pictures in a run folder that are shown."""
_SETTING = re.compile(rb"^(env|algo|seed): *(.*?) *$", re.MULTILINE)

Stats = Mapping[str, os.stat_result]


@dataclass
class _Run:
    """What is known of one run. ``lock`` guards ``metrics``."""

    place: Place
    metrics: MetricsFile = field(default_factory=MetricsFile)
    lock: threading.Lock = field(default_factory=threading.Lock)
    read: dict[str, tuple[tuple[int, ...], Any]] = field(default_factory=dict)
    """File -> its signature when it was read, and what was in it."""


class Runs:
    """The runs in ``root`` and below. Each method returns plain values for the page, and may be
    called by several threads. Methods with an id raise Refused for one that is no run's."""

    def __init__(self, root: Path) -> None:
        self.tree = Tree(root)
        self._lock = threading.Lock()
        self._runs: dict[Place, _Run] = {}
        self._left_out = 0
        self._unsearched = False
        self._search_at = -math.inf

    # ---- the list ----

    def listing(self) -> dict[str, Any]:
        """Return a row for each run, those that have written last first, how many runs are
        ``left_out``, and whether there are more folders than are searched (``unsearched``)."""
        held, now = HeldLocks(), time.time()
        rows = []
        for run in self._found():
            with suppress(OSError, Refused):  # it was removed meanwhile
                rows.append(self._row(run, held, now))
        rows.sort(key=lambda row: row["updated"], reverse=True)
        return {
            "root": shown(self.tree.root.name),
            "runs": rows,
            "left_out": self._left_out,
            "unsearched": self._unsearched,
            "metrics": self._metric_names(),
        }

    def _metric_names(self) -> list[str]:
        """Return the names of the metrics of all runs; those of single policies come last."""
        own, of_policies = dict[str, None](), dict[str, None]()
        for run in list(self._runs.values()):
            names = list(run.metrics.names)
            policies = set(policies_of(run.metrics.names))
            for name in names:
                policy, _, rest = name.partition("/")
                own[rest if policy in policies else name] = None
                if policy in policies:
                    of_policies[name] = None
        return [*own, *of_policies][:MAX_NAMES]

    def _found(self) -> list[_Run]:
        """Return the runs, searching for new ones if the last search was long enough ago."""
        with self._lock:
            began = time.monotonic()
            if began >= self._search_at:
                places = self._search()
                self._left_out = max(0, len(places) - MAX_RUNS)
                self._runs = {
                    place: self._runs.get(place) or _Run(place) for place in places[:MAX_RUNS]
                }
                took = time.monotonic() - began
                self._search_at = began + took + max(SEARCH_S, 10 * took)
            return list(self._runs.values())

    def _search(self) -> list[Place]:
        """Return the folders of runs and of populations of runs."""
        found: list[Place] = []
        waiting: list[Place] = [()]
        for _ in range(MAX_FOLDERS):
            if not waiting:
                break
            place = waiting.pop()
            try:
                entries = self.tree.entries(place)
            except OSError:  # it may not be read, or was removed
                continue
            is_run = CONFIG in entries.files and bool(_OF_RUN & entries.files)
            if is_run or LINEAGE in entries.files:
                found.append(place)
            if not is_run and len(place) < MAX_DEPTH:
                skipped = _SKIPPED if _OF_SEVERAL & entries.files else set()
                waiting += [(*place, name) for name in entries.folders if name not in skipped]
        self._unsearched = bool(waiting)
        return found

    def _row(self, run: _Run, held: HeldLocks, now: float) -> dict[str, Any]:
        """Return a run's row of the list."""
        stats = self.tree.stats(run.place, _WATCHED)
        if not stats:
            raise Refused("it was removed")
        settings, summary = self._settings(run, stats), self._summary(run, stats)
        with run.lock:
            self._look(run, stats)
            last = run.metrics.last
        state = self._state(run, stats, summary, held, now)
        is_over = state in ("finished", "interrupted", "failed")
        values = {**last, **summary} if is_over else last
        written = [each.st_mtime for name, each in stats.items() if name not in (CONFIG, LOCK)]
        return {
            "id": to_id(run.place),
            "name": shown("/".join(run.place) or self.tree.root.name),
            "status": state,
            **{name: settings.get(name, "") for name in ("env", "algo", "seed")},
            "return": _number(values.get("return_mean")),
            "best": _number(values.get("return_best")),
            "evaluated": _number(summary.get("eval_return_mean")) if is_over else None,
            "env_steps": _number(values.get(STEPS)),
            "wall_s": _number(values.get(SECONDS)),
            "rate": _number(last.get("env_steps_per_s")),
            "restarts": _number(values.get("restarts")),
            "updated": max(written or [each.st_mtime for each in stats.values()]),
            "policies": sorted(policies_of(last))[:64],
            "lineage": LINEAGE in stats,
            "bytes": stats[METRICS].st_size if METRICS in stats else 0,
        }

    def _settings(self, run: _Run, stats: Stats) -> dict[str, str]:
        """Return environment, algorithm and seed as config.yaml has them, without parsing it."""

        def parse(data: bytes) -> dict[str, str]:
            found = {key.decode(): _text(value) for key, value in _SETTING.findall(data)}
            return {key: value.strip("'\"")[:200] for key, value in found.items()}

        return self._cached(run, stats, CONFIG, parse) or {}

    def _summary(self, run: _Run, stats: Stats) -> dict[str, Any]:
        def parse(data: bytes) -> dict[str, Any]:
            summary = json.loads(data)
            return summary if isinstance(summary, dict) else {}

        return self._cached(run, stats, SUMMARY, parse) or {}

    def _cached(self, run: _Run, stats: Stats, name: str, parse: Any) -> Any:
        """Return what ``parse`` makes of a file, None if it is missing or damaged; it is called
        again only if the file has changed."""
        status = stats.get(name)
        if status is None:
            return None
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
        known = run.read.get(name)
        if known is None or known[0] != signature:
            try:
                value = parse(self.tree.read(run.place, name, MAX_TEXT))
            except (OSError, Refused, ValueError, RecursionError):
                value = None
            run.read[name] = known = (signature, value)
        return known[1]

    def _look(self, run: _Run, stats: Stats) -> None:
        """Take note of the last report. ``run.lock`` is held."""
        if METRICS in stats:
            with self.tree.open(run.place, METRICS) as handle:
                run.metrics.look(handle)

    def _state(
        self,
        run: _Run,
        stats: Stats,
        summary: Mapping[str, Any],
        held: HeldLocks,
        now: float,
    ) -> str:
        """Return the status of a run: running, that of its summary, or killed; for a population of
        runs, that of its result."""
        lock = stats.get(LOCK)
        if lock is not None and held.holds(lock, self._owner(run, stats)):
            return "running"
        # The summary of an earlier part of a resumed run is older than the last report.
        reached = _number(run.metrics.last.get(SECONDS)) or 0.0
        ended = _number(summary.get(SECONDS))
        if isinstance(summary.get("status"), str) and (ended or 0.0) >= reached - 1e-3:
            return str(summary["status"])[:20]
        if not held.known or lock is None:
            times = [stats[name].st_mtime for name in (METRICS, LOG, WORKERS) if name in stats]
            if times and now - max(times) < RECENT_S:
                return "running"
        if CONFIG not in stats and RESULTS in stats:
            return self._cached(run, stats, RESULTS, population_status) or "killed"
        return "killed"

    def _owner(self, run: _Run, stats: Stats) -> int | None:
        data = self._cached(run, stats, LOCK, lambda data: data[:32].strip())
        return int(data) if data and data.isdigit() else None

    # ---- curves ----

    def curves(
        self,
        wanted: Sequence[tuple[str, str]],
        metric: str,
        x: str,
        smooth: int,
        of: int = 0,
    ) -> dict[str, Any]:
        """Return the curves of ``metric`` over ``x`` (env_steps or wall_s). ``wanted``: the id of
        each run, and the stamp of the curve that the page has ("" for none), which is not sent
        again. ``smooth``: reports that a point is the mean of. ``of``: curves of the chart, if this
        is one of several requests for them. Raises ValueError for more than `MAX_CURVES` runs.

        Curves that are not ``exact`` are made of a sample of the reports, because reading them all
        would have taken too long; asking again goes on with that."""
        if len(wanted) > MAX_CURVES:
            raise ValueError(f"{len(wanted)} curves in one request; ask for {MAX_CURVES} at a time")
        deadline = time.monotonic() + EXACT_S
        points = max(100, min(POINTS, ALL_POINTS // max(1, len(wanted), of)))
        curves: dict[str, Any] = {}
        for run_id, known in wanted:
            try:
                run = self._run(run_id)
                with run.lock, self.tree.open(run.place, METRICS) as handle:
                    run.metrics.look(handle)
                    parts = run.metrics.parts(metric)
                    names = list(dict.fromkeys((STEPS, x, *parts, *copied_at(parts))))
                    stamp = f"{run.metrics.stamp(names)}.{points}"
                    is_exact = run.metrics.is_read(names)
                    if stamp == known and is_exact:
                        curves[run_id] = {"stamp": stamp, "exact": True}
                        continue
                    if time.monotonic() < deadline:
                        is_exact = run.metrics.read(handle, names, deadline)
                    if stamp == known and not is_exact:
                        curves[run_id] = {"stamp": stamp, "exact": False}
                        continue
                    if is_exact:
                        series = run.metrics.series(x, parts, smooth, points)
                    else:
                        series = run.metrics.sampled(handle, x, parts, smooth)
                    stamp = f"{run.metrics.stamp(names)}.{points}"
            except (OSError, Refused):
                curves[run_id] = {"stamp": "", "x": [], "y": [], "exact": True, "reports": 0}
                continue
            curves[run_id] = {"stamp": stamp, **_plain(series)}
        return {"curves": curves}

    # ---- one run ----

    def details(self, run_id: str) -> dict[str, Any]:
        """Return the texts of a run's files, the names of its metrics, its last report, and its
        videos."""
        run = self._run(run_id)
        stats = self.tree.stats(run.place, _WATCHED)
        with run.lock:
            self._look(run, stats)
            names = list(run.metrics.names)
            last = {name: _number(value) for name, value in run.metrics.last.items()}
        return {
            "id": run_id,
            "metrics": names,
            "last": last,
            "config": self._shown_text(run, stats, CONFIG),
            "summary": self._shown_text(run, stats, SUMMARY),
            "workers": self._shown_text(run, stats, WORKERS),
            "lineage": LINEAGE in stats,
            "videos": self._videos(run.place),
        }

    def _shown_text(self, run: _Run, stats: Stats, name: str) -> str | None:
        if name not in stats:
            return None
        try:
            return _text(self.tree.read(run.place, name, MAX_TEXT))
        except (OSError, Refused) as error:
            return f"{name} cannot be shown: {error}"

    def _videos(self, place: Place) -> list[dict[str, Any]]:
        """Return the videos in a run folder and in its folder ``videos``, newest first."""
        found: list[dict[str, Any]] = []
        for folder in ((), ("videos",)):
            try:
                entries: Entries = self.tree.entries((*place, *folder))
                names = [n for n in sorted(entries.files) if Path(n).suffix.lower() in VIDEOS]
                names = [n for n in names if not n.startswith(".")]  # one that is being written
                stats = self.tree.stats((*place, *folder), names[:200])
            except OSError:
                continue
            for name, status in stats.items():
                found.append(
                    {
                        "id": to_id((*folder, name)),
                        "name": shown("/".join((*folder, name))),
                        "type": VIDEOS[Path(name).suffix.lower()],
                        "bytes": status.st_size,
                        "updated": status.st_mtime,
                    }
                )
        return sorted(found, key=lambda video: video["updated"], reverse=True)[:100]

    def log(self, run_id: str, begin: int) -> dict[str, Any]:
        """Return log.txt from byte ``begin`` on, as far as its last whole line, at most `LOG_PART`
        bytes; its last lines if ``begin`` is negative or beyond its end."""
        run = self._run(run_id)
        with self.tree.open(run.place, LOG) as handle:
            size = os.fstat(handle).st_size
            is_tail = not 0 <= begin <= size
            begin = max(0, size - LOG_TAIL) if is_tail else begin
            data = read_at(handle, begin, min(LOG_PART, size - begin))
        if is_tail and begin:
            skipped = data.find(b"\n") + 1
            begin, data = begin + skipped, data[skipped:]
        end = data.rfind(b"\n") + 1
        if len(data) == LOG_PART and not end:  # a line that is longer than a part
            end = len(data)
        return {"begin": begin, "end": begin + end, "text": _text(data[:end]), "reset": is_tail}

    def lineage(self, run_id: str) -> dict[str, Any]:
        """Return the population in a folder, see `population`."""
        run = self._run(run_id)
        stats = self.tree.stats(run.place, (LINEAGE,))
        if LINEAGE not in stats:
            raise Refused("there is no lineage.jsonl")
        status = stats[LINEAGE]
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
        known = run.read.get(LINEAGE)
        if known is None or known[0] != signature:
            data = self.tree.read(run.place, LINEAGE, MAX_BYTES)
            run.read[LINEAGE] = known = (signature, population(data, LINEAGE))
        found: dict[str, Any] = known[1]
        return found

    def video(self, run_id: str, video_id: str) -> tuple[Place, str, str]:
        """Return the folder, the name and the content type of a video of a run."""
        run, place = self._run(run_id), from_id(video_id)
        if not place or place[:-1] not in ((), ("videos",)):
            raise Refused(f"{video_id!r} is no video of the run")
        kind = VIDEOS.get(Path(place[-1]).suffix.lower())
        if kind is None:
            raise Refused(f"only files {', '.join(VIDEOS)} are shown")
        return (*run.place, *place[:-1]), place[-1], kind

    def _run(self, run_id: str) -> _Run:
        place = from_id(run_id)
        self._found()
        run = self._runs.get(place)
        if run is None:
            raise Refused(f"{run_id!r} is no run in this folder")
        return run


def _plain(series: Series) -> dict[str, Any]:
    return {
        "x": series.x.tolist(),
        "y": series.y.tolist(),
        "exact": series.exact,
        "reports": series.reports,
        "damaged": series.damaged,
    }


def _number(value: Any) -> float | None:
    """Return a number that JSON has; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
