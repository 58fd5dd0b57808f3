"""A member of a population of runs: the function of its job.

A member is an ordinary training run, of any topology. After every round, that is, so many env
steps, it writes a checkpoint, publishes it with its objective, looks at what the others have
published, and decides by the rules of `exploit` and `explore` whether it goes on unchanged. It
waits for no other member: those that have published nothing yet, or have died since, count as they
were.

A change is one new checkpoint in the member's own run folder, from which the run resumes: weights
and optimiser of the donor, the changed hyperparameters, and everything else of the member's own
(env steps, seeds, schedules, replay, statistics). The checkpoint is written atomically, so a member
that is killed is either the old or the new one. Its state also has the events of the change, and
the member's next job writes those into the lineage that a killed one has not. In the same way the
published state has what its score says: a round has ended once that is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sampleforge.populations.lineage import Lineage, position, read
from sampleforge.populations.rounds import MemberChange, least_episodes
from sampleforge.run.callback import Callback
from sampleforge.run.folder.checkpoint import Checkpoint, CheckpointEntry, CheckpointStore
from sampleforge.run.session import Session
from sampleforge.spec import ENV_PREFIX
from sampleforge.tools.jobs.training_job import Status, only_job, train, with_outcome
from sampleforge.tools.pbt.member_change import (
    MemberRules,
    changed_checkpoint,
    decide,
    hyperparameters_of,
    shaping_of,
)
from sampleforge.tools.pbt.published import (
    PUBLISHED,
    Published,
    PublishedStates,
    lineage_file,
    run_folder,
)
from sampleforge.topologies.config import AnyConfig, ReplayRunConfig
from sampleforge.topologies.registry import pairing


@dataclass(frozen=True)
class MemberJob:
    """The function of a job that trains one ``member`` of the population in ``folder``. ``config``:
    of its run, with its first hyperparameters. ``shaping``: those of its first reward-shaping
    numbers that differ from what its environment begins with, by their names ``env.<name>``."""

    folder: Path
    member: str
    config: AnyConfig
    rules: MemberRules
    shaping: Mapping[str, float] = field(default_factory=dict)

    def __call__(self) -> None:
        lock = self.folder / PUBLISHED / f"{self.member}.lock"
        with only_job(lock, f"member {self.member}"):
            with_outcome(run_folder(self.folder, self.member), lambda: MemberRun(self).run())


class MemberRun:
    """Trains a member in sessions, until it is done, its turn is over or its job ends."""

    def __init__(self, job: MemberJob) -> None:
        self.job, self.rules, self.id = job, job.rules, job.member
        self.messages: list[str] = []
        """What went wrong with published files, for the log of the run."""
        run = run_folder(job.folder, job.member)
        self.store = CheckpointStore(run / "checkpoints", job.config.keep_checkpoints)
        self.states = PublishedStates(job.folder / PUBLISHED, self.messages.append)
        path = lineage_file(job.folder, job.member)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lineage = Lineage(path)
        events = read(path)
        self._logged = {(event["event"], event["round"]) for event in events}
        self.round = max((event["round"] for event in events), default=0)
        """Number of rounds so far."""
        scores = [event for event in events if event["event"] == "score"]
        self._env_steps = scores[-1]["env_steps"] if scores else 0
        """Env steps at the end of the last round."""
        self._published: Published | None = None
        """The state at the end of the last round of this job."""

    def run(self) -> Status:
        """Train; return "stopped" if the member's turn is over. A member that an earlier job has
        finished is left as it is: a launcher that saw only a part of that job die (its submitit
        process, say) has started this one beside it."""
        try:
            self._complete_lineage()
            state = self.states.of(self.id)
            if state is not None and state.is_finished(self.job.config):
                return "finished"
            self._make_up(state)
            while True:
                rounds = Rounds(self)
                status = train(self.job.config, [rounds])
                if status == "interrupted":
                    return status
                if rounds.change is not None:
                    self._apply(rounds.change)
                elif rounds.is_done:
                    self.end_round(done=True)
                    return "finished"
                if self.rules.turns:
                    return "stopped"
        finally:
            self._lineage.close()

    def _complete_lineage(self) -> None:
        """Write the events that a killed job could not write after its checkpoint or after its
        state was published."""
        if (found := self._latest()) is not None:
            for event in found[0].state.get("across_runs", {}).get("events", []):
                self.log(event)
        state = self.states.of(self.id)
        if state is not None and state.round > self.round:
            self.round, self._env_steps = state.round, state.env_steps
            self._log_score(state)

    def log(self, event: Mapping[str, Any]) -> None:
        """Append an event to the lineage, unless it is there: each happens once a round."""
        key = event["event"], event["round"]
        if key not in self._logged:
            self._logged.add(key)
            self._lineage.append(event)

    def _log_score(self, state: Published) -> None:
        """Log the score of a round, whose ``state`` has what it says."""
        score = {
            "event": "score",
            **position(state.member, state.round, state.env_steps, state.wall_s, state.learned),
            "objective": state.objective,
            "episodes": state.episodes,
            "hyperparameters": dict(state.hyperparameters),
        }
        self.log(score)

    def _latest(self) -> tuple[Checkpoint, CheckpointEntry] | None:
        return self.store.load(log=self.messages.append)

    # ---- a round ----

    @property
    def due(self) -> int:
        """Env steps at the end of the next round: the next multiple of the period. Rounds are not
        counted for that: the end of a run is one wherever it is, and the run may go on later."""
        return (self._env_steps // self.rules.period + 1) * self.rules.period

    def _state(self, *, done: bool) -> Published:
        """Return the state of the member in the newest checkpoint of its run."""
        found = self._latest()
        assert found is not None, "the session has just written one"
        checkpoint, entry = found
        returns = checkpoint.state["statistics"]["returns"]
        rated = len(returns) >= least_episodes(self.job.config.metrics_window)
        # What a Q-learner draws from its replay has no env steps of its own.
        counts = not isinstance(self.job.config, ReplayRunConfig)
        state = Published(
            member=self.id,
            round=self.round,
            env_steps=entry.env_steps,
            wall_s=checkpoint.state["wall_s"],
            objective=float(np.mean(returns)) if rated else None,
            episodes=len(returns),
            checkpoint=entry.file,
            learned=checkpoint.state["learner"].get("env_steps") if counts else None,
            hyperparameters=hyperparameters_of(checkpoint),
            decided=done or entry.env_steps < self.rules.start,
        )
        return state.ended_by(self.job.config) if done else state

    def end_round(self, *, done: bool = False) -> MemberChange | None:
        """End a round, whose checkpoint has been written: publish it, and return the change that
        the rules make; None if the member goes on unchanged. ``done``: it is the last round."""
        self.round += 1
        self._published = own = self._state(done=done)
        self._env_steps = own.env_steps
        if done:  # before it is published: no launcher starts a job of a finished member again
            self._log_score(own)
        self.states.publish(own, self.store.folder)
        self._log_score(own)
        return None if own.decided else self._decide()

    def _decide(self) -> MemberChange | None:
        """Return the change that the rules make of the member after its last round, if any."""
        change = decide(self.id, self.round, self.states.read(), self.rules)
        if change is None:
            self._settle()
        return change

    def _settle(self) -> None:
        """Publish that the member is what the round has made of it."""
        assert self._published is not None, "a round has ended"
        self.states.settle(self._published)

    def log_start(self, hyperparameters: Mapping[str, Any], seed: int | None) -> None:
        """Log the beginning of the member. ``seed``: of its run."""
        first = {"seed": seed, "hyperparameters": dict(hyperparameters)}
        self.log({"event": "start", **position(self.id, 0, 0, 0.0), **first})

    def shaping(self, offered: Mapping[str, float]) -> dict[str, float]:
        """Return the reward-shaping numbers with which the environments of the next session begin,
        by their names ``env.<name>``: none if the population changes none. ``offered``: those that
        the environment begins with."""
        named = {*self.rules.explore.parameters, *self.job.shaping}
        if not any(name.startswith(ENV_PREFIX) for name in named):
            return {}
        found = self._latest()
        reached = {} if found is None else shaping_of(hyperparameters_of(found[0]))
        return {**offered, **self.job.shaping, **reached}

    # ---- a change ----

    def _make_up(self, state: Published | None) -> None:
        """Make the change of the last round if an earlier job was ended before it had made it.
        ``state``: what it has published."""
        found = self._latest()
        if state is None or state.decided or state.round != self.round or found is None:
            return
        self._published = state
        if found[0].state.get("across_runs", {}).get("round") == self.round:
            self._settle()  # it ended after that checkpoint
        elif (change := self._decide()) is not None:
            self._apply(change)

    def _apply(self, change: MemberChange) -> None:
        """Make a change, and publish that it has been made."""
        self._change(change)
        self._settle()

    def _change(self, change: MemberChange) -> None:
        """Write the checkpoint of the changed member, and then its events."""
        found = self._latest()
        assert found is not None and self._published is not None, "a round has ended"
        donor = None
        if change.donor is not None:
            donor = self.states.fetch(change.donor)
            if donor is None:  # its files are damaged or gone: nothing to copy
                return
        rng = np.random.default_rng([self.rules.seed, int(self.id), self.round, 1])
        rule = self.rules.explore if change.explores else None
        own, config = (self._published, found[0]), self.job.config
        changed, events = changed_checkpoint(own, donor, rule, rng, config)
        if changed is None:
            return
        self.store.save_state(changed.tensors, changed.state)
        for event in events:
            self.log(event)


class Rounds(Callback):
    """Ends the rounds of a member while its session runs, and stops the session where the member
    changes or its turn is over. ``is_done``: it has ended otherwise, by its stop condition or by
    `Session.stop` of a callback."""

    def __init__(self, member: MemberRun) -> None:
        self.change: MemberChange | None = None
        self.is_done = False
        self._member = member
        self._ended = False

    def on_wire(self, session: Session) -> None:
        if shaping := self._member.shaping(session.spec.shaping_hyperparameters):
            (policy,) = session.opened.policies
            session.hyperparameters = {policy.id: shaping}
            session.schedule = ()  # without changes: the learner tells the environments its numbers

    def on_start(self, session: Session) -> None:
        if self._member.round == 0:
            (policy,) = session.opened.policies
            own = session.hyperparameters.get(policy.id, {})
            first = {**pairing(session.resolved).algorithm.hyperparameters(session.resolved), **own}
            self._member.log_start(first, session.resolved.seed)

    def on_poll(self, session: Session) -> None:
        progress = session.graph.progress
        if self._ended or progress.env_steps < self._member.due or progress.done:
            return
        session.save()
        self.change = self._member.end_round()
        for text in self._member.messages:
            session.message(text, "warning")
        self._member.messages.clear()
        if self.change is not None or self._member.rules.turns:
            self._ended = True
            session.stop()

    def on_stop(self, session: Session) -> None:
        self.is_done = session.graph.progress.done or not self._ended
