"""Splits: the parts of an actor's env vector, each with a stream for every seat."""

from __future__ import annotations

from collections.abc import Sequence

from sampleforge.env.games import FinishedGame, Games
from sampleforge.env.vector import EnvVector, Episode, StepOut
from sampleforge.shared.records import NO_SNAPSHOT, EpisodeRecord
from sampleforge.workers.frozen import FrozenPort, FrozenStream
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
    ``monotonic``). ``rebuilt``: the number of rebuilt
    environments that the counters already include.
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
        for each in self.streams:
            if isinstance(each, FrozenStream):
                each.begin(taken_over=each not in before)

    def _frozen_stream(self, seat: Stream, port: FrozenPort) -> FrozenStream:
        key = seat.id.seat, port.policy
        if key not in self._frozen:
            self._frozen[key] = FrozenStream(seat, port)
        return self._frozen[key]

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
            )
            for number, (seat, part) in enumerate(trained, 1)
        ]

    def _opponent(self, game: FinishedGame) -> tuple[int, float]:
        """Return the snapshot of the first frozen opponent in a game, if one has played all of it,
        and its return."""
        for each in (each for each in self.streams if isinstance(each, FrozenStream)):
            part = game.parts.get(each.seat.id.seat)
            if part is not None and part.player == FROZEN:
                snapshot = each.opponent(game.row)
                return snapshot, 0.0 if snapshot == NO_SNAPSHOT else part.ret
        return NO_SNAPSHOT, 0.0
