"""What a session reports and when: the files of its folder, the states of its workers, and a
warning of stale experience."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from sampleforge.config import typed
from sampleforge.run.callback import Callback, Message
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.reports.reporter import Reporter
from sampleforge.run.reports.system import SystemFigures
from sampleforge.run.reports.verdict import BenchmarkContext
from sampleforge.run.reports.workers import RunState, RunWatch
from sampleforge.runtime.growth import Growth, GrowthWatch
from sampleforge.runtime.machine import human_bytes
from sampleforge.topologies.config import AnyConfig, RanksRunConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.policy_lag import stale_warning
from sampleforge.topologies.rendezvous import member_devices
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.workers.config import LearnersConfig

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.topologies.replay.plan import ReplayPlan
    from sampleforge.topologies.sampler_plan import Plan
    from sampleforge.topologies.stored.plan import StoredPlan


WAITING_S = 5.0
"""Seconds between two messages that the environments are waited for."""
STARTING_S = 1.0
"""Seconds between two looks at the workers before the first report."""
STARVED = 20
"""How many times longer than expected a policy waits for experience before the user is told."""


class Reports:
    """Says when a report is due: at every interval, and when an evaluation waits to be reported.

    The interval is of seconds, or ``by_env_steps`` of 1000 env steps for each, to be deterministic.
    """

    def __init__(self, session: Session, *, by_env_steps: bool) -> None:
        self._progress = session.graph.progress
        self._statistics = session.statistics
        self._by_env_steps = by_env_steps
        self._interval = session.config.report_interval * (1000.0 if by_env_steps else 1.0)
        self._next = self._clock() + self._interval

    @property
    def is_due(self) -> bool:
        """Whether to report now. Counts the interval anew where it has passed."""
        due = self._clock() >= self._next
        if due:
            self._next = self._clock() + self._interval
        return due or self._statistics.evaluation_waits

    def _clock(self) -> float:
        return float(self._progress.env_steps) if self._by_env_steps else monotonic()


class RunFiles(Callback):
    """Writes metrics.jsonl, TensorBoard events and log.txt. Every session has one. What is said
    before `begin` is written then."""

    def __init__(self) -> None:
        self._reporter: Reporter | None = None
        self._waiting: list[Message] = []

    def begin(self, folder: RunFolder, env_steps: int, resources: ExitStack) -> None:
        """Open the files of a run that begins at ``env_steps``; ``resources`` closes them. Raises
        OSError if they cannot be opened."""
        self._reporter = Reporter(folder, env_steps)
        resources.callback(self._reporter.close)
        for message in self._waiting:
            self._log(self._reporter, message)
        self._waiting.clear()

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        assert self._reporter is not None, "begin() comes first"
        graph = session.graph
        session.folder.check_there()
        warning = self._reporter.report(
            report,
            env_steps=graph.progress.env_steps,
            wall_s=report["wall_s"],
            histograms=session.graph.histograms(),
            policies=[prefix for prefix in map(graph.prefix, graph.groups) if prefix],
        )
        if warning is not None:
            session.message(warning, "warning")

    def on_message(self, session: Session, message: Message) -> None:
        if self._reporter is None:
            self._waiting.append(message)
        else:
            self._log(self._reporter, message)

    @staticmethod
    def _log(reporter: Reporter, message: Message) -> None:
        level = "warning" if message.level == "alert" else message.level
        reporter.log(message.text, level, message.source)


class SystemMetrics(Callback):
    """Adds processor time, memory and the use of GPUs to each report."""

    def __init__(self, session: Session) -> None:
        self._figures = SystemFigures(_gpus(session.resolved, session.plan))

    def extend_report(self, session: Session, report: dict[str, float]) -> None:
        report |= self._figures.scalars(session.runner.pids().values())

    @property
    def private(self) -> Mapping[int, int]:
        """See `SystemFigures`."""
        return self._figures.private


class MemoryGrowth(Callback):
    """Warns once of each actor or rank whose memory grows steadily, with that of the processes that
    its environments have started: usually an environment keeps what it should drop."""

    LEAST = float(64 << 20)
    """Bytes of growth that are warned of."""
    SPACING_S = 5.0
    """Seconds between two samples at first."""

    def __init__(self, metrics: SystemMetrics) -> None:
        self._metrics = metrics
        self._watches: dict[tuple[str, int], GrowthWatch] = {}
        self._warned: set[str] = set()

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        pids, private = session.runner.pids(), self._metrics.private
        for node in session.graph.nodes:
            pid = pids.get(node.name)
            if node.role not in ("actor", "rank") or node.name in self._warned:
                continue
            if pid is None or pid not in private or not report["env_steps"]:
                continue
            watch = self._watches.setdefault(
                (node.name, pid), GrowthWatch(self.LEAST, self.SPACING_S)
            )
            watch.add(monotonic(), float(private[pid]))
            if (growth := watch.growth) is not None:
                self._warned.add(node.name)
                session.message(self._text(node.name, growth, session.config, report), "warning")

    def _text(
        self, worker: str, growth: Growth, config: AnyConfig, report: Mapping[str, float]
    ) -> str:
        free = report.get("system_memory_available_mib")
        left = "" if free is None else f", and there are {human_bytes(free * 2**20)} left"
        kwargs = f" {typed('env_kwargs', config.env_kwargs)}" if config.env_kwargs else ""
        return (
            f"{worker}: its memory grew steadily, by {human_bytes(growth.amount)} in "
            f"{growth.duration:,.0f} s ({human_bytes(3600 * growth.rate)} an hour{left}). Probably "
            "its environments keep what they should drop (lists of past steps, caches, figures); "
            f"`sampleforge check-env {config.env}{kwargs} --seconds 60` measures one of them"
        )


def _gpus(config: AnyConfig, plan: Plan | ReplayPlan | StoredPlan) -> set[int]:
    """Return CUDA's numbers of the devices that a run uses."""
    if plan.device == "cpu":
        return set()
    several, learners = 1, tuple[str, ...]()
    if isinstance(config, LearnersConfig):
        several, learners = config.num_learners, config.learner_devices
    elif isinstance(config, RanksRunConfig):
        several = plan.num_workers
    names = {plan.device, *(learners or member_devices(plan.device, several))}
    return {int(name.partition(":")[2] or 0) for name in names}


class WorkerStates(Callback):
    """Judges what every worker does and what limits the run (``state``), and writes it to
    workers.json: at each report, and every second before the first one. Every session has one; it
    does nothing in benchmark mode."""

    def __init__(self) -> None:
        self.state = RunState(())
        self._watch: RunWatch | None = None
        self._next = inf

    def on_start(self, session: Session) -> None:
        if session.config.benchmark:
            return
        plan, context = session.plan, None
        if isinstance(plan, SamplerPlan):
            context = BenchmarkContext.of(session.resolved, plan, session.spec, session.graph)
        self._watch = RunWatch(session.graph, context)
        self._look(session)
        self._next = monotonic() + STARTING_S

    def on_poll(self, session: Session) -> None:
        if monotonic() >= self._next:
            self._next = monotonic() + STARTING_S
            self._look(session)

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        self._next = inf
        self._look(session)

    def on_stop(self, session: Session) -> None:
        self._write(session)

    def _look(self, session: Session) -> None:
        if self._watch is None:
            return
        before, self.state = self.state, self._watch.look(session.runner.pids())
        if self.state is not before:  # it is, if it is less than half a second old
            self._write(session)

    def _write(self, session: Session) -> None:
        if self._watch is None:
            return
        session.folder.check_there()
        progress = session.graph.progress
        session.folder.write_workers(self.state.to_plain(progress.env_steps, progress.wall_s))


class Starting(Callback):
    """Says which part of the env rows has started, while that takes long: until the first env
    step, every `WAITING_S` seconds."""

    def __init__(self) -> None:
        self._next = inf

    def on_start(self, session: Session) -> None:
        self._next = monotonic() + WAITING_S

    def on_poll(self, session: Session) -> None:
        if monotonic() < self._next:
            return
        self._next = monotonic() + WAITING_S
        counters, rows = session.graph.counters, session.plan.envs
        started = int(counters.total("started_rows"))
        if counters.total("env_steps"):
            self._next = inf
        elif started < rows:
            session.message(f"Waiting for the environments: {started} of {rows} have started")


class StaleExperience(Callback):
    """Warns at the first report in which more than half of a policy group's rows were stale."""

    def __init__(self, graph: Graph) -> None:
        self._silent = {graph.prefix(group): group for group in graph.groups}
        """The groups that have not been warned of, by what their metrics begin with."""

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        for prefix, group in list(self._silent.items()):
            limit = group.max_policy_lag
            if limit is None or f"{prefix}policy_lag_mean" not in report:
                continue
            text = stale_warning(
                report[f"{prefix}stale_fraction"],
                limit,
                report[f"{prefix}policy_lag_mean"],
                report[f"{prefix}policy_lag_batches_mean"],
                synchronous=group.synchronous,
            )
            if text is not None:
                del self._silent[prefix]
                of = f"{group.id}: " if prefix else ""
                session.message(f"{of}{text}", "warning")


class StarvedPolicies(Callback):
    """Warns of a policy that has not learned for so long that the user's own ``policy_mapping``
    must be the reason: it hardly ever picks the policy. The run goes on without it.

    The limit is `STARVED` times the env steps after which the policy would learn again if all
    policies were picked equally often.
    """

    def __init__(self, session: Session, policy_mapping: str) -> None:
        self._mapping = policy_mapping
        count = len(session.graph.groups)
        starts = getattr(session.resolved, "learning_starts", 0)
        self._limits = {
            group.id: STARVED * count * max(session.agents_of(group.id).plan.batch_size, starts)
            for group in session.graph.groups
        }
        env_steps = session.graph.progress.env_steps
        self._last = {group.id: (0, env_steps) for group in session.graph.groups}
        """Of each policy, its number of updates, and the run's env steps when it became that."""
        self._warned: set[str] = set()

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        now = session.graph.progress.env_steps
        for policy in session.statistics.policies:
            updates, env_steps = self._last[policy.id]
            if policy.updates != updates:
                self._last[policy.id] = policy.updates, now
                self._warned.discard(policy.id)
            elif now - env_steps > self._limits[policy.id] and policy.id not in self._warned:
                self._warned.add(policy.id)
                session.message(
                    f"{policy.id} has learned nothing for {now - env_steps:,} env steps: "
                    f"--policy-mapping {self._mapping} hardly ever picks it. The other policies "
                    "go on; change the function, or leave this policy out of --policies-to-train",
                    "warning",
                )
