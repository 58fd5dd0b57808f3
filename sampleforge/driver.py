"""One training run from command to summary: open the folder, probe, wire, run, report, close."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Protocol

from sampleforge.config import ConfigError
from sampleforge.runtime.imports import import_heavy
from sampleforge.runtime.interrupts import Interrupts
from sampleforge.runtime.machine import resolve_device
from sampleforge.runtime.processes import process_context, start_fork_server
from sampleforge.topologies.config import AnyConfig

if TYPE_CHECKING:
    from sampleforge.folder.opening import OpenRun
    from sampleforge.folder.run_folder import RunFolder
    from sampleforge.reporting.reporter import Reporter
    from sampleforge.reporting.staleness import StaleWarning
    from sampleforge.spec import EnvSpec
    from sampleforge.topologies.apex.plan import ApexPlan
    from sampleforge.topologies.graph import Graph
    from sampleforge.topologies.registry import Topology
    from sampleforge.topologies.sampler_plan import Plan

SAVE_TIMEOUT = 300.0
"""Seconds that the learner may need to answer: it answers between two updates."""
INTERRUPTED_SAVE_TIMEOUT = 2.0
POLL = 0.1


class Runner(Protocol):
    """How the workers of a graph run: `ProcessRunner` or `SerialRunner`."""

    def start(self) -> None: ...
    def pids(self) -> dict[str, int]: ...
    def poll(self, timeout: float) -> None: ...
    def ask(self, kind: str, payload: Any, timeout: float) -> Any: ...
    def close(self) -> None: ...
    def kill(self) -> None: ...


def run(config: AnyConfig) -> int:
    """Train, and return the exit code of the command line. Raises ConfigError; see `Run`."""
    return finish(Run(config))


def finish(run: Run) -> int:
    """`run` for what was made by it, or like it."""
    try:
        with run as training:
            for _ in training.reports():
                pass
        return training.exit_code
    except ConfigError:
        raise
    except Exception as error:
        print(describe(error), file=sys.stderr)
        return 1


class Run:
    """A run as a context: entering starts the workers, leaving ends them and writes summary.json.

    Iterate over `reports`. Raises ConfigError for what cannot run, before anything starts; what a
    worker died of comes out of `reports` as WorkerDied.
    """

    def __init__(self, config: AnyConfig) -> None:
        if not config.env:
            raise ConfigError("no environment; give one, such as --env CartPole-v1")
        self._asked = config
        self._serial = self._in_process = config.serial
        self._resources = ExitStack()
        self.interrupts = Interrupts(self._end_at_once)
        self._runner: Runner | None = None
        self.exit_code = 0

    # ---- beginning ----

    def __enter__(self) -> Run:
        try:
            self._open()
        except BaseException as error:
            self._end(error)
            raise
        return self

    def _open(self) -> None:
        if not self._in_process:
            start_fork_server()
        from sampleforge.env.probe import probe
        from sampleforge.env.scratch import make_cwd_importable

        make_cwd_importable()  # the user's environment and encoder may lie there
        self._resources.enter_context(self.interrupts)
        with ThreadPoolExecutor(1) as pool:  # our imports run beside the probe's process
            imported = pool.submit(import_heavy, "sampleforge.topologies.registry")
            self.spec: EnvSpec = probe(self._asked)
            imported.result()
        self._open_folder()
        self.interrupts.defer()
        self._wire(self.spec)
        if self.config.benchmark:
            self._prepare_benchmark(self._plan, self.spec)
        assert self._runner is not None
        self._runner.start()

    def _open_folder(self) -> None:
        from sampleforge.folder.opening import open_folder
        from sampleforge.topologies.registry import topology

        fitted = topology(self._asked).resolve_defaults(self._asked, self.spec)
        self._opened: OpenRun = open_folder(
            self._asked, fitted, self._resources, self._is_interrupted, _complain
        )
        self.config: AnyConfig = self._opened.config
        self.folder: RunFolder = self._opened.folder

    def _wire(self, spec: EnvSpec) -> None:
        from sampleforge.folder.resume import ResumeCheckpoint, SaveCheckpoint
        from sampleforge.folder.saving import Saving
        from sampleforge.models.registry import resolve_encoder
        from sampleforge.reporting.env_restarts import EnvRestarts
        from sampleforge.reporting.statistics import RunStatistics
        from sampleforge.runners.composite import beside
        from sampleforge.topologies.builders import ResumePoint
        from sampleforge.topologies.evaluator import with_evaluator

        config, chosen, opened = self.config, self._topology(), self._opened
        config = chosen.resolve_defaults(config, spec)
        model = resolve_encoder(config.model, spec.observations)
        plan = self._plan = chosen.plan(config, spec, resolve_device(config.device))
        config = dataclasses.replace(config, batch_size=plan.batch_size)
        self.folder.write_config(config, self._asked)
        self.folder.write_spec(spec)
        config = dataclasses.replace(config, model=model)
        assert config.seed is not None
        self.new_model = chosen.model_maker(config, spec, config.seed)
        start = ResumePoint(
            seed=config.seed,
            resumes=opened.earlier.get("resumes", -1) + 1,
            env_steps=opened.earlier.get("env_steps", 0),
            wall_s=opened.earlier.get("wall_s", 0.0),
            started=time(),
            resume=ResumeCheckpoint(opened.store) if opened.earlier else None,
            replays=opened.stored_replay,
        )
        self._start = start
        ours, theirs = process_context().Pipe()
        self._control = ours
        self._resources.callback(ours.close)
        self._resources.callback(theirs.close)
        control = None if self._in_process else theirs
        wired = chosen.wire(config, plan, spec, start, SaveCheckpoint(opened.store), control)
        self.graph: Graph = with_evaluator(wired, config, self.new_model, start)
        self.statistics = RunStatistics(self.graph, opened.earlier.get("statistics", {}))
        self.reporter = self._make_reporter()
        self._stale_warning = _stale_warning(plan)
        counted = [self.graph.counters]
        if self.graph.evaluator is not None:
            counted.append(self.graph.evaluator.counters)
        self._env_restarts = EnvRestarts(counted, config.max_env_restart_rate, self._warn)
        self._saving = Saving(
            opened.replays,
            self.graph.archive,
            config.milestone_interval,
            lambda: self.graph.progress.env_steps,
            self.reporter.log,
        )
        self._runner = self._make_runner(self.graph)
        if self.graph.evaluator is not None:
            processes = None if self._serial else self._processes
            self._runner = beside(self._runner, self.graph, processes)

    def _topology(self) -> Topology:
        from sampleforge.topologies.registry import topology

        return topology(self.config)

    def _make_runner(self, graph: Graph) -> Runner:
        from sampleforge.runners.serial import SerialRunner

        return SerialRunner(graph) if self._serial else self._processes(graph)

    def _processes(self, graph: Graph) -> Runner:
        from sampleforge.runners.processes import ProcessRunner
        from sampleforge.workers.worker import WorkerContext

        context = WorkerContext(self.folder.log_file, self.folder.scratch)
        log = partial(self.reporter.log, level="warning", on_screen=False)
        timeout, interrupted = self.config.env_timeout, self._is_interrupted
        return ProcessRunner(graph, self._control, context, timeout, log, interrupted)

    def _make_reporter(self) -> Reporter:
        from sampleforge.reporting.reporter import Reporter

        config = self.config
        reporter = Reporter(
            self.folder,
            quiet=config.quiet,
            total_env_steps=config.train_for_env_steps,
            total_seconds=config.train_for_seconds,
        )
        self._resources.callback(reporter.close)
        reporter.log(self.graph.describe())
        if self._opened.earlier:
            reporter.log(f"resumes at {self._start.env_steps:,} env steps, from its checkpoint")
        return reporter

    # ---- running ----

    def reports(self) -> Iterator[dict[str, float]]:
        """Run until a stop condition or an interrupt, yielding each report's scalars. A benchmark
        yields none and has an end of its own."""
        assert self._runner is not None
        if self.config.benchmark:
            result = self._benchmark.measure_system(self._runner)
            if result is not None:
                self.folder.write_benchmark(result)
            return
        from sampleforge.folder.saving import CheckpointTimer

        progress, counters = self.graph.progress, self.graph.counters
        next_report = self._clock() + self._interval()
        timer = CheckpointTimer(
            self.config.checkpoint_interval, lambda: counters.total("updates") > 0
        )
        while not progress.done and not self._is_interrupted():
            self._work_on()
            due = self._clock() >= next_report
            if due:
                next_report = self._clock() + self._interval()
            if due or self.statistics.evaluations.waits:
                yield self._report()
            if timer.due:
                timer.restart()
                self.save()
        if self.interrupts.received is None:
            yield self._report()
            while self.statistics.evaluations.waits:
                yield self._report()

    def _work_on(self) -> None:
        assert self._runner is not None
        try:
            self._runner.poll(POLL)
        except Exception as error:
            # The signal may have ended what an environment in this process runs on.
            if not (self._in_process and self._is_interrupted()):
                raise
            self.reporter.log(f"after the interrupt: {describe(error)}", "warning", on_screen=False)
        self._take_episodes()

    def _is_interrupted(self) -> bool:
        return self.interrupts.received is not None

    def _clock(self) -> float:
        """What reports are spaced by: seconds, or in serial mode env steps, to be deterministic."""
        return float(self.graph.progress.env_steps) if self._serial else monotonic()

    def _interval(self) -> float:
        return self.config.report_interval * (1000.0 if self._serial else 1.0)

    def _take_episodes(self) -> None:
        self.statistics.take_episodes(self.graph.episodes.take())
        if (first := self.statistics.first_nonfinite()) is not None:
            self.reporter.log(first, "warning")
        if self.graph.evaluator is not None:
            self.statistics.evaluations.take(self.graph.evaluator.results.take())
        if not self._is_interrupted():
            self._env_restarts.look()

    def _warn(self, text: str) -> None:
        """Say it also where only errors and results are shown."""
        print(text, file=sys.stderr)
        self.reporter.log(text, "warning", on_screen=False)

    def _report(self) -> dict[str, float]:
        assert self._runner is not None
        self._take_episodes()
        scalars = self.statistics.scalars(self._runner.ask("metrics", None, SAVE_TIMEOUT))
        progress = self.graph.progress
        asked = self.graph.histograms
        self.reporter.report(
            scalars,
            env_steps=progress.env_steps,
            wall_s=scalars["wall_s"],
            histograms=asked.read() if asked else {},
        )
        if self._stale_warning and (warning := self._stale_warning.of(scalars)):
            self.reporter.log(warning, "warning")
        return scalars

    def save(self, timeout: float = SAVE_TIMEOUT) -> None:
        """Write a checkpoint. Raises OSError if it cannot be written; see `Saving`."""
        assert self._runner is not None
        self._saving.save(self._runner.ask, self._work_on, self._state, timeout)

    def _state(self) -> dict[str, Any]:
        """The driver's part of a checkpoint."""
        return {
            "wall_s": self.graph.progress.wall_s,
            "resumes": self._start.resumes,
            "statistics": self.statistics.state(),
            **self.statistics.rating(),
        }

    # ---- benchmark ----

    def _prepare_benchmark(self, plan: Plan | ApexPlan, spec: EnvSpec) -> None:
        """Measure the simulator alone, before the workers start."""
        from sampleforge.benchmark import Benchmark, BenchmarkContext

        config, system = self.config, self._runner
        setting = BenchmarkContext.of(config, plan, spec)
        self._benchmark = Benchmark(
            self.graph, setting, config.benchmark_seconds, self._go_on, self.reporter.log
        )
        if config.benchmark_peak:
            alone = self._benchmark.simulators()
            self._runner = self._make_runner(alone)
            self._benchmark.measure_peak(self._runner, alone)
            self._runner = system

    def _go_on(self) -> bool:
        self._take_episodes()
        return self.interrupts.received is None

    # ---- ending ----

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        self.exit_code = self.interrupts.exit_code if error is None else 1
        try:
            if error is None:
                self._final_save()
        except BaseException as problem:
            self.exit_code, error = 1, problem
            raise
        finally:
            self._end(error)

    def _final_save(self) -> None:
        if self.config.sampler_only or self.config.benchmark:
            return
        if not self._is_interrupted():
            self.save()
            return
        from sampleforge.runners.processes import WorkerDied

        try:
            self.save(INTERRUPTED_SAVE_TIMEOUT)
        except (TimeoutError, WorkerDied):
            if self.graph.snapshot is None or self.graph.snapshot.version < 0:
                raise
            self._save_snapshot()

    def _save_snapshot(self) -> None:
        """Write the checkpoint in the place of a learner that does not do so in time."""
        from sampleforge.folder.resume import SaveCheckpoint

        snapshot, runner = self.graph.snapshot, self._runner
        assert snapshot is not None and runner is not None
        runner.kill()  # one process writes at a time
        tensors, plain = snapshot.read()

        def write(_kind: str, about: dict[str, Any], _timeout: float) -> str | None:
            try:
                SaveCheckpoint(self._opened.store)(tensors, {**about, "learner": plain})
            except OSError as error:
                return f"{type(error).__name__}: {error}"
            return None

        self._saving.save(write, lambda: None, self._state, 0.0)
        self.reporter.log(
            f"the learner did not write the checkpoint in time: it holds update "
            f"{plain['version']:,}, as kept in shared memory",
            "warning",
        )

    def _end(self, error: BaseException | None) -> None:
        """Close everything, whatever fails; write the summary if there is anything to sum up."""
        with self._resources:
            if self._runner is None:
                return
            self._runner.close()
            if error is not None:
                self.reporter.log(describe(error), "error", on_screen=False)
            self._write_summary(error)

    def _write_summary(self, error: BaseException | None) -> None:
        status = "failed" if error else "interrupted" if self.exit_code else "finished"
        config, measured = self.config, self.statistics.summary()
        self.folder.write_summary(
            {
                "status": status,
                "algo": config.algo,
                "env": config.env,
                "seed": config.seed,
                **measured,
                "error": None if error is None else describe(error),
            }
        )
        if error is None:
            mean = measured["return_mean"]
            reached = "no episode has ended" if mean is None else f"mean return {mean:.2f}"
            text = f"{status}: {measured['env_steps']:,} env steps, {reached}, in "
            text += str(self.folder.path)
            if status == "interrupted" and not (config.sampler_only or config.benchmark):
                text += "; the same command with that --run-dir goes on from its checkpoint"
            self.reporter.log(text, "result")

    def _end_at_once(self) -> None:
        if self._runner is not None:
            self._runner.kill()


def _stale_warning(plan: Plan | ApexPlan) -> StaleWarning | None:
    """Of runs that learn from experience of a limited policy lag."""
    from sampleforge.reporting.staleness import StaleWarning
    from sampleforge.topologies.sampler_plan import Plan

    if not isinstance(plan, Plan):
        return None
    return StaleWarning(plan.lag.limit, synchronous=plan.synchronous)


def _complain(text: str) -> None:
    print(text, file=sys.stderr)


def describe(error: BaseException) -> str:
    """An error as text: a worker's death ends with the worker's own traceback, and where the driver
    was when it noticed says nothing; so it is with a rank that others lose, or a full disk."""
    from sampleforge.distributed.group import RankLost
    from sampleforge.folder.saving import CheckpointNotWritten
    from sampleforge.reporting.env_restarts import EnvironmentFails
    from sampleforge.runners.processes import WorkerDied

    if isinstance(error, WorkerDied | RankLost | CheckpointNotWritten | EnvironmentFails):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()
