"""What a session watches, and warns of: environments that start late or raise errors, memory that
grows, stale experience, learners that compute other probabilities than their actors, policies that
are never picked, returns that never differ, and a run that learns nothing."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from sampleforge.config import ConfigError, typed
from sampleforge.run.callback import Callback, Level, Message
from sampleforge.run.recording import RecordingReports
from sampleforge.run.reports.system import SystemMetrics, gpus_of
from sampleforge.run.stopping import StopConditions
from sampleforge.runtime.growth import Growth, GrowthWatch
from sampleforge.runtime.machine import human_bytes
from sampleforge.shared.counters import Counters
from sampleforge.topologies.config import AnyConfig, ReplayRunConfig
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.registry import AnyPlan, pairing
from sampleforge.topologies.replay.plan import ReplayPlan
from sampleforge.topologies.sampler_plan import stale_warning
from sampleforge.workers.metrics import SKIPPED, DivergedError

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.shared.records import EpisodeRecord


class Learned(Callback):
    """Warns of a run that ends before its first update, at its start if that is known then, and at
    its end. Ends a run of which no update was applied, at its last report, with DivergedError.
    Every session has one."""

    def __init__(self) -> None:
        self._cause = "no gradient was finite"

    def on_message(self, session: Session, message: Message) -> None:
        if SKIPPED in message.text:
            self._cause = message.text

    def on_start(self, session: Session) -> None:
        progress, limit = session.graph.progress, session.resolved.train_for_env_steps
        if limit is None or _learns_nothing(session) or _has_experience(session):
            return
        if session.graph.having("rank"):
            return  # ranks end after an update
        left = limit - progress.env_steps
        needed, why = min(_first_update(session, policy) for policy in session.roles.trained)
        if 0 < left < needed:
            session.message(
                f"--train-for-env-steps {limit}: nothing will be learned from the {left:,} env "
                f"steps that are left, because {why}; raise it",
                "warning",
            )

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        if not session.is_ending or session.is_interrupted():
            return
        for policy in session.statistics.policies:
            made, applied = policy.updates_since_start
            if made and not applied:
                raise DivergedError(
                    f"{_subject(session, policy.id)} has learned nothing: none of its {made:,} "
                    f"updates was applied: {self._cause}"
                )

    def on_stop(self, session: Session) -> None:
        steps = session.graph.total("env_steps")
        if session.is_interrupted() or _learns_nothing(session) or not steps:
            return
        dropped = session.graph.total("nonfinite_steps")
        for policy in session.statistics.policies:
            if not policy.updates_since_start[0]:
                why = _first_update(session, policy.id)[1]
                remedy = ". Train for longer"
                if dropped > steps / 2:
                    remedy = (
                        f", and {dropped:,.0f} steps were dropped, because a value was not finite; "
                        "the warning of the first one names it"
                    )
                session.alert(
                    f"{_subject(session, policy.id)} has learned nothing: there was no update in "
                    f"{steps:,.0f} env steps, because {why}{remedy}"
                )


def _subject(session: Session, policy: str) -> str:
    return "The run" if len(session.statistics.policies) == 1 else policy


def _learns_nothing(session: Session) -> bool:
    """Return whether the run is not to learn."""
    return session.resolved.sampler_only or session.resolved.benchmark


def _has_experience(session: Session) -> bool:
    """Return whether there is something to learn from before the first env step."""
    config = session.resolved
    resumes_replay = session.opened.earlier and getattr(config, "save_replay", False)
    return bool(getattr(config, "datasets", ()) or resumes_replay)


def _first_update(session: Session, policy: str) -> tuple[int, str]:
    """Return the env steps that the first update of a policy needs at least, and the reason in
    words."""
    return _first_update_of(session.resolved, session.run_plan.agents_of(policy).plan)


def _first_update_of(config: AnyConfig, plan: AnyPlan) -> tuple[int, str]:
    """Return the same for a resolved config and its plan."""
    if isinstance(plan, ReplayPlan):
        assert isinstance(config, ReplayRunConfig)
        starts = plan.learning_starts
        why = f"learning begins with {starts:,} transitions in the replay (--learning-starts)"
        if config.begins_early:
            return starts, why
        whole = f"whole rollouts are added, of {plan.rollout} steps x {plan.rows} env rows"
        return max(starts, plan.rollout * plan.rows), f"{why}, to which {whole}"
    size = plan.batch_size
    return size, f"an update needs a batch of {size:,} env steps (--batch-size)"


WAITING_S = 5.0
"""Seconds between two messages that the environments are waited for."""
FIRST_UPDATE_S = 10.0
"""Seconds to the first update from which on the user is told."""
LEAST_FIRST = 64
"""Least env steps before the first update that are suggested."""
STARVED = 20
"""How many times longer than expected a policy waits for experience before the user is told."""


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


class Starting(Callback):
    """Says what a run waits for until it learns, where that takes long: which part of the env rows
    has started, until the first env step, every `WAITING_S` seconds; then, as soon as the rate of
    env steps is known, when the first update comes, if it is more than `FIRST_UPDATE_S` seconds
    away."""

    def __init__(self) -> None:
        self._next = inf
        self._first: tuple[float, int] | None = None
        """The time of the first env step that was seen, and how many there were."""

    def on_start(self, session: Session) -> None:
        self._next = monotonic() + WAITING_S

    def on_poll(self, session: Session) -> None:
        if self._next == inf:
            return
        counters, now = session.graph.counters, monotonic()
        steps = int(counters.total("env_steps"))
        if steps and self._first is None:
            self._first, self._next = (now, steps), now + WAITING_S
        if now < self._next:
            return
        self._next = now + WAITING_S
        if self._first is not None:
            self._tell_first_update(session, steps, now)
            return
        started, rows = int(counters.total("started_rows")), session.plan.envs
        if started < rows:
            session.message(f"Waiting for the environments: {started} of {rows} have started")

    def _tell_first_update(self, session: Session, steps: int, now: float) -> None:
        """Say when the first update comes after ``steps``, if their rate is known by ``now``."""
        assert self._first is not None
        began, before = self._first
        if steps == before:
            return
        self._next = inf
        updates = session.graph.counters.total("updates")
        if updates or _learns_nothing(session) or _has_experience(session):
            return
        rate = (steps - before) / (now - began)
        policies = session.roles.trained
        needed = len(policies) * min(_first_update(session, each)[0] for each in policies)
        if session.graph.having("rank"):
            needed *= session.plan.num_workers
        wait = (needed - steps) / rate
        if wait > FIRST_UPDATE_S:
            session.message(*_first_update_text(session, needed, rate, wait))


def _first_update_text(
    session: Session, needed: int, rate: float, wait: float
) -> tuple[str, Level]:
    """Return the message that the first update comes after ``needed`` env steps, in ``wait``
    seconds at ``rate`` env steps per second, and its level."""
    about = f"{wait:,.0f} s" if wait < 120 else f"{wait / 60:,.0f} min"
    text = (
        f"First update after {needed:,} env steps, in about {about} at the present {rate:,.3g} env "
        "steps/s"
    )
    earlier = _earlier(session, rate / needed)
    text += f"; {earlier} makes it earlier" if earlier else ""
    progress = session.graph.progress
    to_the_update = session.graph.having("rank")  # ranks end after one
    if to_the_update or progress.limit_s is None or progress.limit_s - progress.wall_s > wait:
        return text, "info"
    limit = typed("train_for_seconds", session.config.train_for_seconds)
    return f"{text}. {limit} ends the run before that", "warning"


def _earlier(session: Session, rate: float) -> str | None:
    """Return the flag with which the first update comes within `FIRST_UPDATE_S`, or else as soon as
    possible; None if there is none. ``rate``: the part of the wait that passes in a second."""
    config, found = session.config, None
    name = "learning_starts" if isinstance(config, ReplayRunConfig) else "batch_size"
    usual = needed = _first_update_of(session.resolved, session.plan)[0]
    size = int(getattr(session.resolved, name) or usual) // 2
    while size >= LEAST_FIRST and needed > FIRST_UPDATE_S * rate * usual:
        smaller: dict[str, Any] = {name: size}
        with suppress(ConfigError):
            each = dataclasses.replace(config, **smaller)
            chosen = pairing(each)
            resolved = chosen.resolved(each, session.spec)
            plan = chosen.plan(resolved, session.spec, session.plan.device)
            if (fewer := _first_update_of(resolved, plan)[0]) < needed:
                needed, found = fewer, size
        size //= 2
    return None if found is None else typed(name, found)


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


OTHER = {"fp32": 0.1, "bf16": 0.5}
"""Deviation of a ratio from 1, before the first gradient step, above which the user is told of it.
On a CPU, and with a recurrent core, it is below 1e-5; where a GPU computes in bf16, the logits of a
certain policy may differ by the last bit."""


class OtherProbabilities(Callback):
    """Warns at the first report in which the learner's probabilities of actions, by the weights
    that they were drawn with, are not those of the actors."""

    def __init__(self, graph: Graph) -> None:
        self._silent = {graph.prefix(group): group.id for group in graph.groups}
        """The groups that have not been warned of, by what their metrics begin with."""

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        limit = OTHER[session.plan.precision]
        for prefix, group in list(self._silent.items()):
            deviation = report.get(f"{prefix}ratio_deviation_first", 0.0)
            if deviation > limit and report[f"{prefix}policy_lag_max"] == 0:
                del self._silent[prefix]
                session.message(
                    f"{group + ': ' if prefix else ''}the learner computes other probabilities of "
                    "the actions than the actors, from the same weights (up to "
                    f"{deviation:.0%} off, ratio_deviation_first), so that the first step of "
                    "an update is clipped already; batch normalisation, dropout and whatever else "
                    "makes an encoder or head depend on chance or on the other rows of a batch "
                    "do that: take them out (layer normalisation does not)",
                    "warning",
                )


SAME = 200
"""Number of first episodes whose returns, if they are all the same, the user is told of."""
ENDLESS = 2000
"""Env steps of each env row after which the user is told if hardly an episode has ended."""
FEW_ENDED = 0.25
"""Episodes for each env row below which hardly one has ended."""


class NoSignal(Callback):
    """Says once, of a run that begins with new weights, with the flag that helps, that its first
    `SAME` episodes all had the same return: no gradient follows from rewards that tell no action
    from another. Or that hardly an episode has ended in `ENDLESS` steps of each env row, without a
    time limit: the policy may have learned to avoid what is near the end, as a goal beside a cliff
    is."""

    def __init__(self) -> None:
        self._return: float | None = None
        self._count = 0
        self._waits_for_ends = True

    def on_start(self, session: Session) -> None:
        config = session.resolved
        recorded = getattr(config, "datasets", ())
        if session.opened.earlier or config.init_from or recorded:
            self._end()
            self._waits_for_ends = False

    def on_episode_record(self, session: Session, record: EpisodeRecord) -> None:
        self._count += 1
        if self._return not in (None, record.ret):
            self._end()
            return
        self._return = record.ret
        if self._count == SAME:
            session.message(_same_returns(session.resolved, record.ret), "warning")
            self._end()

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        if not self._waits_for_ends:
            return
        rows, steps = session.plan.envs, int(report["env_steps"])
        if steps < ENDLESS * rows:
            return
        self._waits_for_ends = False
        ended = int(report["episodes"])
        if session.spec.max_episode_steps is None and ended < FEW_ENDED * rows:
            session.message(_endless(session.resolved, ended, steps, rows), "warning")

    def _end(self) -> None:
        """Have the episodes that follow not reported to this callback."""
        self.on_episode_record = super().on_episode_record  # type: ignore[method-assign]


def _same_returns(config: AnyConfig, ret: float) -> str:
    """Return what is said of the return that all first episodes have had."""
    text = f"All of the first {SAME} episodes had the return {ret:g}, whatever the policy did"
    check = f"`sampleforge check-env {config.env}` says what else may help"
    if getattr(config, "rnd_coeff", None) == 0:
        flag = typed("rnd_coeff", 1 if ret else 0.5)
        return f"{text}: {flag} also pays for what is new, from the start of a run; {check}"
    return f"{text}: so far there is nothing to learn from; {check}"


def _endless(config: AnyConfig, ended: int, steps: int, rows: int) -> str:
    """Return what is said of a run in which only so many episodes have ended after so many env
    steps."""
    few = f"Only {ended} episode{'s have' if ended > 1 else ' has'}" if ended else "No episode has"
    clip = ""
    if config.reward_clip is None:
        clip = (
            "; where single rewards are far larger than the usual ones, --reward-clip with the "
            "size of the usual ones keeps these few from being all that is learned from"
        )
    return (
        f"{few} ended in {steps:,} env steps of {rows} env rows, and {config.env} has no time "
        "limit: returns are hardly known, and the policy may have learned to stay away from what "
        f"ends an episode. {typed('max_episode_steps', 1000)} ends them{clip}; `sampleforge "
        f"check-env {config.env}` says what else may help"
    )


class StarvedPolicies(Callback):
    """Warns of a policy that has not learned for so long that the user's own ``policy_mapping``
    must be the reason: it hardly ever picks the policy. The run goes on without it.

    The limit is `STARVED` times the env steps after which the policy would learn again if all
    policies were picked equally often.
    """

    def __init__(self, session: Session, policy_mapping: str) -> None:
        self._mapping = policy_mapping
        count = len(session.graph.groups)
        starts, plan = getattr(session.resolved, "learning_starts", 0), session.run_plan
        self._limits = {
            group.id: STARVED * count * max(plan.agents_of(group.id).plan.batch_size, starts)
            for group in session.graph.groups
        }
        env_steps = session.graph.progress.env_steps
        self._last = {group.id: (0, env_steps) for group in session.graph.groups}
        """Of each policy, its number of updates, and the run's env steps when it became that."""
        self._warned: set[str] = set()

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        now = int(report["env_steps"])
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


WINDOW = 1000
"""Number of latest episodes, finished or lost, that the limit applies to. So an environment that
breaks late in a long run is noticed as soon as one that is broken from the start, and a single
fault that loses an episode in every row does not end the run."""
LEAST = 20
"""Number of lost episodes from which on the limit applies: fewer say nothing about a rate."""


class EnvironmentFails(RuntimeError):
    """The environment raised errors too often; the message ends with the first traceback."""


class EnvRestarts(Callback):
    """Reports environments that raise an error and are rebuilt: the first error is shown, and too
    many errors end the session. Watches the counters env_restarts and episodes. ``limit``: the
    fraction of the episodes that may be lost; 1: all."""

    def __init__(self, counters: Counters, limit: float) -> None:
        self._counters = counters
        self._limit = limit
        self._reported = False
        self._history: deque[tuple[int, int]] = deque([(0, 0)])
        """(lost, finished) episodes at earlier checks, oldest first; the first entry is at least
        `WINDOW` episodes back, once there were so many."""

    def on_poll(self, session: Session) -> None:
        if not session.is_interrupted():
            self.look(session.alert)

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        self.on_poll(session)

    def look(self, warn: Callable[[str], None]) -> None:
        """Call ``warn`` with the first error. Raises EnvironmentFails if too many of the latest
        episodes were lost."""
        now = self._total("env_restarts"), self._total("episodes")
        if now == self._history[-1]:
            return
        self._history.append(now)
        while len(self._history) > 1 and sum(now) - sum(self._history[1]) >= WINDOW:
            self._history.popleft()
        if now[0] and not self._reported:
            self._reported = True
            warn(
                "an environment raised an error; it was rebuilt, and its episode is dropped. The "
                f"first traceback:\n\n{self._first_fault()}\n\nCorrect the environment. Further "
                f"errors are only counted (env_restarts){self._limit_text()}"
            )
        lost, finished = (now[i] - self._history[0][i] for i in (0, 1))
        if lost >= LEAST and lost > self._limit * (lost + finished):
            raise EnvironmentFails(
                f"the environment raised an error in {lost:,} of the last {lost + finished:,} "
                f"episodes, more than --max-env-restart-rate {self._limit:g} allows: these "
                "episodes are dropped, and learning from the other episodes may be biased. "
                "Correct the environment, or raise the limit (1: no limit). The first "
                "traceback:\n\n"
                f"{self._first_fault()}"
            )

    def _limit_text(self) -> str:
        if self._limit >= 1:
            return ""
        return (
            f"; the run ends if more than {self._limit:.0%} of the episodes are lost "
            "(--max-env-restart-rate)"
        )

    def _first_fault(self) -> str:
        text = self._counters.first_fault.get()
        return text or "(it is in the output of another host's rank)"

    def _total(self, name: str) -> int:
        return int(self._counters.total(name))


def own_callbacks(session: Session, others: Sequence[Callback]) -> list[Callback]:
    """Return the callbacks of a wired session which follow the user's (``others``)."""
    graph, config = session.graph, session.resolved
    system = SystemMetrics(gpus_of(config, session.plan))
    stop = StopConditions(session, others)
    session.check_stop = stop.check
    callbacks = [system, MemoryGrowth(system), stop, Starting()]
    callbacks += [EnvRestarts(graph.counters, config.max_env_restart_rate)]
    callbacks += [StaleExperience(graph), OtherProbabilities(graph)]
    callbacks += [session.checkpoints, Learned()]
    if not _learns_nothing(session):
        callbacks.append(NoSignal())
    if graph.recording is not None:
        callbacks.append(RecordingReports(graph.recording))
    if (mapping := getattr(config, "policy_mapping", None)) is not None:
        callbacks.append(StarvedPolicies(session, mapping))
    return callbacks
