"""What the evaluators of one policy share, so that they play parts of the same evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.weights import SharedWeights


class EvaluationBoard:
    """The weights and the number of the current evaluation, and which of the evaluators have played
    their part of it.

    Evaluator 0 leads: it begins an evaluation when all have finished the one before. There is no
    lock: the number is written after everything else, and each evaluator writes only its own entry.
    The successor of a killed evaluator finds its part unfinished and plays it again, with the same
    weights.
    """

    def __init__(self, evaluators: int, states: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """``states``: state dicts of the models that play, whose tensors are not copied."""
        self.weights = [SharedWeights(state) for state in states]
        self._arrays = SharedArrays(
            {
                "number": ((1,), "int64"),
                "env_steps": ((1,), "int64"),
                "finished": ((evaluators, 8), "int64"),  # a cache line each
            }
        )

    @property
    def number(self) -> int:
        """The number of the current or last evaluation, from 1; 0 before the first."""
        return int(self._arrays["number"][0])

    @property
    def env_steps(self) -> int:
        """The env steps of training at which the current evaluation's weights were copied."""
        return int(self._arrays["env_steps"][0])

    def begin(self, env_steps: int) -> None:
        """Begin the next evaluation, whose weights have been published to ``weights``. Called by
        the leader."""
        self._arrays["env_steps"][0] = env_steps
        self._arrays["number"][0] += 1  # last: the evaluators begin now

    def finish(self, evaluator: int, number: int) -> None:
        """Record that ``evaluator`` has played its part of evaluation ``number``."""
        self._arrays["finished"][evaluator, 0] = number

    def has_finished(self, evaluator: int) -> bool:
        """Return whether ``evaluator`` has no part of the current evaluation left to play."""
        return bool(self._arrays["finished"][evaluator, 0] == self.number)

    @property
    def all_finished(self) -> bool:
        """Whether all evaluators have played their parts."""
        return bool((self._arrays["finished"][:, 0] == self.number).all())
