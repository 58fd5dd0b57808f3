"""Sinks: where the reports of a run go beside its folder (`--track`), and the callback that feeds
one.

A sink that fails, for example because the disk is full or the network is gone, is a warning: it
gets nothing more, and the run goes on.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from contextvars import Context
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sampleforge.config import ConfigError, to_plain
from sampleforge.run.callback import Callback, plain
from sampleforge.run.folder.files import LineFile
from sampleforge.run.reports.metrics import evaluations, tag
from sampleforge.runtime.files import write_atomically

if TYPE_CHECKING:
    from sampleforge.run.session import Session


NOT_SENT = ("run_dir", "resume")
"""Fields of the config that say where a run is on this machine, not what it is."""


class TrackedRun(NamedTuple):
    """A run as a sink knows it.

    ``project``, ``name`` and ``group``: as the flags of wandb and trackio give them, which a run
    without the two does not take; ``config``: the resolved config as
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
            self._take_state(session)
            session.message(text)

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        finite = {name: value for name, value in report.items() if isfinite(value)}
        graph = session.graph
        policies = [prefix for prefix in map(graph.prefix, graph.groups) if prefix]
        env_steps = int(report["env_steps"])
        self._try(session, "take a report", lambda: self._sink.report(finite, env_steps, policies))

    def checkpoint_state(self, session: Session) -> Mapping[str, Any]:
        self._take_state(session)
        return {f"tracking_{self._sink.name}": dict(self._state)}

    def on_end(self, session: Session, summary: Mapping[str, Any]) -> None:
        self._try(session, "finish", lambda: self._sink.finish(summary))
        self._works = False

    def _take_state(self, session: Session) -> None:
        name = f"the state of {self._sink.name}"
        state = self._try(session, "say its state", lambda: plain(self._sink.state(), name))
        self._state = self._state if state is None else state

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


STEP = "env_steps"


class CsvFile:
    """Writes metrics.csv of the run folder; a metric that a report lacks is an empty field.

    A metric that appears for the first time gets a column at the end, for which the file is written
    anew. A resumed run drops the rows of the steps that it does again.
    """

    name = "csv"

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._lines: LineFile | None = None

    def start(self, run: TrackedRun) -> str:
        self._path = run.folder / "metrics.csv"
        rows = read_rows(self._path) if run.env_steps else []
        kept = [row for row in rows if float(row[STEP]) <= run.env_steps]
        self._rewrite(list(rows[0]) if rows else [STEP], kept)
        return f"Reports go to {self._path.name} in the run folder, too"

    def report(
        self, values: Mapping[str, float], env_steps: int, policies: Sequence[str] = ()
    ) -> None:
        new = [name for name in values if name not in self._columns]
        if new:
            self._rewrite([*self._columns, *new], read_rows(self._path))
        assert self._lines is not None
        self._lines.write(_line([values.get(name, "") for name in self._columns]))

    def state(self) -> Mapping[str, Any]:
        return {}

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._close()

    def _close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _rewrite(self, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
        """Write the file with these columns, and open it for more rows."""
        self._close()
        self._columns = list(columns)
        lines = [_line(columns), *(_line([row.get(n, "") for n in columns]) for row in rows)]
        write_atomically(self._path, "".join(f"{line}\n" for line in lines).encode())
        self._lines = LineFile(self._path)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a metrics.csv by column; none if there is no file. An incomplete last line
    is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return list(csv.DictReader(line for line in lines if line.endswith("\n")))


def _line(values: Sequence[Any]) -> str:
    """Return one line of CSV, without its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


class TrackioRun:
    """A run of trackio, with the tags of TensorBoard; a step is an env step. Numbers of the summary
    are the metrics ``summary/...`` of the last step.

    trackio's own environment variables hold (TRACKIO_DIR, TRACKIO_SPACE_ID ...). It writes in a
    thread of its own, and warns itself of what it cannot write.
    """

    name = "trackio"

    def __init__(self) -> None:
        self._run: Any = None
        # trackio has one current run per context, and ends it when another one begins.
        self._context = Context()
        self._env_steps = 0

    def start(self, run: TrackedRun) -> str:
        import trackio

        self._env_steps = run.env_steps
        name = run.earlier.get("name", run.name)
        with redirect_stdout(io.StringIO()):  # it prints six lines
            self._run = self._context.run(
                trackio.init,
                project=run.project,
                name=name,
                group=run.group,
                config=dict(run.config),
                resume="allow" if run.earlier else "never",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        # trackio finds an earlier run by its name, which several may have, and takes the newest.
        self._run.id = run.earlier.get("id", self._run.id)
        kept = f" (its name there stays {name}, not {run.name})" if name != run.name else ""
        return f"To see this run in trackio{kept}: trackio show --project {run.project}"

    def report(
        self, values: Mapping[str, float], env_steps: int, policies: Sequence[str] = ()
    ) -> None:
        self._env_steps = env_steps
        found = evaluations(values)
        evaluated = {name for result in found.values() for name in result}
        now = {tag(n, policies): value for n, value in values.items() if n not in evaluated}
        self._run.log(now, step=env_steps)
        for prefix, result in found.items():
            tagged = {tag(name, policies): value for name, value in result.items()}
            self._run.log(tagged, step=int(result[f"{prefix}eval_env_steps"]))

    def state(self) -> Mapping[str, Any]:
        return {"name": self._run.name, "id": self._run.id}

    def finish(self, summary: Mapping[str, Any]) -> None:
        import trackio

        numbers = {f"summary/{n}": v for n, v in summary.items() if type(v) in (int, float)}
        self._run.log(numbers, step=self._env_steps)
        with redirect_stdout(io.StringIO()):
            self._context.run(trackio.finish)


LIMITS_S = {"init_timeout": 30.0, "finish_timeout": 30.0, "login_timeout": 15.0}
"""Seconds that the service may hold a run at its start, at its end, and for a login; environment
variables such as WANDB_FINISH_TIMEOUT set others."""


class WandbRun:
    """A run of Weights & Biases, with the tags of TensorBoard. Env steps are the horizontal axis;
    evaluations are at the env steps at which their weights were copied.

    wandb's own environment variables hold (WANDB_MODE=offline, WANDB_ENTITY, WANDB_DIR ...).
    """

    name = "wandb"

    def __init__(self) -> None:
        self._run: Any = None
        self._step = 0
        """wandb's own count of what was logged. Offline it would begin at 0 in a resumed run."""
        self._defined: set[str] = set()

    def start(self, run: TrackedRun) -> str:
        import wandb

        limits: dict[str, Any] = {
            n: s for n, s in LIMITS_S.items() if f"WANDB_{n.upper()}" not in os.environ
        }
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            group=run.group,
            config=dict(run.config),
            id=run.earlier.get("id"),
            resume="allow",
            reinit="create_new",
            # The run has its own output, which wandb neither records nor adds to.
            settings=wandb.Settings(console="off", silent=True, **limits),
        )
        self._step = max(int(self._run.step), int(run.earlier.get("step", 0)))
        if self._run.offline:
            folder = os.path.relpath(os.path.dirname(self._run.dir))
            return f"wandb is offline; to send the run later: wandb sync {folder}"
        return f"This run at Weights & Biases: {self._run.url}"

    def report(
        self, values: Mapping[str, float], env_steps: int, policies: Sequence[str] = ()
    ) -> None:
        self._define("", policies)
        found = evaluations(values)
        evaluated = {name for result in found.values() for name in result}
        now = {name: value for name, value in values.items() if name not in evaluated}
        self._log({tag(name, policies): value for name, value in now.items()})
        for prefix, result in found.items():
            self._define(prefix, policies)
            self._log({tag(name, policies): value for name, value in result.items()})

    def _log(self, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=self._step)
        self._step += 1

    def _define(self, prefix: str, policies: Sequence[str]) -> None:
        """Say once which metric is the horizontal axis: env steps, and for the evaluations of a
        policy theirs."""
        if not self._defined:
            self._run.define_metric("*", step_metric=tag("env_steps"))
            self._run.define_metric("eval/*", step_metric=tag("eval_env_steps"))
            self._defined.add("")
        if prefix not in self._defined:
            self._defined.add(prefix)
            axis = tag(f"{prefix}eval_env_steps", policies)
            self._run.define_metric(f"{prefix}eval/*", step_metric=axis)

    def state(self) -> Mapping[str, Any]:
        return {"id": self._run.id, "step": self._step}

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=1 if summary["status"] == "failed" else 0)


SINKS: dict[str, type[Sink]] = {"csv": CsvFile, "wandb": WandbRun, "trackio": TrackioRun}
PACKAGES = ("wandb", "trackio")
"""The sinks that are packages of their own, each with an extra of the same name."""


def tracking_callbacks(config: Any) -> list[Callback]:
    """Return a callback for each sink of ``config.track``. A benchmark reports nothing, so it has
    none. Raises ConfigError if the package of a sink is missing."""
    if config.benchmark:
        return []
    for name in config.track:
        if name in PACKAGES and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"--track {name} needs the package {name}, which is not installed: "
                f'pip install "sampleforge[{name}]"'
            )
    return [Tracking(SINKS[name]()) for name in dict.fromkeys(config.track)]
