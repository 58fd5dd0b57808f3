"""Results of evaluations, from the evaluator to the driver: fixed-size records, without a lock."""

from __future__ import annotations

from typing import NamedTuple

from sampleforge.data.shared import SharedArrays


class Evaluation(NamedTuple):
    """What one evaluation found: ``policy_version`` and ``env_steps`` (of training, so far) are
    those of the moment at which its weights were copied; returns are raw, lengths in env steps."""

    policy_version: int
    env_steps: int
    episodes: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float


class Evaluations:
    """The evaluator puts and the driver takes. A ring with one producer and one consumer, so that
    an evaluator which is killed leaves nothing locked, and its successor goes on where it was."""

    def __init__(self, capacity: int = 256) -> None:
        self._arrays = SharedArrays(
            {
                "records": ((capacity, len(Evaluation._fields)), "float64"),
                "head": ((1,), "int64"),
                "tail": ((1,), "int64"),
            }
        )

    def has_room(self) -> bool:
        """Whether one more may be put."""
        arrays = self._arrays
        return int(arrays["tail"][0] - arrays["head"][0]) < len(arrays["records"])

    def put(self, evaluation: Evaluation) -> None:
        assert self.has_room(), "look before an evaluation is begun"
        records, tail = self._arrays["records"], self._arrays["tail"]
        records[tail[0] % len(records)] = evaluation
        tail[0] += 1  # last: a record that is half written is not there

    def take(self) -> list[Evaluation]:
        """All that wait, in their order, without waiting for more."""
        records, head = self._arrays["records"], self._arrays["head"]
        tail = int(self._arrays["tail"][0])
        found = []
        for at in range(int(head[0]), tail):
            version, env_steps, episodes, *floats = records[at % len(records)].tolist()
            found.append(Evaluation(int(version), int(env_steps), int(episodes), *floats))
        head[0] = tail
        return found
