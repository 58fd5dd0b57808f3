"""Splits: the parts of an actor's env vector, each with a stream for every seat."""

from __future__ import annotations

from collections.abc import Sequence

from sampleforge.env.vector import EnvVector, Episode
from sampleforge.shared.records import EpisodeRecord
from sampleforge.workers.frozen import FrozenPort, FrozenStream
from sampleforge.workers.policy_mapping import StreamId
from sampleforge.workers.stream import PolicyPort, Stream


class Split:
    """One part of an actor's env vector, whose environments step together.

    ``seats``: a stream per seat; a single-agent environment has one. ``streams``: what acts in each
    seat during the current rollout, which is a `FrozenStream` while a frozen policy plays the seat.
    ``learning``: those that fill slots, in step with each other; ``stream`` is the first of them.
    ``stepping``: whether its environments are taking a step. ``rebuilt``: the number of rebuilt
    environments that the counters already include.
    """

    def __init__(self, actor: int, index: int, env: EnvVector, rollouts: int) -> None:
        self.index = index
        self.env = env
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
        self.rebuilt = 0
        self._frozen: dict[tuple[int, int], FrozenStream] = {}

    def begin(self, ports: Sequence[PolicyPort | FrozenPort], slots: Sequence[int]) -> None:
        """Begin a rollout, in which the policies of ``ports`` play the seats. ``slots``: one for
        each policy that is trained."""
        free = iter(slots)
        before = self.streams
        for seat, port in zip(self.seats, ports, strict=True):
            if isinstance(port, PolicyPort):
                seat.begin(port, next(free))
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

    def records(self, stream: Stream, episodes: Sequence[Episode]) -> list[EpisodeRecord]:
        """Return the records of episodes of one stream that have just ended."""
        actor, split, seat, *_ = stream.id
        frozen = [each for each in self.streams if isinstance(each, FrozenStream)]
        return [
            EpisodeRecord(
                *(actor, split, row, ret, length, stream.policy, seat),
                *(frozen[0].opponent(row) if frozen else ()),
            )
            for row, ret, length in episodes
        ]
