"""The last evaluation does not hold a run for long that has nothing to evaluate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sampleforge.run.ending import last_evaluation


class Unfinished:
    """A session whose learners answer, but do not publish their last weights: a rank that waits for
    others, which are gone."""

    def __init__(self) -> None:
        learner = SimpleNamespace(name="rank 0")
        self.graph = SimpleNamespace(groups=[SimpleNamespace(evaluations=[], learner=learner)])
        self.asked, self.alerts = 0, list[str]()

    def ask_learner(self, group: Any, kind: str) -> None:
        self.asked += 1

    def is_interrupted(self) -> bool:
        return False

    def work(self) -> None:
        pass

    def alert(self, text: str) -> None:
        self.alerts.append(text)


def test_weights_that_do_not_come_are_warned_of_and_the_run_goes_on_to_its_end() -> None:
    session: Any = Unfinished()
    assert list(last_evaluation(session, patience=0.01)) == []
    (text,) = session.alerts
    assert text.startswith("The last weights of rank 0 are not evaluated") and session.asked > 1
    assert "`sampleforge eval`" in text
