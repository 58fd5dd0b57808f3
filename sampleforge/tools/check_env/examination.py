"""The measurements of `sampleforge check-env`, in a child process of the driver's.

One row plays twice with the same seed, which shows whether plays repeat; then it plays for most of
the time, and each step is timed and each value looked at; then many rows play, as they do in an
actor. What `close` leaves behind is looked for at the end.
"""

from __future__ import annotations

import itertools
import os
import resource
import tempfile
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np
import psutil

from sampleforge.env.config import EnvConfig
from sampleforge.env.gymnasium_vector import GymnasiumVector
from sampleforge.env.interface import shorter_limit, tell_of_row
from sampleforge.env.multi_agent import SeatVector
from sampleforge.env.random_play import RandomPlay
from sampleforge.env.registry import family_of
from sampleforge.env.single import SyncVector
from sampleforge.env.vector import EnvVector
from sampleforge.runtime.growth import growth_of
from sampleforge.runtime.machine import memory_available
from sampleforge.runtime.processes import available_cores
from sampleforge.spec import ACTION_MASK
from sampleforge.tools.check_env import verdicts
from sampleforge.tools.check_env.played import LeafSeen, Played, Speed
from sampleforge.tools.check_env.verdicts import Finding

Tell = Callable[[dict[str, Any]], None]

REPEATED_STEPS = 200
"""Most env steps that are played twice."""
LEAST_STEPS = 10
"""Least number of env steps of each part, however long they take."""
REPEAT_SHARE, PLAY_SHARE, ROWS_SHARE = 0.1, 0.7, 0.2
"""Fractions of the time that the parts have."""
MOST_ROWS = 32
START_S = 2.0
"""Seconds that starting the many rows may take, as far as can be foreseen."""
TELL_S = 0.1
"""Seconds between two reports of the progress."""
SAMPLES = 128
"""Number of samples of the memory during the play."""
REFRESH = 32
"""Number of samples after which the environment's processes are looked for again, which takes
milliseconds."""
LEAST_GROWTH = float(4 << 20)
"""Bytes of growth that are remarked; an allocator takes less at a time."""
WARM_UP = 0.2
"""Fraction of the play before the memory is looked at: caches fill at first."""
SMALL = 1 << 14
"""Elements of an observation leaf up to which every step's values are looked at; of a larger one,
those of each `SELDOM`-th step."""
SELDOM = 16
END_S = 2.0
"""Seconds that processes of the environment may take to end after ``close``."""
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Command lines of processes that Python starts once and keeps until it ends."""


def examine(
    config: EnvConfig, tell: Tell, *, seconds: float, closes: bool = True, several: bool = True
) -> None:
    """Play for about ``seconds`` in all, and tell the findings, {"finding": ...}, and the progress,
    {"progress": fraction, "doing": text}. Raises the environment's exceptions, if it cannot be
    started or repeated; those of the long play are findings. ``closes``: False if the environments
    are not to be closed, because that is known to end or stop the process. ``several``: a process
    can have several of them."""
    most_rows = MOST_ROWS if several else 1
    Examination(
        replace(config, decorrelate=False), seconds, tell, most_rows=most_rows, closes=closes
    ).run()


class Examination:
    """One examination of ``config``. ``seconds``: how long it may play; ``most_rows``: how many
    environments may exist at a time."""

    def __init__(
        self,
        config: EnvConfig,
        seconds: float,
        tell: Tell,
        *,
        most_rows: int = MOST_ROWS,
        closes: bool = True,
    ) -> None:
        self._config = config
        self._most_rows = most_rows
        self._closes = closes
        self._seconds = seconds
        self._tell = tell
        self._done = 0.0
        self._told = 0.0
        self._process = psutil.Process()
        self._others = {process.pid for process in self._process.children(recursive=True)}
        self._temporary = Path(tempfile.mkdtemp(prefix="tmp-"))
        self._before = {*Path.cwd().iterdir()}
        tempfile.tempdir = os.environ["TMPDIR"] = str(self._temporary)
        self._open_files: list[int] = []
        self._closing = ""

    def run(self) -> None:
        difference, repeated = self._repeat()
        play, played = self._play()
        spec, kind = play.vector.spec, reset_kind(play.vector)
        rss = self._rss(self._children())
        self._close(play)
        self._give(*verdicts.observations(spec, played), *verdicts.encoded(spec, played))
        self._give(verdicts.bounds(played), *verdicts.converted(play.converted()))
        self._give(verdicts.finite(played), verdicts.exceptions(played), *verdicts.actions(spec))
        seats = [seat for seat, _ in play.seats if isinstance(seat, SeatVector)]
        self._give(verdicts.agents(seat.agent for seat in seats if seat.stayed))
        self._give(verdicts.masks(played), verdicts.autoreset(kind))
        self._give(verdicts.hidden_state(played, family_of(self._config)))
        self._give(verdicts.determinism(repeated, difference, played))
        self._give(verdicts.rewards(played), verdicts.episodes(spec, played))
        self._give(verdicts.time_limit(shorter_limit(self._config, spec)))
        self._give(verdicts.step_time(played, self._config.env_timeout))
        row_bytes = None
        if played.steps.count and not played.failure:
            speed, row_bytes = self._many_rows(played, rss)
            cores = len(available_cores())
            self._give(verdicts.throughput(speed, cores, played))
        self._give(verdicts.memory(played, rss, row_bytes))
        files = len(self._files())
        self._give(*verdicts.starts(played, files))
        if self._closes:
            self._give(*verdicts.closing(self._left_behind(), self._closing))

    def _give(self, *findings: Finding | None) -> None:
        for finding in filter(None, findings):
            self._tell({"finding": asdict(finding)})

    def _alive(self, doing: str, done: float) -> None:
        """Tell the progress, and that the environment does not hang; both from time to time."""
        if monotonic() - self._told >= TELL_S:
            self._told = monotonic()
            tell_of_row()  # the time-out begins anew
            progress = self._done + done
            self._tell({"progress": min(1.0, progress), "doing": doing})

    # ---- the same twice ----

    def _repeat(self) -> tuple[tuple[int, str] | None, int]:
        """Return the first (step, column) that differs between two plays with the same seed and
        actions, or None, and the number of steps that were compared."""
        first = self._prints(None)
        steps = len(first) - 1
        for step, (one, two) in enumerate(zip(first, self._prints(steps), strict=True)):
            for name in one:
                if one[name] != two[name]:
                    return (step, name), steps
        return None, steps

    def _prints(self, steps: int | None) -> list[dict[str, int]]:
        """Return the checksums of the reset and of each of ``steps`` steps (None: as many as there
        is time for)."""
        play = RandomPlay(self._config, 1)
        play.reset()
        found = [prints(play)]
        end = monotonic() + REPEAT_SHARE / 2 * self._seconds
        for step in range(REPEATED_STEPS if steps is None else steps):
            if steps is None and step >= LEAST_STEPS and monotonic() > end:
                break
            play.step()
            self._alive("the same play twice", 0.0)
            found.append(prints(play))
        self._close(play)
        self._done += REPEAT_SHARE / 2
        return found

    # ---- the long play of one row ----

    def _play(self) -> tuple[RandomPlay, Played]:
        before = len(self._children())
        began = perf_counter()
        play = RandomPlay(self._config, 1, seed=1)
        play.reset()
        played = Played(start_s=perf_counter() - began)
        played.resets_apart = play.vector.spec.autoreset == "next_step"
        children = self._children()
        played.processes = max(0, len(children) - before)
        used = cpu_of(children)
        try:
            self._step_until(play, played, monotonic() + PLAY_SHARE * self._seconds)
        except Exception:
            played.failure = traceback.format_exc().strip()
        played.children_cpu_s = cpu_of(self._children()) - used
        played.errors = sum(seat.rebuilt for seat, _ in play.seats)
        played.traceback = next((s.fault for s, _ in play.seats if s.fault), "")
        self._done += PLAY_SHARE
        return play, played

    def _step_until(self, play: RandomPlay, played: Played, end: float) -> None:
        """Step one row until the time ``end``."""
        notes = Notes(play, played)
        sampled = monotonic()
        length = end - sampled
        children, samples = self._children(), list[tuple[float, float]]()
        while (left := end - monotonic()) > 0 or played.env_steps < LEAST_STEPS:
            before = _waits()
            took, used = play.step()
            notes.take(took, used, slept=_waits() > before)
            done = 1.0 - max(0.0, left) / length
            if done >= WARM_UP and monotonic() - sampled >= length / SAMPLES:
                if len(samples) % REFRESH == 0:
                    children = self._children()
                sampled = monotonic()
                samples.append((float(played.env_steps), self._rss(children)))
            self._alive(f"{played.env_steps:,} env steps", PLAY_SHARE * done)
        played.growth = growth_of(samples, LEAST_GROWTH)

    # ---- many rows ----

    def _many_rows(self, played: Played, rss: float) -> tuple[Speed, float | None]:
        """Return the speed of many rows, and the bytes of each further one. There are as many as
        start, step twice and find memory in time."""
        length = ROWS_SHARE * self._seconds
        limits = (
            START_S / max(1e-9, played.start_s),
            length / 2 / max(1e-9, played.steps.quantile(0.5)),
            0.5 * memory_available() / max(1.0, rss),
        )
        rows = max(1, int(min(self._most_rows, *limits)))
        before = self._rss(self._children())
        play = RandomPlay(self._config, rows, seed=2)
        play.reset()
        row_bytes = (self._rss(self._children()) - before) / (rows - 1) if rows > 1 else None
        seconds, busy, env_steps, vector_steps = 0.0, 0.0, 0, 0
        end = monotonic() + length
        while (left := end - monotonic()) > 0 or vector_steps < 2:
            took, used = play.step()
            seconds, busy, env_steps = seconds + took, busy + used, env_steps + play.valid_rows
            vector_steps += 1
            self._alive(f"{rows} rows", ROWS_SHARE * (1.0 - max(0.0, left) / length))
        self._close(play)
        self._done += ROWS_SHARE
        return Speed(max(1.0, env_steps) / seconds, rows, busy / seconds), row_bytes

    # ---- what is left ----

    def _close(self, play: RandomPlay) -> None:
        """Close the environment, and count the open files of this process."""
        if not self._closes:
            return
        tell_of_row()
        self._tell({"stage": "closed"})
        try:
            play.close()
        except BaseException:
            self._closing = self._closing or traceback.format_exc().strip()
        self._tell({"stage": None})
        self._open_files.append(open_files())

    def _left_behind(self) -> list[str]:
        """Return what ``close`` has left, in words."""
        until = monotonic() + END_S
        while (alive := self._children()) and monotonic() < until:
            sleep(0.05)
        names = Counter(map(_name, alive))
        left = [f"{count} processes {name}" for name, count in names.items()]
        temporary = sorted(path.name for path in self._temporary.iterdir())
        kept = [name for name in temporary if not name.startswith("pymp-")]  # multiprocessing's own
        if kept:
            left.append(f"{len(kept)} files or folders for temporary files ({kept[0]}, ...)")
        # The first close of a process may leave what libraries open once.
        opened = self._open_files[1:]
        if len(opened) > 1 and all(a < b for a, b in itertools.pairwise(opened)):
            left.append(f"{opened[-1] - opened[0]} open files after {len(opened)} environments")
        return left

    def _files(self) -> list[Path]:
        return [path for path in Path.cwd().iterdir() if path not in self._before]

    def _children(self) -> list[psutil.Process]:
        """Return the processes of the environment."""
        found = []
        for process in self._process.children(recursive=True):
            if process.pid in self._others:
                continue
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                zombie = process.status() == psutil.STATUS_ZOMBIE
                if not zombie and not any(helper in line for helper in HELPERS):
                    found.append(process)
        return found

    def _rss(self, children: list[psutil.Process]) -> float:
        """Return the bytes of memory of this process and its ``children``."""
        total = 0
        for process in (self._process, *children):
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return float(total)


class Notes:
    """Notes what each step of ``play``, of one row, has given in ``played``."""

    def __init__(self, play: RandomPlay, played: Played) -> None:
        self._play = play
        self._played = played
        self._seats = [(f"{s.agent}." if len(play.seats) > 1 else "", s, o) for s, o in play.seats]
        self._first: dict[str, Any] = {}
        self._beginning: int | None = None
        self._dropped = 0
        self._look(every=True)
        self._begin()

    def take(self, took: float, used: float, *, slept: bool) -> None:
        """Note a step that took ``took`` seconds, in which this process computed for ``used``, and
        whether it ``slept`` meanwhile."""
        play, played = self._play, self._played
        played.cpu.add(used)
        if slept:
            played.waited_s += max(0.0, took - used)
        ended = any(out.terminated[0] or out.truncated[0] for _, _, out in self._seats)
        apart = played.resets_apart
        is_reset = not any(out.valid[0] for _, _, out in self._seats) if apart else ended
        self._remember()
        (played.resets if is_reset else played.steps).add(took)
        self._look(every=played.env_steps % SELDOM == 0)
        self._check()
        if is_reset:
            self._begin()
        if apart and is_reset:
            return
        for _, _seat, out in self._seats:
            if out.valid[0]:
                played.rewards.add(float(out.reward[0]))
                played.terminated += int(out.terminated[0])
                played.truncated += int(out.truncated[0])
        for episode in play.episodes:
            played.returns.add(episode.ret)
            played.lengths.add(episode.length)

    def _begin(self) -> None:
        """Note the first observation of an episode."""
        began = self._played.past.begin(
            leaf for _, _, out in self._seats for leaf in out.obs.values()
        )
        if self._beginning is None:
            self._beginning = began
        self._played.beginnings += 1
        self._played.same_beginning &= began == self._beginning

    def _remember(self) -> None:
        """Note the newest step as one of the past. Only with one agent and small observations."""
        _, _, out = self._seats[0]
        if len(self._seats) > 1 or sum(leaf.size for leaf in out.obs.values()) > SMALL:
            return
        if out.valid[0]:
            result = float(out.reward[0]), bool(out.terminated[0])
            past = self._played.past
            past.add(self._play.actions[0].values(), result, out.obs.values())

    def _check(self) -> None:
        """Note values that are not finite or outside of their bounds."""
        play, played = self._play, self._played
        dropped = sum(seat.guard.dropped_steps for _, seat, _ in self._seats)
        value = play.not_finite()
        if value is not None and dropped != self._dropped:
            self._dropped = dropped
            played.not_finite = (value, dropped)
        if (fault := play.out_of_bounds()) is not None:
            first, count = played.out_of_bounds or (fault, 0)
            played.out_of_bounds = (first, count + 1)

    def _look(self, *, every: bool) -> None:
        """Note the range of the observation leaves; of large ones only ``every`` few steps."""
        for prefix, _, out in self._seats:
            for name, leaf in out.obs.items():
                if name == ACTION_MASK:
                    self._look_at_mask(leaf)
                elif every or leaf.size <= SMALL:
                    self._look_at(name, f"{prefix}{name}", leaf)

    def _look_at(self, name: str, key: str, leaf: Any) -> None:
        low, high = float(leaf.min()), float(leaf.max())
        seen = self._played.leaves.setdefault(name, LeafSeen(low, high))
        seen.low, seen.high = min(seen.low, low), max(seen.high, high)
        if not seen.changed:
            first = self._first.setdefault(key, leaf.copy())
            seen.changed = not np.array_equal(first, leaf)

    def _look_at_mask(self, leaf: Any) -> None:
        played = self._played
        played.masks += 1
        played.mask_open += int(leaf.all())
        played.mask_allowed += float(leaf.mean())


def prints(play: RandomPlay) -> dict[str, int]:
    """Return a checksum of each column of the newest step."""
    columns = {}
    for seat, out in play.seats:
        prefix = f"{seat.agent}'s " if seat.agent else ""
        for name, leaf in out.obs.items():
            columns[f"{prefix}observation leaf {name!r}"] = zlib.crc32(leaf.tobytes())
        for name in ("reward", "terminated", "truncated"):
            columns[f"{prefix}{name}"] = zlib.crc32(getattr(out, name).tobytes())
    return columns


def reset_kind(vector: EnvVector) -> str:
    """Return in words how the rows of a vector are reset."""
    if isinstance(vector, GymnasiumVector):
        return f"a VectorEnv with AutoresetMode.{vector.mode.name}"
    if vector.agent:
        return "an environment is reset in the step after no agent is left"
    if isinstance(vector, SyncVector):
        return (
            "single environments: an ended one is reset in the next step, so that its last "
            "observation is kept"
        )
    return f"a vector backend of SampleForge's own ({vector.spec.autoreset})"


def cpu_of(processes: list[psutil.Process]) -> float:
    """Return the processor seconds that these processes have used so far."""
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def open_files() -> int:
    """Return the number of open files of this process; 0 where that is not known."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def _waits() -> int:
    """Return how often this process has waited so far, of its own will."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return "ended meanwhile"
