"""Splits, the parts of an actor's env vector, each with a stream for every seat; and which of them
may begin a rollout and step, and when a rollout ends: they step in turn, independently, or in
rounds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import ClassVar

import numpy as np

from sampleforge.env.games import FinishedGame, Games
from sampleforge.env.vector import EnvVector, Episode, StepOut
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.shared.counters import Progress
from sampleforge.shared.events import send
from sampleforge.shared.records import NO_SNAPSHOT, EpisodeRecord
from sampleforge.workers.frozen import FrozenPort, FrozenStream, Opponents
from sampleforge.workers.policy_mapping import StreamId
from sampleforge.workers.stream import PolicyPort, Stream

FROZEN = -1
"""In the place of a policy: a frozen one has played."""


class Split:
    """One part of an actor's env vector, whose environments step together.

    ``seats``: a stream per seat; a single-agent environment has one. ``streams``: what acts in each
    seat during the current rollout, which is a `FrozenStream` while a frozen policy plays the seat.
    ``learning``: those that fill slots, in step with each other; ``stream`` is the first of them.
    ``stepping``: whether its environments are taking a step, which began at ``sent_at`` (of
    ``monotonic``). ``rebuilt``: the number of rebuilt environments that the counters already
    include.
    """

    def __init__(self, actor: int, index: int, env: EnvVector, rollouts: int) -> None:
        self._actor = actor
        self.index = index
        self.env = env
        self._games = Games(env.seats)
        self.seats = tuple(
            Stream(
                StreamId(actor, index, seat, each.agent, env.spec.group_of(each.agent)),
                index * len(env.seats) + seat,
                each,
                rollouts,
            )
            for seat, each in enumerate(env.seats)
        )
        self.streams: tuple[Stream | FrozenStream, ...] = self.seats
        self.learning = self.seats
        self.stream = self.seats[0]
        self.stepping = False
        self.sent_at = 0.0
        self.rebuilt = 0
        self._frozen: dict[tuple[int, int], FrozenStream] = {}
        self._opponents: dict[int, Opponents] = {}  # by the frozen policy
        self._playing: tuple[Opponents, ...] = ()  # of them, in the current rollout
        # Those of other splits, and of an actor's next life, are in the same queues.
        self._stats_numbers = count(1 + secrets.randbits(62))

    def begin(
        self, ports: Sequence[PolicyPort | FrozenPort], slots: Sequence[int], env_steps: int
    ) -> None:
        """Begin a rollout, in which the policies of ``ports`` play the seats. ``slots``: one for
        each policy that is trained; ``env_steps``: of the run so far."""
        free = iter(slots)
        before = self.streams
        for seat, port in zip(self.seats, ports, strict=True):
            if isinstance(port, PolicyPort):
                seat.begin(port, next(free), env_steps)
        self.streams = tuple(
            seat if isinstance(port, PolicyPort) else self._frozen_stream(seat, port)
            for seat, port in zip(self.seats, ports, strict=True)
        )
        self.learning = tuple(each for each in self.streams if isinstance(each, Stream))
        self.stream = self.learning[0]
        frozen = [each for each in self.streams if isinstance(each, FrozenStream)]
        for each in frozen:
            each.begin(taken_over=each not in before)
        self._playing = tuple(dict.fromkeys(each.opponents for each in frozen))
        if self.streams != before:
            for opponents in self._playing:
                opponents.change_seats()

    def _frozen_stream(self, seat: Stream, port: FrozenPort) -> FrozenStream:
        key = seat.id.seat, port.policy
        if port.policy not in self._opponents:
            self._opponents[port.policy] = Opponents(port, self.index, self.env.num_rows)
        if key not in self._frozen:
            self._frozen[key] = FrozenStream(seat, self._opponents[port.policy])
        return self._frozen[key]

    def ask(self) -> None:
        """Request actions for all seats; draw opponents for the rows in which a game begins."""
        if self._playing and len(rows := self._games.beginning()):
            for opponents in self._playing:
                opponents.begin_games(rows)
        for stream in self.streams:
            stream.ask()

    @property
    def valuing(self) -> bool:
        """Whether values of final observations have been requested. Only a single-agent environment
        has any."""
        return self.stream.valuing

    def is_answered(self) -> bool:
        """Return whether the actions of all seats are there."""
        return all([stream.is_answered() for stream in self.streams])

    def end_early(self) -> None:
        """End the rollout of every seat with its last complete step, after which the policy's
        output is in the slot.

        A step that is in progress goes on. It counts in the next rollout, as the first step, with
        the action, the log-probability and the policy version of its beginning, and the importance
        ratio weights it under the newer policy."""
        for stream in self.learning:
            if self.stepping:
                stream.keep_decision()
            stream.end_early()

    def records(
        self, outs: Sequence[StepOut], ended: Sequence[Sequence[Episode]]
    ) -> list[EpisodeRecord]:
        """Return the records of the games that ended with a step: of the agents that trained
        policies played. ``outs``, ``ended``: of all streams, in their order."""
        players = [each.policy if isinstance(each, Stream) else FROZEN for each in self.streams]
        games = self._games.step(outs, ended, players)
        return [record for game in games for record in self._records_of(game)]

    def _records_of(self, game: FinishedGame) -> list[EpisodeRecord]:
        """Return the records of one game."""
        trained = [(seat, part) for seat, part in game.parts.items() if part.player != FROZEN]
        against = self._opponent(game)
        return [
            EpisodeRecord(
                self._actor,
                self.index,
                game.row,
                part.ret,
                part.length,
                part.player,
                seat,
                *against,
                len(trained) - number,
                game.length,
                self._send(part.stats) if part.stats else 0,
            )
            for number, (seat, part) in enumerate(trained, 1)
        ]

    def _send(self, stats: Mapping[str, float]) -> int:
        """Send what `stats_of` returned of an episode; return its number."""
        number = next(self._stats_numbers)
        send("episode_stats", (number, stats))
        return number

    def _opponent(self, game: FinishedGame) -> tuple[int, float]:
        """Return the snapshot that has played all of a game, in all seats that frozen policies had
        in it, and the mean return of these agents; (`NO_SNAPSHOT`, 0) if there is none."""
        seats = [seat for seat, part in game.parts.items() if part.player == FROZEN]
        streams = [self.streams[seat] for seat in seats]
        playing = {each.opponents for each in streams if isinstance(each, FrozenStream)}
        mean = game.mean(seats)
        if len(playing) != 1 or mean is None:
            return NO_SNAPSHOT, 0.0
        (opponents,) = playing
        if not opponents.whole[game.row]:
            return NO_SNAPSHOT, 0.0
        return int(opponents.snapshots[game.row]), mean


LATE = 2.0
"""A rollout is late, and is cut, when the actor's splits have since its beginning taken on average
this multiple of the steps of a whole rollout."""


class Stepping:
    """The splits step in turn, and none begins a rollout before those that have begun fewer.

    A rollout ends when its slot is full. ``ends_early(t)`` may end all of them after ``t`` steps,
    the least that one of them has; this is decided before each pass over the splits, so that all
    rollouts have the same number of steps.
    """

    together: ClassVar[bool] = False
    """Whether the actions of all splits that wait are computed together, before each pass."""

    def __init__(self, ends_early: Callable[[int], bool] | None = None) -> None:
        self._ends_early = ends_early
        self._ending = False

    def start(self, splits: Sequence[Split]) -> None:
        """Begin with the splits of an actor, none of which has a rollout yet."""
        self._splits = splits

    def decide(self) -> None:
        """Decide what holds for the pass over the splits that begins."""
        if self._ends_early is not None:
            steps = [split.stream.t for split in self._splits if split.stream.slot is not None]
            self._ending = bool(steps) and self._ends_early(min(steps))

    def may_begin(self, split: Split) -> bool:
        """Return whether a split without a slot may take one."""
        # Otherwise the first split would take all slots when they come one at a time.
        begun = split.stream.rollouts
        streams = (other.stream for other in self._splits)
        return all(other.slot is not None or other.rollouts >= begun for other in streams)

    def begun(self, split: Split) -> None:
        """Take note of a rollout that has begun."""

    def may_collect(self, split: Split) -> bool:
        """Return whether a step in progress is collected now, even if that has to wait."""
        return True

    def stepped(self, split: Split) -> None:
        """Take note of a step that is complete."""

    def ends(self, split: Split) -> bool:
        """Return whether a rollout ends with the steps that it has. The policy's output for the
        observation after them is in the slot."""
        return self._ending and split.stream.t > 0

    def ended(self, split: Split) -> None:
        """Take note of a rollout that is about to be handed over."""


class EndingOnce(Stepping):
    """Ends the rollouts that are in progress when the run has ``env_steps``, once: these steps are
    then handed over, which may be as many as learning begins with, though they are but a part of
    long rollouts of many rows."""

    def __init__(self, progress: Progress, env_steps: int) -> None:
        super().__init__()
        self._progress, self._env_steps = progress, env_steps

    def start(self, splits: Sequence[Split]) -> None:
        super().start(splits)
        self._left = {split.index for split in splits}

    @property
    def _reached(self) -> bool:
        return self._progress.env_steps >= self._env_steps

    def begun(self, split: Split) -> None:
        if split.index in self._left and self._reached:
            self._left.discard(split.index)

    def ends(self, split: Split) -> bool:
        if split.index not in self._left or split.stream.t == 0 or not self._reached:
            return False
        self._left.discard(split.index)
        return True


class IndependentStepping(Stepping):
    """Each split goes on as soon as its own step is done.

    Each fills a slot of its own at its own t, so that no batch waits for a slow split: it consists
    of the rollouts that are complete.

    A late rollout (see `LATE`) is cut: it is handed over with the steps that it has, so that these
    do not become too old, and the rest of the slot is masked. Its bootstrap is the value of its own
    last observation. A step that is in progress then goes on; see `Split.end_early`.

    The splits need `ThreadedVector` environments; an inline inference must be `LocalInference`.
    """

    together = True

    def __init__(self, late: float = LATE) -> None:
        super().__init__()
        self._late = late

    def start(self, splits: Sequence[Split]) -> None:
        super().start(splits)
        self._steps = 0
        self._begun_after: dict[int, int] = {}

    def begun(self, split: Split) -> None:
        self._begun_after[split.index] = self._steps

    def may_collect(self, split: Split) -> bool:
        return is_done(split)

    def stepped(self, split: Split) -> None:
        self._steps += 1

    def ends(self, split: Split) -> bool:
        if not split.stepping or split.stream.t == 0:
            return False
        steps = self._steps - self._begun_after[split.index]
        return steps >= self._late * split.stream.slots.shape.rollout * len(self._splits)


class SteppingInRounds(Stepping):
    """Variable experience rollout (VER, Wijmans et al. 2022, arXiv 2210.05064): rounds of ``steps``
    steps, taken by the splits that are ready.

    ``ends_early(taken)`` may end a round after so many steps. At the end of a round all rollouts
    are handed over. The next round begins when all slots of ``exchange`` are free again, after the
    update.

    A fast split fills several slots in a round, a slow one only a part of one; each split hands
    over at least one, which may be empty. A step that is in progress when the round ends continues
    during the update, and counts in the next round; see `Split.end_early`. (If such steps were
    dropped, they would always be the slowest ones.)

    The splits need `ThreadedVector` environments and one policy, with `LocalInference` and slots
    with ``env_row``: as many as ``steps`` steps fill, and one more per split, for its incomplete
    rollout.
    """

    together = True

    def __init__(
        self,
        exchange: SlotExchange,
        steps: int,
        ends_early: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__(ends_early)
        self._exchange = exchange
        self._steps = steps

    def start(self, splits: Sequence[Split]) -> None:
        super().start(splits)
        self._left = 0  # steps of this round

    def decide(self) -> None:
        taken = self._steps - self._left
        if self._left and self._ends_early is not None and self._ends_early(taken):
            self._left = 0

    def may_begin(self, split: Split) -> bool:
        """Return whether a round is in progress or may begin: there is a slot for every split. If
        fast splits waited for those with fewer rollouts, they would miss a short round."""
        return self._left > 0 or self._exchange.fill()[0] == 1.0

    def begun(self, split: Split) -> None:
        self._left = self._left or self._steps
        slots, rows = self._exchange.slots, split.env.num_rows
        assert slots.env_row is not None and slots.ends_batch is not None
        slots.env_row[split.stream.slot] = split.index * rows + np.arange(rows)
        slots.ends_batch[split.stream.slot] = False

    def may_collect(self, split: Split) -> bool:
        return self._left > 0 and is_done(split)

    def stepped(self, split: Split) -> None:
        self._left -= 1

    def ends(self, split: Split) -> bool:
        return self._left == 0

    def ended(self, split: Split) -> None:
        if self._left == 0:
            ends_batch = self._exchange.slots.ends_batch
            assert ends_batch is not None
            is_open = [other for other in self._splits if other.stream.slot is not None]
            ends_batch[split.stream.slot] = is_open == [split]


def is_done(split: Split) -> bool:
    """Return whether a step in progress is complete, and the rollout that it counts in has begun,
    so that it can be collected without waiting."""
    return split.stream.slot is not None and split.is_answered() and split.env.ready
