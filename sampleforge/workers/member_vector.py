"""The env vector of a member of a population, whose environments begin anew with each segment."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sampleforge.env.vector import Array, EnvVector, Episode, StepOut
from sampleforge.env.wrapper import VectorWrapper
from sampleforge.shared.member_board import MemberBoard


class MemberVector(VectorWrapper):
    """The env vector that ``make(seed)`` returns, and another one for each segment of the member.

    When a segment begins, because the member's weights were replaced by copies of another's, the
    environments are made anew, with the seed of the segment. The step that this takes is dropped:
    it is not valid, and truncates the episodes in progress, which are not reported. So a segment
    depends on nothing that earlier weights have done, and its episodes are its own.

    It also counts the member's env steps in ``board``, as those of its ``stream``-th stream, and
    sets the reward-shaping numbers of the environments.
    """

    def __init__(self, make: Callable[[int], EnvVector], board: MemberBoard, stream: int) -> None:
        self._make = make
        self._board = board
        self._stream = stream
        self._shaping_number = 0
        segment = board.segment
        self._segment = segment.number
        super().__init__(make(segment.seed))
        self._shape_rewards()
        self._begins_anew = False

    @property
    def ready(self) -> bool:
        return self._begins_anew or self.inner.ready

    def rescale_actions(self) -> None:
        """Do nothing: the env vectors rescale actions themselves, as they were made."""

    def reset(self, obs: Mapping[str, Array]) -> None:
        self.inner.reset(obs)
        self._board.set_restarted(self._stream, self._segment)

    def send(self, actions: Mapping[str, Array]) -> None:
        self._begins_anew = self._board.segment.number != self._segment
        if self._board.shaping_number != self._shaping_number:
            self._shape_rewards()
        if not self._begins_anew:
            self.inner.send(actions)

    def recv(self, out: StepOut) -> list[Episode]:
        if self._begins_anew:
            self._begin_anew(out)
            return []
        episodes = self.inner.recv(out)
        self._board.add_sampled(self._stream, self.valid_rows)
        return episodes

    def _begin_anew(self, out: StepOut) -> None:
        before, segment = self.inner, self._board.segment
        before.close()
        vector = self._make(segment.seed)
        # These count the faults of all environments of this worker.
        vector.rebuilt, vector.fault = before.rebuilt, before.fault
        vector.guard = before.guard
        self.inner, self._segment = vector, segment.number
        self._shape_rewards()
        vector.reset(out.obs)
        out.reward.fill(0.0)
        out.terminated.fill(False)
        out.truncated.fill(True)
        out.valid.fill(False)
        out.first.fill(True)
        for name, leaf in (out.final_obs or {}).items():
            leaf[...] = out.obs[name]  # no episode has ended, but its value may be computed
        self._begins_anew = False
        self._board.set_restarted(self._stream, segment.number)

    def _shape_rewards(self) -> None:
        self._shaping_number = self._board.shaping_number
        if self._shaping_number:
            self.inner.set_reward_shaping(self._board.shaping)
