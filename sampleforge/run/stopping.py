"""The callback that ends a session when a metric meets a condition of ``--stop``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from sampleforge.config import ConfigError, typed
from sampleforge.env.games import OF_TYPE
from sampleforge.names import nearest
from sampleforge.run.callback import Callback, adds_metrics
from sampleforge.run.reports.metrics import GROUPS, OTHERS, PREFIX, group_of
from sampleforge.runtime.config import StopCondition
from sampleforge.shared.records import Evaluation
from sampleforge.workers.metrics import CUSTOM

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.topologies.config import AnyConfig

HISTOGRAMS = ("td_error", "priority")
"""Metrics that TensorBoard alone has."""
RETURNS = ("return_mean", "return_std", "return_best", "return_episodes", "length_mean")
LATE = (*RETURNS, "return_mean_early")
"""Metrics that the first reports with an update may lack."""
OF_EPISODES = (*LATE, "episodes", "return_mean_all")
"""Metrics that need episodes of the policy."""
EXPLAINED = "explained_variance"
"""Also one of these where learning is from rollouts: it is left out while targets do not vary."""
EVALUATED = tuple(f"{PREFIX}{name}" for name in Evaluation._fields if name != "extra")
"""The metrics of an evaluation without a function of the user's own."""


class StopConditions(Callback):
    """Ends the session at the first report that meets a condition of ``--stop``; the summary's
    ``stopped_by`` says which condition, or which limit, has ended the run.

    A metric that no report can have is refused: at the start, if its name is not known; otherwise
    as soon as reports have all metrics of their kind (`_missing`). Raises ConfigError for both.
    """

    def __init__(self, session: Session, others: Sequence[Callback]) -> None:
        """``others``: callbacks that may add metrics of their own to reports."""
        config, graph = session.config, session.graph
        self._conditions = [StopCondition.parse(text) for text in config.stop]
        self._prefixes = [prefix for prefix in map(graph.prefix, graph.groups) if prefix]
        self._seen: set[str] = set()
        self._met: StopCondition | None = None
        self._config, self._adds = config, any(map(adds_metrics, others))
        for condition in self._conditions:
            self.check(condition)

    def check(self, condition: StopCondition) -> None:
        """Raise ConfigError if no report of this run can have the condition's metric."""
        check_metric(condition, self._config, self._prefixes, adds_metrics=self._adds)

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        if not self._conditions or self._met is not None or session.is_interrupted():
            return
        self._seen.update(report)
        for condition in self._conditions:
            if condition.is_met(report):
                self._met = condition
                session.message(
                    f"Stop condition met: {condition} ({condition.metric} is "
                    f"{report[condition.metric]:,.6g})"
                )
                session.graph.progress.end()
                return
            if self._missing(condition.metric, report, session.config.metrics_window):
                _refuse(condition, "no report of this run has it", self._seen)

    def _missing(self, metric: str, report: Mapping[str, float], window: int) -> bool:
        """Return whether a report that should have ``metric`` has none: the first one after an
        update and an episode, or, for metrics that environments report and callbacks add to
        reports, the first after an update and ``window`` episodes that count. Callbacks may add
        metrics of episodes and updates at any time, as in a curriculum."""
        own = _without_prefix(metric, self._prefixes)
        if metric in self._seen or own in LATE or own.startswith((PREFIX, CUSTOM)):
            return False
        of_a_policy = own != metric or not self._prefixes
        if own == EXPLAINED and of_a_policy and self._config.topology != "replay":
            return False
        learned = any(f"{prefix}loss" in report for prefix in self._prefixes or [""])
        if any(own in names for names in GROUPS.values()):
            return learned and report["episodes"] >= 1
        return learned and report.get("return_episodes", 0) >= window

    def extend_summary(self, session: Session, summary: dict[str, Any]) -> None:
        finished = summary["status"] == "finished"
        summary["stopped_by"] = self._stopped_by(session) if finished else None

    def _stopped_by(self, session: Session) -> str | None:
        """Return the condition or the limit that has ended the run; None if it was stopped by
        something else."""
        if self._met is not None:
            return str(self._met)
        config, progress = session.config, session.graph.progress
        limits = {"env_steps": config.train_for_env_steps, "wall_s": config.train_for_seconds}
        for name, limit in limits.items():
            if limit is not None and getattr(progress, name) >= limit:
                return f"{name}>={limit:g}" if name == "wall_s" else f"{name}>={limit}"
        return None


def check_metric(
    condition: StopCondition, config: AnyConfig, prefixes: Sequence[str], *, adds_metrics: bool
) -> None:
    """Raise ConfigError if no report of a run with ``config`` can have the condition's metric.
    ``prefixes``: the beginnings of the names of each policy's metrics; ``adds_metrics``: callbacks
    may add metrics of any name."""
    own = _without_prefix(condition.metric, prefixes)
    known = {name for names in GROUPS.values() for name in names} - {*HISTOGRAMS}
    if own.startswith(PREFIX):
        if config.evaluate_interval is None:
            _refuse(condition, "there are no evaluations; add --evaluate-interval N")
        if config.evaluate_function is None and not _evaluated(own) and not adds_metrics:
            _refuse(condition, "evaluations have no metric of that name", EVALUATED)
        if prefixes and own == condition.metric and not adds_metrics:
            _refuse(condition, "each policy has one of its own", [f"{p}{own}" for p in prefixes])
    elif own in OF_EPISODES and not getattr(config, "is_live", True) and not adds_metrics:
        _refuse(
            condition,
            "from data alone (--input) no episodes are sampled; name eval_return_mean, with "
            "--evaluate-interval N",
        )
    elif own in HISTOGRAMS:
        _refuse(condition, "it is a histogram, which TensorBoard alone has; name a number")
    elif group_of(own) == OTHERS and not adds_metrics:
        policies = [f"{prefix}{name}" for prefix in prefixes for name in known]
        _refuse(condition, "there is no metric of that name", [*known, *policies, *EVALUATED])


def _evaluated(name: str) -> bool:
    """Return whether evaluations have a metric of this name."""
    return name in EVALUATED or name.startswith(f"{PREFIX}{OF_TYPE}")


def _without_prefix(metric: str, prefixes: Sequence[str]) -> str:
    prefix = next((each for each in prefixes if metric.startswith(each)), "")
    return metric.removeprefix(prefix)


def _refuse(condition: StopCondition, reason: str, names: Iterable[str] = ()) -> NoReturn:
    near = nearest(condition.metric, names)
    hint = f". Did you mean {' or '.join(near)}?" if near else ""
    if names and not near:
        hint = " (the page Metrics of the documentation lists them)"
    raise ConfigError(f"{typed('stop', (str(condition),))}: {reason}{hint}")
