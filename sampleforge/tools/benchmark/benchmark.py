"""Benchmark mode: the rate of the simulator alone, the rate of the whole system, and its
bottleneck.

Nothing here depends on an algorithm: it reads the ``envs`` of a graph's nodes and the counters of
`sampleforge.topologies.graph.COUNTERS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.env.random_play import random_actions
from sampleforge.env.vector import EnvVector, own_outputs
from sampleforge.run.reports.system import NO_GPUS, Gpus, gpus_of
from sampleforge.run.reports.verdict import (
    VerdictContext,
    counter_rows_of,
    gpu_load,
    policy_busy,
    stages,
    verdict,
)
from sampleforge.run.session import Session
from sampleforge.runners.base import Runner
from sampleforge.shared.counters import Counters
from sampleforge.spec import ACTION_MASK, EnvSpec
from sampleforge.tools.benchmark.table import render, sentence
from sampleforge.tools.benchmark.window import Window, measure
from sampleforge.topologies.graph import COUNTERS, Graph
from sampleforge.topologies.restarts import END_RUN
from sampleforge.topologies.sampler_plan import stale_warning
from sampleforge.topologies.stored.plan import StoredPlan
from sampleforge.workers.worker import IDLE_WAIT, EventDriven, StopFlag

__all__ = ["Benchmark", "VerdictContext", "run_benchmark"]

WARM_UP = 0.25
"""Length of the warm-up, as a fraction of the measurement's length."""
WARM_UPDATES = 2
"""Number of learner updates in the warm-up: after them all lazy set-up is done."""
WARM_UP_LIMIT = 120.0
"""Seconds after which the warm-up ends in any case."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM came before the end of the measurement."""


def run_benchmark(session: Session) -> dict[str, Any] | None:
    """Measure an open session from its start to its end. Return the values of benchmark.json, or
    None if the session was interrupted."""

    def tick() -> bool:
        session.take_results()
        if session.has_workers:  # not those of the simulator alone
            session.tell_poll()
        return not session.is_interrupted()

    config = session.config
    assert not isinstance(session.plan, StoredPlan), "its config refuses benchmarks"
    context = VerdictContext.of(config, session.plan, session.spec, session.graph)
    gpus = Gpus(sorted(gpus_of(config, session.plan)))
    benchmark = Benchmark(
        session.graph, context, config.benchmark_seconds, tick, session.message, gpus
    )
    if config.benchmark_peak:
        alone = benchmark.simulators()
        with session.ending_on_error():
            benchmark.measure_peak(session.runner_of(alone), alone)
    with session:
        result = benchmark.measure_system(session.runner)
        if result is not None:
            session.folder.write_benchmark(result)
    return result


class Benchmark:
    """One benchmark of a wired graph. ``tick`` is called several times a second and returns whether
    to continue; ``log`` takes a message for the user and its level; ``gpus``: those of the run."""

    def __init__(
        self,
        graph: Graph,
        context: VerdictContext,
        seconds: float,
        tick: Callable[[], bool],
        log: Callable[..., None],
        gpus: Gpus = NO_GPUS,
    ) -> None:
        self._graph = graph
        self._gpus = gpus
        self._context = context
        self._seconds = seconds
        self._tick = tick
        self._log = log
        self._peak: Window | None = None

    def simulators(self) -> Graph:
        """Return the graph with a `SimulatorWorker` in the place of every worker that steps
        environments, and without the other workers: the same processes, rows, splits and cores."""
        stepping = self._graph.having("actor", "rank")
        counters = Counters(COUNTERS, len(stepping))
        nodes = tuple(
            dataclasses.replace(
                node,
                worker=SimulatorWorker(node.name, node.envs, counters, row),
                role="actor",
                counter_row=row,
                restart=END_RUN,
            )
            for row, node in enumerate(stepping)
        )
        return dataclasses.replace(
            self._graph, nodes=nodes, groups=(), counters=counters, stop=StopFlag()
        )

    def measure_peak(self, runner: Runner, graph: Graph) -> None:
        """Measure the simulator alone: run ``graph`` (made by `simulators`) with ``runner``."""
        count = len(graph.nodes)
        self._log(
            f"benchmark: the simulator alone, random actions, {count} processes: {self._length}"
        )
        try:
            runner.start()
            self._warm_up(runner, graph, updates=0)
            self._peak = measure(graph, runner, self._seconds, self._check)
        except Interrupted:
            pass  # `measure_system` reports it
        finally:
            runner.close()
            for group in self._graph.groups:
                if group.member is not None:  # its own env steps begin with its own actions
                    group.member.board.forget_sampled()

    def measure_system(self, runner: Runner) -> dict[str, Any] | None:
        """Measure the running graph and log the result. Return the values of benchmark.json, or
        None if interrupted."""
        learning = not self._context.sampler_only
        subject = "the whole system" if learning else "the sampler without a learner"
        try:
            self._check()
            self._log(f"benchmark: {subject}: a warm-up, then {self._length}")
            self._warm_up(runner, self._graph, updates=WARM_UPDATES if learning else 0)
            window = measure(
                self._graph,
                runner,
                self._seconds,
                self._check,
                self._gpus,
                whole_batches=learning and self._context.synchronous,
            )
        except Interrupted:
            self._log("benchmark: interrupted, no result", "warning")
            return None
        result = self._result(window)
        self._log(render(result))
        self._log(sentence(result), "result")
        return result

    @property
    def _length(self) -> str:
        return f"{self._seconds:g} s"

    def _check(self) -> None:
        if not self._tick():
            raise Interrupted

    def _warm_up(self, runner: Runner, graph: Graph, updates: int) -> None:
        """Run until every env has stepped, the learner has made ``updates``, and the warm-up time
        is over."""
        begun, counters = monotonic(), graph.counters
        rows = [node.counter_row for node in graph.having("actor", "rank")]
        learned = counters.total("updates")
        while monotonic() - begun < WARM_UP_LIMIT:
            stepped = (counters.column("env_steps")[rows] > 0).all()
            ready = stepped and counters.total("updates") - learned >= updates
            if ready and monotonic() - begun >= WARM_UP * self._seconds:
                return
            runner.poll(0.05)
            self._check()

    def _warnings(self, window: Window) -> tuple[str, ...]:
        """Return the warnings about stale experience, which makes the rates meaningless."""
        limit, synchronous = self._context.max_policy_lag, self._context.synchronous
        lag, lag_batches = window.lag["mean"], window.lag["batches_mean"]
        if limit is None or lag is None or lag_batches is None:
            return ()
        warning = stale_warning(window.stale, limit, lag, lag_batches, synchronous=synchronous)
        return (warning,) if warning else ()

    def _result(self, window: Window) -> dict[str, Any]:
        """Return the values of benchmark.json."""
        context, peak = self._context, self._peak
        table = stages(window.counted, counter_rows_of(self._graph), window.seconds)
        judged = verdict(
            table,
            window.free,
            window.idle_cores,
            context,
            self._warnings(window),
            gpu_load(use.percent for use in window.gpus.values()),
        )
        sampled, frames = window.rate("env_steps"), window.rate("env_frames")
        passes = window.rate("forwards")
        exchange = self._graph.groups[0].exchange
        assert exchange is not None, "without actors there is nothing to measure"
        return {
            "env": exchange.slots.shape.spec.env_id,
            "topology": self._graph.name,
            "seconds": window.seconds,
            "sampled_per_s": sampled,
            "trained_per_s": None if context.sampler_only else window.rate("trained_steps"),
            "frames_per_s": frames,
            "peak_sampled_per_s": peak and peak.rate("env_steps"),
            "peak_frames_per_s": peak and peak.rate("env_frames"),
            "fraction_of_peak": peak and frames / max(1e-9, peak.rate("env_frames")),
            "stages": [dataclasses.asdict(stage) for stage in table],
            "peak_env_step_us": peak and peak.per_step("env_s"),
            "queue_fill": {"free": window.free, "ready": window.ready},
            "policy_lag": window.lag,
            "stale_fraction": window.stale,
            "updates_per_s": window.rate("updates"),
            "busy_cores": window.busy,
            "idle_cores": window.idle_cores,
            "others_cores": max(0.0, context.cores - sum(window.busy.values()) - window.idle_cores),
            "gpus": {
                str(device): {"percent": use.percent, "memory_mib": use.memory_mib}
                for device, use in window.gpus.items()
            },
            "policy_busy": policy_busy(table),
            "rows_per_pass": window.rate("rows") / passes if passes else None,
            "verdict": dataclasses.asdict(judged),
            "setting": dataclasses.asdict(context),
        }


Array = npt.NDArray[Any]
LOOK = 0.0005
"""Seconds between two checks whether an env vector is ready."""
DRAWN_STEPS = 64
"""Number of steps for which random actions are drawn in advance; they are used in turn."""


class SimulatorWorker(EventDriven):
    """Steps env vectors in turn, as an actor does. An asynchronous env vector steps while the
    worker serves the others; the worker skips it until it is ready."""

    def __init__(
        self,
        name: str,
        make_envs: Sequence[Callable[[], EnvVector]],
        counters: Counters,
        counter_row: int,
    ) -> None:
        self.name = name
        self._make_envs = make_envs
        self._counters = counters
        self._counter_row = counter_row

    def start(self) -> None:
        self._count = self._counters.row(self._counter_row)
        self._envs = [make() for make in self._make_envs]
        self._seats = [
            [
                Seat(seat, np.random.default_rng([self._counter_row, i, *([n] if n else [])]))
                for n, seat in enumerate(env.seats)
            ]
            for i, env in enumerate(self._envs)
        ]
        self._stepping = [False] * len(self._envs)
        for seats in self._seats:
            for seat in seats:
                seat.env.reset(seat.out.obs)

    def step(self) -> bool:
        self._count["heartbeat"][0] = monotonic()
        started = perf_counter()
        moved = [self._advance(split, env) for split, env in enumerate(self._envs)]
        self._count["env_s"] += perf_counter() - started
        return any(moved)

    def _advance(self, split: int, env: EnvVector) -> bool:
        """Complete the step in progress, if there is one, and begin the next. Return False if the
        env vector is not ready."""
        if self._stepping[split] and not env.ready:
            return False
        if self._stepping[split]:
            self._collect(split)
        for seat in self._seats[split]:
            seat.env.send(seat.actions(seat.out.obs))
        self._stepping[split] = env.spec.asynchronous
        if not env.spec.asynchronous:
            self._collect(split)
        return True

    def _collect(self, split: int) -> None:
        for seat in self._seats[split]:
            seat.env.recv(seat.out)
            self._count["env_steps"] += seat.env.valid_rows
            self._count["env_frames"] += seat.env.frames

    def wait(self, timeout: float = IDLE_WAIT) -> None:
        """Sleep for a moment, because all env vectors are busy."""
        sleep(min(timeout, LOOK))

    def close(self) -> None:
        for env in self._envs:
            env.close()


class Seat:
    """One agent of a split: its env vector, the arrays of its steps, its random actions."""

    def __init__(self, env: EnvVector, rng: np.random.Generator) -> None:
        self.env = env
        self.out = own_outputs(env.spec, env.num_rows)
        self.actions = RandomActions(env.spec, env.num_rows, rng)


class RandomActions:
    """Random actions for ``rows`` env rows, in the form of the slots. Without action masks they are
    drawn in advance; with masks, allowed actions are drawn at every step."""

    def __init__(self, spec: EnvSpec, rows: int, rng: np.random.Generator) -> None:
        self._spec = spec
        self._rows = rows
        self._rng = rng
        self._turn = 0
        self._drawn: list[dict[str, Array]] = []
        if ACTION_MASK not in spec.observations:
            self._drawn = [random_actions(spec, rows, rng) for _ in range(DRAWN_STEPS)]

    def __call__(self, obs: Mapping[str, Array]) -> dict[str, Array]:
        """Return actions, leaf -> [rows, ...], for observation leaves [rows, ...]."""
        if not self._drawn:
            return random_actions(self._spec, self._rows, self._rng, obs[ACTION_MASK])
        self._turn = (self._turn + 1) % len(self._drawn)
        return self._drawn[self._turn]
