"""Evaluation by a function of the user's own (``--evaluation-function package.module:function``).

The function is called with an `EvaluationContext`, in the evaluator's process, and returns metrics
by name::

    def evaluate(context):
        easy = context.play()
        hard = context.play(env_kwargs={"difficulty": 3})
        return {**easy, "hard_return_mean": hard["return_mean"]}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sampleforge.algorithms.acting import FrozenPolicy
from sampleforge.env.config import EnvConfig
from sampleforge.shared.records import Evaluation
from sampleforge.workers.episode_player import PlayedEpisode, outcome

EXTRA_BYTES = 4096
"""Room for the metrics of a function of the user's own or of the types of agents, as JSON."""


class EvaluationCancelled(Exception):
    """Ends the user's function, because the training has ended."""


class Play(Protocol):
    """Plays this evaluator's part of so many episodes."""

    def __call__(
        self, env: EnvConfig, episodes: int, *, stochastic: bool
    ) -> Sequence[PlayedEpisode]: ...


@dataclass
class EvaluationContext:
    """What a function that evaluates is given.

    ``policy``: acts with the weights that are evaluated, see `FrozenPolicy.act`. ``env``: the
    environment of the evaluation. ``env_steps`` (of training) and ``policy_version``: of the
    weights. ``episodes``, ``stochastic``: as --evaluate-episodes and --evaluate-stochastic say;
    ``seed``: of all evaluations. ``evaluator`` of ``evaluators`` calls the function: each of them
    does, plays its part in `play`, and their metrics are combined.

    The function must call `play` or ``alive()`` at least every --env-timeout seconds; both raise
    `EvaluationCancelled` when the training has ended.
    """

    policy: FrozenPolicy
    env: EnvConfig
    env_steps: int
    policy_version: int
    episodes: int
    stochastic: bool
    seed: int
    evaluator: int
    evaluators: int
    alive: Callable[[], None]
    player: Play
    num_played: int = field(default=0, init=False)
    """Episodes that this evaluator has played so far."""

    def play(
        self,
        episodes: int | None = None,
        *,
        stochastic: bool | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, float]:
        """Play ``episodes`` episodes, all evaluators together (None: --evaluate-episodes), and
        return the statistics of this evaluator's: episodes, return_mean, return_std, return_min,
        return_max (raw rewards), length_mean (env steps). ``env_kwargs`` override those of the
        environment. Raises ValueError if an evaluator would have no episode."""
        count = self.episodes if episodes is None else episodes
        if count < self.evaluators:
            raise ValueError(f"{count} episodes for {self.evaluators} evaluators: too few")
        env = self.env
        if env_kwargs:
            env = dataclasses.replace(env, env_kwargs={**env.env_kwargs, **env_kwargs})
        chosen = self.stochastic if stochastic is None else stochastic
        played = self.player(env, count, stochastic=chosen)
        self.num_played += len(played)
        return outcome(played)


def evaluation_of(name: str, metrics: Any, context: EvaluationContext) -> Evaluation:
    """Return the evaluation of which the function ``name`` has returned ``metrics``. Raises
    TypeError for something else than numbers by name, and ValueError for a name that is taken."""
    try:
        given = {str(key): float(value) for key, value in metrics.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError(
            f"--evaluation-function {name} returned {metrics!r:.200}, but must return a dict of "
            "numbers by name, such as the one that context.play() returns"
        ) from error
    for reserved in ("env_steps", "policy_version"):
        if reserved in given:
            raise ValueError(
                f"--evaluation-function {name} returned a metric {reserved!r}, which is a name of "
                "the evaluated weights; give it another name"
            )
    given.setdefault("episodes", context.num_played)
    return Evaluation.of(context.policy_version, context.env_steps, given)
