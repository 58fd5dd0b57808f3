"""The treatment of NaN and inf from environments, which stops them in the env vector.

`EnvVector.recv` checks every observation and reward at each step, before they are used. So the
policy has not acted on the value and no recurrent state contains it, and the rest of the rollout
can be kept. The treatment of a row depends on the place of the value:

* The observation or the reward of a step within an episode: that step is dropped (``valid`` is
  False: no loss, trace, n-step window or statistic reads it, and the steps before it bootstrap from
  the last good observation), the episode is not counted, and the row begins a new episode at once,
  because its state may be broken permanently.
* The same in a VectorEnv that cannot reset one row (next_step and same_step, unless it is
  gymnasium's own): the observation is zeroed, and all steps up to the end of the episode are
  dropped.
* The reward of an episode's last step: that step is dropped and the episode is not counted.
* The final observation of an episode that terminated: its bad elements are zeroed. No loss reads
  it. If the episode was truncated, the value of this observation would be the bootstrap: the last
  step is dropped.
* The first observation of an episode: the row begins another episode.

`MAX_IN_A_ROW` such events of a row in succession raise `NotFiniteError`. Zeroed final observations
are not events. In an episode that cannot be left, every `GOOD_STEPS` dropped steps are an event.
"""

from __future__ import annotations

import numpy as np

MAX_IN_A_ROW = 10
"""Number of successive events of one row that end the run. An episode that counts, or more than
`GOOD_STEPS` good steps, end a succession."""
GOOD_STEPS = 100


class NotFiniteError(ValueError):
    """Observations or rewards were not finite too often in succession."""


class NotFiniteEvents:
    """Counts the events of values that are not finite in the rows of one env vector.
    ``dropped_steps``: env steps that were dropped because of them; ``first``: the first event as
    text, or empty. ``far_values``: numbers of observations that were bounded because they were far
    beyond all others (`sampleforge.ops.far_values`); ``first_far``: the first one of each leaf, as
    text; ``bounds_far``: False leaves them as they are, for checks of the environment."""

    def __init__(self, env_id: str, rows: int) -> None:
        self.dropped_steps = 0
        self.first = ""
        self.far_values = 0
        self.first_far: dict[str, str] = {}
        self.bounds_far = True
        self._env_id = env_id
        self._in_a_row = np.zeros(rows, np.int64)
        self._latest = np.zeros(rows, np.int64)  # step of each row's latest event
        self._dropped = np.zeros(rows, np.int64)  # dropped steps of each row since that event

    def add(self, row: int, step: int, what: str) -> None:
        """Count an event at ``step`` of the vector; ``what`` describes it, such as "the reward is
        nan". Raises NotFiniteError after too many in succession."""
        good_steps = step - int(self._latest[row]) - int(self._dropped[row])
        if good_steps > GOOD_STEPS:
            self._in_a_row[row] = 0
        self._in_a_row[row] += 1
        self._latest[row], self._dropped[row] = step, 0
        event = f"{self._env_id}, row {row}: {what}"
        self.first = self.first or event
        if self._in_a_row[row] >= MAX_IN_A_ROW:
            raise NotFiniteError(
                f"{event}; this row gave values that are not finite {MAX_IN_A_ROW} times in a row, "
                f"with at most {GOOD_STEPS} good steps between two; correct the environment: "
                "observations and rewards must be finite, also as float32 (at most 3.4e38), and "
                "an episode whose simulation breaks down must terminate"
            )

    def drop_step(self, row: int) -> None:
        """Count a dropped step of ``row``."""
        self.dropped_steps += 1
        self._dropped[row] += 1

    def is_due(self, row: int) -> bool:
        """Return whether `GOOD_STEPS` steps of ``row`` were dropped since its latest event, so that
        the next one is an event again: in an episode that cannot be left."""
        return int(self._dropped[row]) >= GOOD_STEPS

    def episode_counts(self, row: int) -> None:
        """Reset the succession of ``row``, which has finished an episode that counts."""
        self._in_a_row[row] = 0
