"""The evaluator worker, which plays episodes with a copy of the weights while training goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic

from sampleforge.algos.policy import FrozenPolicy
from sampleforge.env.starting import told_of_rows
from sampleforge.env.vector import EnvVector
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from sampleforge.shared.counters import Progress
from sampleforge.shared.records import Evaluation, Evaluations
from sampleforge.shared.wakeup import Wakeup
from sampleforge.shared.weights import SharedWeights
from sampleforge.workers.episode_player import EpisodePlayer, outcome
from sampleforge.workers.worker import EventDriven

log = logging.getLogger(__name__)

NewModel = Callable[[], ActorCritic | QNetwork]

POLL_INTERVAL = 0.1
"""Seconds between the checks of a waiting evaluator on the progress of the training."""


class EvaluatorWorker(EventDriven):
    """Begins an evaluation at every multiple of ``interval`` env steps of training, or, if an
    evaluation takes longer than that, as soon as it is over.

    It copies the newest weights at the beginning of an evaluation, so that one policy takes all
    steps. All evaluations use the same seed and make new env rows. Their env steps are not
    experience, and are not counted as env steps of the run.

    In a multi-agent environment the policy plays all agents of the agent group ``group``, and
    ``others`` has the models and weights that play the other groups.
    """

    name = "evaluator"

    def __init__(
        self,
        make_envs: Callable[[], EnvVector],
        new_model: NewModel,
        weights: SharedWeights,
        progress: Progress,
        results: Evaluations,
        wakeup: Wakeup,
        counter_row: int,
        *,
        interval: int,
        episodes: int,
        stochastic: bool,
        seed: int,
        group: int = 0,
        others: Mapping[int, tuple[NewModel, SharedWeights]] | None = None,
    ) -> None:
        self._make_envs = make_envs
        self._new_model = new_model
        self._weights = weights
        self._progress = progress
        self._results = results
        self._wakeup = wakeup
        self._counter_row = counter_row
        self._interval = interval
        self._episodes = episodes
        self._stochastic = stochastic
        self._seed = seed
        self._group = group
        self._others = others or {}
        self._due = self._multiple_after(progress.base_env_steps)
        self._envs: EnvVector | None = None
        self._player: EpisodePlayer | None = None
        self._warned = False
        self._rebuilt = 0

    def start(self) -> None:
        self._count = self._progress.counters.row(self._counter_row)
        self._count["heartbeat"][0] = monotonic()
        self._model = self._new_model().eval()
        self._tensors = self._model.state_dict()
        self._other_models = {of: make().eval() for of, (make, _) in self._others.items()}

    def step(self) -> bool:
        """Begin an evaluation if it is due, or take one step of the current one."""
        self._beat()
        if self._player is None:
            return self._begin()
        self._player.step()
        self._count["split_steps"] += 1
        self._count_rebuilt()
        if self._player.done:
            self._finish(self._player)
        return True

    def wait(self, timeout: float) -> None:
        super().wait(min(timeout, POLL_INTERVAL))

    def close(self) -> None:
        """Cancel the current evaluation, if there is one, and close its environments."""
        self._player = None
        if self._envs is not None:
            self._envs.close()
            self._envs = None

    def _beat(self) -> None:
        self._count["heartbeat"][0] = monotonic()

    def _count_rebuilt(self) -> None:
        assert self._envs is not None
        if self._envs.rebuilt != self._rebuilt:
            faults = self._progress.counters.first_fault
            faults.put(self._counter_row, f"{self._envs.fault}", monotonic())
            self._count["env_restarts"] += self._envs.rebuilt - self._rebuilt
            self._rebuilt = self._envs.rebuilt

    def _multiple_after(self, env_steps: int) -> int:
        return (env_steps // self._interval + 1) * self._interval

    def _begin(self) -> bool:
        env_steps = self._progress.env_steps
        if env_steps < self._due or self._progress.done or not self._results.has_room():
            return False
        self._due = self._multiple_after(env_steps)
        self._frozen_at = env_steps
        _, self._version = self._weights.read(self._tensors)
        for of, (_, weights) in self._others.items():
            weights.read(self._other_models[of].state_dict())
        with told_of_rows(self._beat):
            self._envs, self._rebuilt = self._make_envs(), 0
        self._player = EpisodePlayer(
            self._envs,
            FrozenPolicy(self._model),
            self._episodes,
            stochastic=self._stochastic,
            seed=self._seed,
            group=self._group,
            others={of: FrozenPolicy(model) for of, model in self._other_models.items()},
        )
        return True

    def _finish(self, player: EpisodePlayer) -> None:
        cut = sum(episode.cut for episode in player.played)
        if cut and not self._warned:
            self._warned = True
            log.warning(
                "%d of %d episodes of the evaluation were cut at %d steps, because the environment "
                "has no time limit; --max-episode-steps sets one",
                *(cut, len(player.played), player.limit),
            )
        self._count["episodes"] += len(player.played)
        self._results.put(Evaluation(self._version, self._frozen_at, **outcome(player.played)))
        self.close()
