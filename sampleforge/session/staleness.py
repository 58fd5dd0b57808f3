"""The callback that warns once of a run whose experience is mostly too old to learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sampleforge.session.callback import Callback
from sampleforge.topologies.graph import Graph
from sampleforge.topologies.policy_lag import stale_warning

if TYPE_CHECKING:
    from sampleforge.session.session import Session


class StaleExperience(Callback):
    """Warns at the first report in which more than half of a group's rows were stale."""

    def __init__(self, graph: Graph) -> None:
        self._group = graph.group
        self._said = False

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        limit = self._group.max_policy_lag
        if self._said or limit is None or "policy_lag_mean" not in report:
            return
        text = stale_warning(
            report["stale_fraction"],
            limit,
            report["policy_lag_mean"],
            report["policy_lag_batches_mean"],
            synchronous=self._group.synchronous,
        )
        if text is not None:
            self._said = True
            session.message(text, "warning")
