"""Population-based training in one run: the policies of ``--num-policies`` copy and perturb each
other (Jaderberg et al. 2017, arXiv 1711.09846).

In rounds, `Pbt` compares the members by the mean return of their own episodes, decides with the
pure functions of `rounds.py`, and sends each member that is to change a message through shared
memory. The member's learners apply it between two updates
(`sampleforge.workers.learner_change`). What has been applied is written into the lineage."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from sampleforge.config import ConfigError
from sampleforge.env.place import POPULATION_STREAM
from sampleforge.populations.lineage import FILE, Lineage, position, read
from sampleforge.populations.rounds import (
    Member,
    Value,
    changed,
    decide,
    least_episodes,
)
from sampleforge.populations.rules import (
    check_unchanged,
    rules_of,
    warnings_of,
)
from sampleforge.populations.schedule import SCHEDULE_FILE, schedule_of
from sampleforge.run.callback import Callback
from sampleforge.run.reports.policy_statistics import PolicyStatistics
from sampleforge.run.session import Session
from sampleforge.runtime.files import write_json
from sampleforge.shared.member_board import ChangeInbox, MemberBoard, Segment
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import ReplayRunConfig, SlotsRunConfig
from sampleforge.topologies.graph import PolicyGroup
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.starts import seed_of_policy


@dataclass
class Pending:
    """A change that was sent to a member. ``events``: what it means, for the lineage, without the
    values that are known when it has been applied. ``hyperparameters``: those after it.
    ``donor``: whose weights it copies (None: no weights are copied)."""

    number: int
    events: list[dict[str, Any]]
    hyperparameters: dict[str, Value]
    segment: Segment | None = None
    donor: str | None = None


@dataclass
class MemberInRun:
    """A member as the driver knows it: its policy ``group``, the ``index`` of that, and its present
    ``hyperparameters``.

    ``least``: number of its own episodes from which on it is rated. ``number`` is that of the
    newest change that was sent to it; ``segment`` identifies its newest segment. ``counting`` is
    "no" from a copy until all of its environments have begun anew, "soon" until what had ended
    before is taken from the queue, and "yes" while its episodes are its own.
    """

    index: int
    group: PolicyGroup
    statistics: PolicyStatistics
    hyperparameters: dict[str, Value]
    least: int
    number: int = field(default=0, init=False)
    segment: int = field(default=0, init=False)
    counting: Literal["no", "soon", "yes"] = field(default="yes", init=False)
    pending: Pending | None = field(default=None, init=False)
    copied_from: str | None = field(default=None, init=False)
    copies: int = field(default=0, init=False)
    mutations: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        channels = self.group.member
        assert channels is not None and channels.inbox is not None
        self.board: MemberBoard = channels.board
        self.inbox: ChangeInbox = channels.inbox

    @property
    def id(self) -> str:
        """The id of its policy."""
        return self.group.id

    @property
    def env_steps(self) -> int:
        """The member's own env steps."""
        return self.board.sampled

    @property
    def objective(self) -> float | None:
        """Mean return of its last episodes, as many as --metrics-window says; None if there are
        fewer than ``least`` of its own."""
        if self.counting != "yes" or len(self.statistics.returns) < self.least:
            return None
        return self.statistics.return_mean

    def as_member(self) -> Member:
        """Return the member as the rules see it: not rated while a change is on its way to it."""
        objective = None if self.pending else self.objective
        return Member(self.id, objective, self.hyperparameters, self.env_steps)

    def count_own_episodes(self) -> None:
        """Forget episodes of the weights before the last copy."""
        if self.counting == "yes":
            return
        self.statistics.forget_returns()
        if self.counting == "soon":
            self.counting = "yes"
            self.statistics.begin_copy()
        elif self.board.has_restarted:
            self.counting = "soon"

    def state(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint stores."""
        pending = None if self.pending is None else dataclasses.asdict(self.pending)
        if pending is not None and self.pending is not None and self.pending.segment is not None:
            pending["segment"] = list(self.pending.segment)
        return {
            "env_steps": self.env_steps,
            "number": self.number,
            "segment": self.segment,
            "hyperparameters": dict(self.hyperparameters),
            "copied_from": self.copied_from,
            "copies": self.copies,
            "mutations": self.mutations,
            "pending": pending,
        }


def _check_agents(config: SlotsRunConfig | ReplayRunConfig, spec: EnvSpec) -> None:
    """Raise ConfigError for an environment with several agents, with what to do instead."""
    if spec.num_seats == 1:
        return
    instead = (
        "train a population of runs, in each of which one policy plays all agents: sampleforge pbt "
        f"--population {config.num_policies} --folder DIR {config.algo} --env {config.env}"
    )
    if spec.other_groups:
        instead = (
            "search the hyperparameters of policies for agents with different spaces with "
            "`sampleforge sweep`, whose trials may have several policies"
        )
    raise ConfigError(
        f"--pbt: {config.env} has {spec.num_seats} agents, at whose seats the policies take turns, "
        f"so that an episode is played by several members and measures none of them; {instead}"
    )


class Pbt(Callback):
    """Trains the policies of a session as a population; see the head of this file. A benchmark
    measures the members as they begin, without rounds and a lineage."""

    def __init__(self) -> None:
        self._members: list[MemberInRun] = []

    def on_wire(self, session: Session) -> None:
        config, ids = session.resolved, [stored.id for stored in session.opened.policies]
        assert isinstance(config, SlotsRunConfig | ReplayRunConfig) and config.seed is not None
        _check_agents(config, session.spec)
        own = pairing(config).algorithm.hyperparameters(config)
        check_unchanged(session.opened.changed, own, "the members have their own (--pbt)")
        if config.benchmark:
            session.message("--pbt: members are measured as they begin, without rounds", "warning")
        self._config, self._ids, self._seed = config, ids, config.seed
        self._rng = np.random.default_rng([config.seed, POPULATION_STREAM])
        offered = session.spec.shaping_hyperparameters
        self._rules = rules_of(config, config, ids, offered, self._rng)
        for text in warnings_of(session, config, self._rules):
            session.message(text, "warning")
        session.hyperparameters = {
            name: {**offered, **first} for name, first in zip(ids, self._rules.first, strict=True)
        }
        session.env_steps_of = {
            stored.id: stored.earlier["population"]["members"][stored.id]["env_steps"]
            for stored in session.opened.policies
            if "population" in stored.earlier
        }
        self._round, self._next_round = 0, config.pbt_start

    def on_start(self, session: Session) -> None:
        if session.config.benchmark:
            return
        defaults = pairing(self._config).algorithm.hyperparameters(self._config)
        least = least_episodes(self._config.metrics_window)
        for index, group in enumerate(session.graph.groups):
            first = {**defaults, **session.hyperparameters[group.id]}
            statistics = session.statistics.policies[index]
            self._members.append(MemberInRun(index, group, statistics, first, least))
        self._by_id = {member.id: member for member in self._members}
        self._lineage = Lineage(session.folder.path / FILE)
        earlier = [stored.earlier for stored in session.opened.policies]
        if any("population" in state for state in earlier):
            self._resume(session, earlier)
            return
        for member in self._members:
            seed = seed_of_policy(self._seed, member.index)
            self._log(session, member, "start", {"seed": seed})

    def _resume(self, session: Session, earlier: Sequence[Mapping[str, Any]]) -> None:
        """Continue from the checkpoints ``earlier``, one per member. The learners have loaded the
        states that are in them; a change that was on its way is in such a state or dropped."""
        populations = [state["population"] for state in earlier if "population" in state]
        newest = max(populations, key=lambda state: int(state["lines"]))
        self._round, self._next_round = newest["round"], newest["next_round"]
        self._rng.bit_generator.state = newest["rng"]
        self._lineage.append(
            {"event": "resume", "lines": min(newest["lines"], self._lineage.lines)}
        )
        for member, state in zip(self._members, earlier, strict=True):
            if "population" not in state:  # killed while the first checkpoints were written
                self._log(
                    session, member, "start", {"seed": seed_of_policy(self._seed, member.index)}
                )
                continue
            own, learner = state["population"]["members"][member.id], state["learner"]
            member.number = learner.get("tag", {}).get("change", 0)
            member.segment, member.copied_from = own["segment"], own["copied_from"]
            member.copies, member.mutations = own["copies"], own["mutations"]
            member.statistics.expect_copy(member.segment)
            member.statistics.begin_copy()  # all environments begin anew
            member.hyperparameters = dict(own["hyperparameters"])
            pending = own["pending"]
            if pending is not None and pending["number"] <= member.number:
                segment = pending["segment"]
                pending["segment"] = None if segment is None else Segment(*segment)
                self._applied(session, member, Pending(**pending), learner["tag"]["at"])
            if (mine := newest["members"][member.id]) != own and mine["number"] > member.number:
                # Other members' checkpoints are newer than this one's, which was not written.
                self._log(session, member, "start", {})

    def on_poll(self, session: Session) -> None:
        for member in self._members:
            pending = member.pending
            if pending is not None and member.board.applied >= pending.number:
                member.pending = None
                self._applied(session, member, pending, member.board.applied_at)
            member.count_own_episodes()
        if not self._members:
            return
        mean = sum(member.env_steps for member in self._members) / len(self._members)
        if mean >= self._next_round and not session.is_interrupted():
            period = self._config.pbt_period
            passed = int(mean - self._next_round) // period
            self._next_round += (passed + 1) * period
            self._round += 1
            self._decide(session)

    def _decide(self, session: Session) -> None:
        """Compare the members, and send a change to each that is to change."""
        rated = {member.id: member.as_member() for member in self._members}
        for member in self._members:
            episodes = len(member.statistics.returns) if member.counting == "yes" else 0
            scored = {"objective": member.objective, "episodes": episodes}
            self._log(session, member, "score", scored)
        changes = decide(list(rated.values()), self._rules.exploit, self._rng)
        states = self._published(
            session, {c.donor for c in changes.values() if c.donor is not None}
        )
        for name, change in changes.items():
            member, donor = self._by_id[name], None
            if change.donor is not None:
                steps = self._by_id[change.donor].env_steps  # where it has published its state
                donor = replace(rated[change.donor], env_steps=steps)
            rule = self._rules.explore if change.explores else None
            after, events = changed(rated[name], donor, rule, self._rng, self._rules.takes)
            if not events:
                continue
            segment, state = None, None
            if donor is not None:
                segment, state = self._next_segment(member), states[donor.id]
                events[0] |= {"snapshot": str(state[1]["version"]), "segment": list(segment)}
            named = [{**event, "round": self._round} for event in events]
            pending = Pending(member.number + 1, named, after, segment, change.donor)
            self._send(member, pending, state)

    def _published(
        self, session: Session, donors: Iterable[str]
    ) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Have the donors put their newest states into shared memory; return copies of them."""
        states: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        for name in sorted(donors):
            group = self._by_id[name].group
            session.ask_learner(group, "publish")
            assert group.snapshot is not None
            states[name] = group.snapshot.read()
        return states

    def _next_segment(self, member: MemberInRun) -> Segment:
        number = member.segment + 1
        entropy = [self._seed, POPULATION_STREAM, member.index, number]
        seed = int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0] >> 1)
        return Segment(number, seed)

    def _send(
        self,
        member: MemberInRun,
        pending: Pending,
        state: tuple[Mapping[str, Any], Mapping[str, Any]] | None,
    ) -> None:
        """Send a change to the learners of a member. ``state``: the donor's."""
        member.number, member.pending = pending.number, pending
        if pending.segment is not None:
            member.statistics.expect_copy(pending.segment.number)
        tensors, plain = ({}, {}) if state is None else state
        member.inbox.send(
            pending.number,
            tensors,
            {
                "hyperparameters": pending.hyperparameters,
                "segment": None if pending.segment is None else list(pending.segment),
                "state": dict(plain),
            },
        )

    def _applied(self, session: Session, member: MemberInRun, pending: Pending, at: int) -> None:
        """Record that a member's learners have applied a change. ``at``: the env steps that have
        led to its weights."""
        member.hyperparameters = dict(pending.hyperparameters)
        if pending.donor is not None:
            assert pending.segment is not None
            member.segment = pending.segment.number
            member.copied_from = pending.donor
            member.copies += 1
            member.counting = "no"
            member.statistics.expect_copy(member.segment)
            member.statistics.forget_evaluation(member.group.weights.version)
        for event in pending.events:
            member.mutations += event["event"] == "explore"
            self._log(session, member, event["event"], {**event, "at": at})

    def _log(
        self, session: Session, member: MemberInRun, name: str, more: Mapping[str, Any]
    ) -> None:
        """Append an event of a member to the lineage."""
        self._lineage.append(
            {
                "event": name,
                **position(member.id, self._round, member.env_steps, session.graph.progress.wall_s),
                "hyperparameters": member.hyperparameters,
                **more,
            }
        )

    # ---- reports, checkpoints, the end ----

    @property
    def best(self) -> MemberInRun | None:
        """The member with the highest objective; None if no member has one."""
        rated = [(m.objective, -m.index, m) for m in self._members if m.objective is not None]
        return max(rated, key=lambda each: each[:2])[2] if rated else None

    def _totals(self) -> dict[str, int]:
        return {
            "copies": sum(member.copies for member in self._members),
            "mutations": sum(member.mutations for member in self._members),
        }

    def extend_report(self, session: Session, report: dict[str, float]) -> None:
        report |= {name: float(total) for name, total in self._totals().items()}
        report["pbt_round"] = float(self._round)
        for member in self._members:
            own = {
                f"pbt_{name}": float(value)
                for name in self._rules.explore.parameters
                if (value := member.hyperparameters[name]) is not None
            }
            own |= {"copies": float(member.copies), "mutations": float(member.mutations)}
            own["member_env_steps"] = float(member.env_steps)
            if member.objective is not None:
                own["pbt_objective"] = member.objective
            if member.copied_from is not None:
                own["copied_from"] = float(self._by_id[member.copied_from].index)
            report |= {f"{member.id}/{name}": value for name, value in own.items()}

    def checkpoint_state(self, session: Session) -> Mapping[str, Any]:
        return {
            "population": {
                "round": self._round,
                "next_round": self._next_round,
                "lines": self._lineage.lines,
                "rng": dict(self._rng.bit_generator.state),
                "members": {member.id: member.state() for member in self._members},
            }
        }

    def on_checkpoint(self, session: Session, env_steps: int) -> None:
        self._write_schedule(session)

    def _write_schedule(self, session: Session) -> None:
        """Write the schedule of the best member into the run folder."""
        best = self.best
        if best is not None:
            events = read(session.folder.path / FILE)
            found = schedule_of(events, best.id, self._config.algo, best.board.learned)
            write_json(session.folder.path / SCHEDULE_FILE, found)

    def extend_summary(self, session: Session, summary: dict[str, Any]) -> None:
        best = self.best
        summary |= {"best": None if best is None else best.id, **self._totals()}
        if best is not None:
            own = summary["policies"][best.id]
            summary |= {name: own[name] for name in own if name.startswith("return_")}

    def on_end(self, session: Session, summary: Mapping[str, Any]) -> None:
        if self._members:
            self._lineage.close()
