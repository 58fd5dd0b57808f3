"""Values that are not finite end at the env vector: nothing behind it ever sees NaN or inf.

Every observation and reward is checked in `EnvVector.recv`, at each step, before anything is made
of it. A whole rollout need not be dropped then, as the policy has not acted on the value and no
recurrent state has taken it in. What happens to a row depends on where the value was:

* The observation or the reward of a step within an episode: that step is dropped (``valid`` is
  False: no loss, trace, n-step window or statistic reads it, and the steps before it bootstrap from
  the last good observation), the episode is not counted, and the row begins a new episode at once,
  as its state may be broken for good.
* The same in a VectorEnv that cannot reset one row (next_step and same_step, unless it is
  gymnasium's own): the observation is zeroed, and all steps up to the end of the episode are
  dropped.
* The reward of an episode's last step: that step is dropped and the episode is not counted.
* The final observation of an episode that terminated: its bad elements are zeroed. No loss reads
  it. Of one that was truncated: its value would be the bootstrap, so the last step is dropped.
* The first observation of an episode: the row begins another one.

`MAX_IN_A_ROW` such events of one row in a row raise `NotFiniteError`; zeroed final observations are
none. In an episode that cannot be left, every `GOOD_STEPS` dropped steps are one.
"""

from __future__ import annotations

import numpy as np

MAX_IN_A_ROW = 10
"""Events of one row in a row; an episode that counts, or so many good steps, ends the series:"""
GOOD_STEPS = 100


class NotFiniteError(ValueError):
    """Observations or rewards were not finite too often in a row."""


class NotFiniteEvents:
    """Counts what was not finite in the rows of one env vector. ``dropped_steps``: env steps that
    were dropped for it; ``first``: the first event as text, empty before."""

    def __init__(self, env_id: str, rows: int) -> None:
        self.dropped_steps = 0
        self.first = ""
        self._env_id = env_id
        self._in_a_row = np.zeros(rows, np.int64)
        self._latest = np.zeros(rows, np.int64)  # step of each row's latest event
        self._dropped = np.zeros(rows, np.int64)  # steps of each row, from that one on

    def add(self, row: int, step: int, what: str) -> None:
        """Count an event at ``step`` of the vector; ``what``: such as "the reward is nan". Raises
        NotFiniteError if it is one too many."""
        good_steps = step - int(self._latest[row]) - int(self._dropped[row])
        if good_steps > GOOD_STEPS:
            self._in_a_row[row] = 0
        self._in_a_row[row] += 1
        self._latest[row], self._dropped[row] = step, 0
        found = f"{self._env_id}, row {row}: {what}"
        self.first = self.first or found
        if self._in_a_row[row] >= MAX_IN_A_ROW:
            raise NotFiniteError(
                f"{found}; this row gave values that are not finite {MAX_IN_A_ROW} times in a row, "
                f"with at most {GOOD_STEPS} good steps between two; correct the environment: "
                "observations and rewards must be finite, also as float32 (at most 3.4e38), and "
                "an episode whose simulation breaks down must terminate"
            )

    def drop_step(self, row: int) -> None:
        """Count a step that is dropped."""
        self.dropped_steps += 1
        self._dropped[row] += 1

    def is_due(self, row: int) -> bool:
        """Whether so many steps were dropped since the latest event that another one counts: in an
        episode that cannot be left."""
        return int(self._dropped[row]) >= GOOD_STEPS

    def episode_counts(self, row: int) -> None:
        """The row has finished an episode that counts."""
        self._in_a_row[row] = 0
