"""A population of training runs that exchange weights and hyperparameters through a folder.

Each member is a run of its own (`member`), started as a job (`jobs`). There is no server: members
read what the others have published (`published`). The launcher, here, only starts the members that
are to run, again those that have died, and merges their parts of the lineage.

    population.json    what the population was started with (`settings`)
    members/0/         the run folder of member 0
    published/         what the members publish for each other
    lineages/0.jsonl   what has happened to member 0; lineage.jsonl has all of them
    jobs/              what the jobs printed
    results.json       the result, at the end
    schedule.json      the hyperparameters over env steps of the best member, at the end
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sampleforge.populations.schedule import SCHEDULE_FILE, schedule_of_round
from sampleforge.runtime.causes import causes
from sampleforge.runtime.files import write_json
from sampleforge.tools.jobs.jobs import Jobs, LaunchFailed
from sampleforge.tools.jobs.training_job import forget_outcome, newest_env_steps, read_outcome
from sampleforge.tools.pbt.member import MemberJob
from sampleforge.tools.pbt.member_change import shaping_of
from sampleforge.tools.pbt.published import (
    PUBLISHED,
    MergedLineage,
    Published,
    PublishedStates,
    run_folder,
)
from sampleforge.tools.pbt.settings import PopulationSettings, opened
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.population_config import PbtConfig
from sampleforge.topologies.starts import seed_of_policy

_RESULTS = "results.json"
HOPELESS = 3
"""Jobs that may fail before any member has a checkpoint."""

State = Literal["waiting", "running", "finished", "failed"]


@dataclass
class MemberStatus:
    """The launcher's record of a member. ``published``: its newest state; ``deaths``: in a row
    without progress, with the times that its job was ended in order; ``env_steps``: of its newest
    checkpoint when it last died or was ended; ``error``: what it died of then."""

    id: str
    state: State = "waiting"
    published: Published | None = None
    deaths: int = 0
    env_steps: int = -1
    error: str | None = None


class Population:
    """The members in ``folder``, run by ``jobs``. The caller calls `step` until `done`.

    Raises ConfigError if the folder has a population with other settings. More members than before
    may be asked for: they join those that are there."""

    def __init__(self, settings: PopulationSettings, folder: Path, jobs: Jobs) -> None:
        self._folder, self._jobs = folder, jobs
        self.problems: list[str] = []
        """Messages that have not been shown yet."""
        self.settings, self._first = opened(settings, folder)
        self._ids = [str(index) for index in range(settings.size)]
        self._members = {member: MemberStatus(member) for member in self._ids}
        self._states = PublishedStates(folder / PUBLISHED, self.problems.append)
        self._merged = MergedLineage(folder, self._ids)
        self._failures = 0
        for member, state in self._states.read().items():
            if member in self._members and state.is_finished(settings.config):
                self._members[member].state = "finished"

    # ---- running ----

    @property
    def done(self) -> bool:
        """Whether all members are finished or given up."""
        return all(status.state in ("finished", "failed") for status in self._members.values())

    def step(self) -> None:
        """Take what has happened to the members, and start those that are to run. Raises
        LaunchFailed if none can be trained."""
        for member in self._jobs.take_ended():
            if member in self._members:
                self._end(member)
        self._start()
        self._merged.update()

    def _start(self) -> None:
        """Start waiting members in the free places, those with the fewest env steps first."""
        for member, status in self._members.items():
            if member in self._jobs.running:  # of an earlier launcher, or just started
                status.state = "running"
        waiting = [member for member, status in self._members.items() if status.state == "waiting"]
        waiting.sort(key=self._newest_env_steps)
        works = {member: self._work(member) for member in waiting[: self._jobs.free]}
        for member in works:
            forget_outcome(run_folder(self._folder, member))
        self._jobs.start(works)
        for member in works.keys() & self._jobs.running:
            self._members[member].state = "running"

    def _work(self, member: str) -> MemberJob:
        index = int(member)
        shaping = shaping_of(self._first[index])
        own = {n: value for n, value in self._first[index].items() if n not in shaping}
        config: AnyConfig = dataclasses.replace(
            self.settings.config,
            **own,  # type: ignore[arg-type]
            run_dir=str(run_folder(self._folder, member)),
            seed=seed_of_policy(self.settings.rules.seed, index),
            quiet=True,
        )
        rules = dataclasses.replace(
            self.settings.rules, turns=self._jobs.limit < self.settings.size
        )
        return MemberJob(self._folder, member, config, rules, shaping)

    def _end(self, member: str) -> None:
        """Take the outcome of a member's job."""
        self._tell_unused(member)
        status = self._members[member]
        outcome = read_outcome(run_folder(self._folder, member))
        if outcome is not None and outcome.status == "finished":
            status.state = "finished"
            return
        status.state = "waiting"
        if outcome is not None and outcome.status == "stopped":
            status.deaths = 0
            return
        env_steps = self._newest_env_steps(member)
        goes_on = env_steps > status.env_steps
        status.env_steps = env_steps
        if outcome is not None and outcome.status == "interrupted":
            status.deaths = 0 if goes_on else status.deaths + 1
            self._check_deaths(
                status, "; if a time limit ends its jobs, give a longer one (--slurm time=MINUTES)"
            )
            return
        status.error = "it was killed" if outcome is None else outcome.error
        status.deaths = 1 if goes_on else status.deaths + 1
        why = causes(status.error or "unknown error")
        self.problems.append(f"member {member} has died, and starts again: {why}")
        self._failures += outcome is not None
        if self._failures >= HOPELESS and not self._states.read() and not self._any_checkpoint():
            raise LaunchFailed(f"{self._failures} jobs have failed; {status.error}")
        self._check_deaths(status, "")

    def _tell_unused(self, member: str) -> None:
        self._jobs.tell_unused(f"member {member}", run_folder(self._folder, member))

    def _check_deaths(self, status: MemberStatus, hint: str) -> None:
        """Give up a member that has died, or was ended, too often without progress."""
        if status.deaths <= self.settings.max_restarts:
            return
        status.state = "failed"
        self.problems.append(
            f"member {status.id} is given up: it has died {status.deaths} times without "
            f"progress{hint}"
        )

    def _any_checkpoint(self) -> bool:
        return any(self._newest_env_steps(member) > 0 for member in self._ids)

    def _newest_env_steps(self, member: str) -> int:
        """Return the env steps of a member's newest checkpoint; -1 before the first."""
        return newest_env_steps(run_folder(self._folder, member))

    # ---- results ----

    def members(self) -> list[MemberStatus]:
        """Return all members, by their ids."""
        for member, state in self._states.read().items():
            if member in self._members:
                if self._members[member].published is None:
                    self._tell_unused(member)
                self._members[member].published = state
        return list(self._members.values())

    def take_problems(self) -> list[str]:
        """Return the messages since the last call."""
        taken, self.problems[:] = list(self.problems), []
        return taken

    def summary(self) -> dict[str, Any]:
        """Return the result as plain values, and write it to results.json; write the schedule of
        the best member to schedule.json."""
        self._merged.update()
        members = self.members()
        best = best_member(members)
        lineage_so_far = self._merged.read()
        events = [event["event"] for event in lineage_so_far]
        summary = {
            "best": None if best is None else best.member,
            "return_mean": None if best is None else best.objective,
            "copies": events.count("exploit"),
            "mutations": events.count("explore"),
            "run_dir": None if best is None else f"members/{best.member}",
            "hyperparameters": None if best is None else dict(best.hyperparameters),
            "schedule": self._write_schedule(best, lineage_so_far),
            "members": len(members),
            "finished": sum(member.state == "finished" for member in members),
            "failed": sum(member.state == "failed" for member in members),
        }
        write_json(self._folder / _RESULTS, summary)
        return summary

    def _write_schedule(self, best: Published | None, events: list[dict[str, Any]]) -> str | None:
        """Write the schedule of the best member, if runs of its algorithm can follow one; return
        the name of the file."""
        config = self.settings.config
        if best is None or not isinstance(config, PbtConfig):
            return None
        try:
            found = schedule_of_round(events, best.member, best.round, config.algo)
        except ValueError as error:  # the lineage was damaged or removed by hand
            self.problems.append(f"{SCHEDULE_FILE} was not written: {error}")
            return None
        write_json(self._folder / SCHEDULE_FILE, found)
        return SCHEDULE_FILE


def best_member(members: Sequence[MemberStatus]) -> Published | None:
    """Return the state of the member with the highest objective, None if no member has one."""
    rated = [
        member.published
        for member in members
        if member.published is not None and member.published.objective is not None
    ]
    return max(rated, key=lambda state: state.objective or 0.0, default=None)
