"""Jobs for tests: small functions for real ones, and jobs that run in the test's own process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sampleforge.tools.jobs.jobs import EndingInOrder, Jobs, Work
from sampleforge.tools.jobs.training_job import (
    Outcome,
    Status,
    TrainingJob,
    read_outcome,
    with_outcome,
    write_outcome,
)


def is_asked_to_stop(folder: Path) -> bool:
    """Whether `ask_to_stop` was called, also by an earlier launcher."""
    return (folder / "stop").exists()


@dataclass(frozen=True)
class Write:
    """Writes the cores of its process into ``path``."""

    path: Path

    def __call__(self) -> None:
        self.path.write_text(" ".join(map(str, sorted(os.sched_getaffinity(0)))))


@dataclass(frozen=True)
class WaitForEnd:
    """Waits until it is asked to end, and then writes into ``path``. ``path`` with the suffix .pid
    holds its process id meanwhile."""

    path: Path

    def __call__(self) -> None:
        ended = False

        def end() -> None:
            nonlocal ended
            ended = True

        with EndingInOrder(end):
            part = self.path.with_suffix(".part")
            part.write_text(str(os.getpid()))
            part.rename(self.path.with_suffix(".pid"))  # the file is complete when it appears
            while not ended:
                time.sleep(0.02)
        self.path.write_text("in order")


@dataclass(frozen=True)
class Fail:
    """Raises an error."""

    def __call__(self) -> None:
        raise ValueError("what the job failed with")


class JobsAtOnce(Jobs):
    """Jobs that run in this process, one after the other, when they are started; ``killed``: names
    of jobs that are killed instead, before they have done anything."""

    def __init__(self, limit: int = 1, killed: Sequence[str] = ()) -> None:
        super().__init__(limit)
        self.killed = list(killed)
        self.started: list[str] = []

    def start(self, works: Mapping[str, Work]) -> None:
        assert len(works) + len(self._jobs) <= self.limit
        for name, work in works.items():
            self.started.append(name)
            self._jobs[name] = work
            if name in self.killed:
                self.killed.remove(name)
                continue
            try:
                work()
            except Exception as error:
                print(f"job {name}: {error}")

    def take_ended(self) -> list[str]:
        ended = list(self._jobs)
        self._jobs.clear()
        return ended


Reports = Callable[[Any], Iterable[dict[str, Any]]]
"""Returns the reports of a training with a config."""


class TrainingsAtOnce(JobsAtOnce):
    """Trainings that take no time and write the ``reports`` of their configs; one whose reports
    raise an error has failed. One that is asked to stop before its end is taken has stopped."""

    def __init__(self, reports: Reports, limit: int = 1, killed: Sequence[str] = ()) -> None:
        super().__init__(limit, killed)
        self._reports = reports
        self._folders: dict[str, Path] = {}

    def start(self, works: Mapping[str, Work]) -> None:
        trainings: dict[str, Work] = {}
        for name, work in works.items():
            assert isinstance(work, TrainingJob)
            folder = Path(str(work.config.run_dir))
            trainings[name] = partial(with_outcome, folder, partial(self._train, work.config))
            self._folders[name] = folder
        super().start(trainings)

    def take_ended(self) -> list[str]:
        ended = super().take_ended()
        for folder in (self._folders[name] for name in ended):
            outcome = read_outcome(folder)
            if outcome == Outcome("finished") and is_asked_to_stop(folder):
                write_outcome(folder, Outcome("stopped"))
        return ended

    def _train(self, config: Any) -> Status:
        with (Path(config.run_dir) / "metrics.jsonl").open("a") as file:
            for report in self._reports(config):
                file.write(json.dumps(report) + "\n")
        return "finished"
