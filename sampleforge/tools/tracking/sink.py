"""The interface of sinks, and the callback that feeds one.

A sink that fails, for example because the disk is full or the network is gone, is a warning: it
gets nothing more, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sampleforge.config import to_plain
from sampleforge.run.callback import Callback

if TYPE_CHECKING:
    from sampleforge.run.session import Session

NOT_SENT = ("run_dir", "resume")
"""Fields of the config that say where a run is on this machine, not what it is."""


class TrackedRun(NamedTuple):
    """A run as a sink knows it.

    ``project``, ``name`` and ``group``: as the flags give them; ``config``: the resolved config as
    nested plain values; ``env_steps``: those at which the run begins, 0 unless it is resumed;
    ``earlier``: the `Sink.state` of its earlier part, empty in a new run.
    """

    folder: Path
    project: str
    name: str
    group: str | None
    config: Mapping[str, Any]
    env_steps: int
    earlier: Mapping[str, Any]


class Sink(Protocol):
    """Takes the reports of one run. Every method may raise any exception."""

    name: str

    def start(self, run: TrackedRun) -> str:
        """Begin; return a sentence that says where the run can be seen."""

    def report(
        self, values: Mapping[str, float], env_steps: int, policies: Sequence[str] = ()
    ) -> None:
        """Take one report: the finite scalars as metrics.jsonl has them, evaluations included.
        ``policies``: the beginning of the names of each policy's metrics, in a run with several."""

    def state(self) -> Mapping[str, Any]:
        """Return the plain values by which the resumed run finds this one again."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Take the values of summary.json, and end."""


class Tracking(Callback):
    """Feeds one sink, from the start of the workers to the end of the run."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._works = False
        self._state: Mapping[str, Any] = {}

    def on_start(self, session: Session) -> None:
        config = session.resolved
        name = self._sink.name
        run = TrackedRun(
            folder=session.folder.path,
            project=config.track_project,
            name=config.track_name or session.folder.path.resolve().name,
            group=config.track_group,
            config={
                "algo": config.algo,
                **{k: v for k, v in to_plain(config).items() if k not in NOT_SENT},
            },
            env_steps=session.resume_point.env_steps,
            earlier=session.opened.earlier.get(f"tracking_{name}", {}),
        )
        self._works, self._state = True, run.earlier
        text = self._try(session, "start", lambda: self._sink.start(run))
        if text is not None:
            self._state = self._sink.state()
            session.message(text)

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        finite = {name: value for name, value in report.items() if isfinite(value)}
        graph = session.graph
        policies = [prefix for prefix in map(graph.prefix, graph.groups) if prefix]
        values = {"env_steps": graph.progress.env_steps, **finite}
        self._try(
            session,
            "take a report",
            lambda: self._sink.report(values, graph.progress.env_steps, policies),
        )

    def checkpoint_state(self, session: Session) -> Mapping[str, Any]:
        if self._works:
            self._state = self._sink.state()
        return {f"tracking_{self._sink.name}": dict(self._state)}

    def on_end(self, session: Session, summary: Mapping[str, Any]) -> None:
        self._try(session, "finish", lambda: self._sink.finish(summary))
        self._works = False

    def _try(self, session: Session, what: str, call: Callable[[], Any]) -> Any:
        """Return the result of ``call``. If it fails, warn, use the sink no more and return
        None."""
        if not self._works:
            return None
        try:
            return call()
        except Exception as error:
            self._works = False
            session.message(
                f"--track {self._sink.name} could not {what}: {type(error).__name__}: {error}. The "
                f"run goes on without it; {session.folder.metrics_file.name} has every report",
                "warning",
            )
            return None
