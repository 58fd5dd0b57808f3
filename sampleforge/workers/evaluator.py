"""The evaluator worker, which plays episodes with a copy of the weights while training goes on."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from sampleforge.algorithms.acting import FrozenPolicy
from sampleforge.env.config import EnvConfig
from sampleforge.env.interface import told_of_rows
from sampleforge.env.tasks import TaskSource, at_newest
from sampleforge.env.user_code import import_function
from sampleforge.env.vector import EnvVector
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from sampleforge.shared.newest import SharedWeights
from sampleforge.shared.records import OF_EPISODES, Evaluation, EvaluationBoard, Evaluations
from sampleforge.workers.episode_player import (
    ALL,
    EpisodePlayer,
    EvaluationPart,
    PlayedEpisode,
    evaluation_envs,
    known_episodes,
    outcome,
)
from sampleforge.workers.worker import EventDriven, Post

EXTRA_BYTES = 4096
"""Room for the metrics of a function of the user's own or of the types of agents, as JSON."""


class EvaluationCancelled(Exception):
    """Ends the user's function, because the training has ended."""


Play = Callable[[EnvConfig, int, bool], Sequence[PlayedEpisode]]
"""``play(env, episodes, stochastic)`` plays this evaluator's part of so many episodes."""


@dataclass
class EvaluationContext:
    """What a function of the user's own that evaluates (``--evaluate-function
    package.module:function``) is given. It is called in the evaluator's process, and returns
    metrics by name::

        def evaluate(context):
            easy = context.play()
            hard = context.play(env_kwargs={"difficulty": 3})
            return {**easy, "hard_return_mean": hard["return_mean"]}

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
        played = self.player(env, count, chosen)
        self.num_played += len(played)
        return outcome(played)


def evaluation_of(name: str, metrics: Any, context: EvaluationContext) -> Evaluation:
    """Return the evaluation of which the function ``name`` has returned ``metrics``. Raises
    TypeError for something else than numbers by name, and ValueError for a name that is taken."""
    try:
        given = {str(key): float(value) for key, value in metrics.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError(
            f"--evaluate-function {name} returned {metrics!r:.200}, but must return a dict of "
            "numbers by name, such as the one that context.play() returns"
        ) from error
    for reserved in ("env_steps", "policy_version"):
        if reserved in given:
            raise ValueError(
                f"--evaluate-function {name} returned a metric {reserved!r}, which is a name of "
                "the evaluated weights; give it another name"
            )
    given.setdefault("episodes", context.num_played)
    return Evaluation.of(context.policy_version, context.env_steps, given)


log = logging.getLogger(__name__)

NewModel = Callable[[], ActorCritic | QNetwork]

POLL_INTERVAL = 0.1
"""Seconds between the checks of a waiting evaluator on the progress of the training."""


@dataclass(frozen=True)
class EvaluationSettings:
    """What an evaluator plays, and when. ``interval``: env steps of training; ``episodes``: of all
    evaluators together; ``part``: this evaluator's; ``group``: the agent group that the policy
    plays; ``function``: the name of the user's evaluation function."""

    interval: int
    episodes: int
    stochastic: bool
    seed: int
    part: EvaluationPart = ALL
    group: int = 0
    function: str | None = None


@dataclass(frozen=True)
class EvaluatorChannels:
    """The channels of an evaluator. ``weights``: of the policy; ``others``: models and weights of
    the policies that play the other agent groups, by the group's index; ``board``: shared with the
    other evaluators (None: there are none); ``tasks``: of the environments, if they take any."""

    weights: SharedWeights
    results: Evaluations
    others: Mapping[int, tuple[NewModel, SharedWeights]] = field(default_factory=dict)
    board: EvaluationBoard | None = None
    tasks: TaskSource | None = None


class EvaluatorWorker(EventDriven):
    """Begins an evaluation at every multiple of ``interval`` env steps of training, or, if an
    evaluation takes longer than that, as soon as it is over. Once the training is over and the
    learners have published their last weights (`TrainingClock.settle`), it evaluates these, unless
    it has begun to: an evaluation of older ones is dropped.

    It copies the newest weights at the beginning of an evaluation, so that one policy takes all
    steps. All evaluations use the same seed and make new env rows of ``env``. Their env steps are
    not experience, and are not counted as env steps of the run. Of several evaluators the first one
    copies the weights for all, and begins when all have finished the evaluation before.
    """

    def __init__(
        self,
        env: EnvConfig,
        new_model: NewModel,
        channels: EvaluatorChannels,
        settings: EvaluationSettings,
        post: Post,
    ) -> None:
        part = settings.part
        several = part.evaluators > 1
        super().__init__(f"evaluator {part.evaluator}" if several else "evaluator", post)
        self._env = env
        self._new_model = new_model
        self._channels = channels
        self._progress = post.progress
        self._settings = settings
        self._due = self._multiple_after(post.progress.base_env_steps)
        self._envs: EnvVector | None = None
        self._player: EpisodePlayer | None = None
        self._warned = False
        self._rebuilt = 0
        self._version = self._frozen_at = 0  # policy version and env steps of the weights
        self._begun: int | None = None
        """The policy version of the last evaluation that this evaluator has begun by itself."""
        self._number = 0  # of the evaluation on the board

    def start(self) -> None:
        super().start()
        self._beat()
        self._model = self._new_model().eval()
        self._tensors = self._model.state_dict()
        others = self._channels.others.items()
        self._other_models = {of: make().eval() for of, (make, _) in others}
        board = self._channels.board
        if board is not None and board.number:  # the successor of a killed evaluator
            self._due = self._multiple_after(board.env_steps)

    def step(self) -> bool:
        """Begin an evaluation if it is due, or take one step of the current one."""
        self._beat()
        if self._player is not None and self._is_outdated:
            self.close()
        if self._player is None:
            return self._begin()
        self._step(self._player)
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

    def _step(self, player: EpisodePlayer) -> None:
        player.step()
        self._count["split_steps"] += 1
        self._count_rebuilt()

    def _count_rebuilt(self) -> None:
        assert self._envs is not None
        if self._envs.rebuilt != self._rebuilt:
            faults = self._progress.counters.first_fault
            faults.put(self._post.row, f"{self._envs.fault}", monotonic())
            self._count["env_restarts"] += self._envs.rebuilt - self._rebuilt
            self._rebuilt = self._envs.rebuilt

    def _multiple_after(self, env_steps: int) -> int:
        return (env_steps // self._settings.interval + 1) * self._settings.interval

    @property
    def _is_outdated(self) -> bool:
        """Whether the evaluation under way is not of the last weights, which are known."""
        if not self._settled:
            return False
        board = self._channels.board
        if board is not None and self._settings.part.evaluator:
            return board.number != self._number
        return self._version != self._channels.weights.version

    @property
    def _settled(self) -> bool:
        return self._progress.clock.settled

    def _begin(self) -> bool:
        if self._progress.done and not self._settled:
            return False
        if not self._channels.results.has_room():
            return False
        if not self._take_weights():
            return False
        if self._settings.function is not None:
            self._evaluate_by_function()
            return True
        episodes, stochastic = self._settings.episodes, self._settings.stochastic
        self._player = self._new_player(self._env, episodes, stochastic=stochastic)
        return True

    def _new_player(self, env: EnvConfig, episodes: int, *, stochastic: bool) -> EpisodePlayer:
        """Make env rows, and return the player of this evaluator's part of so many episodes."""
        settings, part = self._settings, self._settings.part
        with told_of_rows(self._beat):
            self._envs = at_newest(
                self._channels.tasks, evaluation_envs, env, episodes, settings.seed, part
            )
        self._rebuilt = 0
        return EpisodePlayer(
            self._envs,
            FrozenPolicy(self._model),
            part.episodes(episodes),
            stochastic=stochastic,
            seed=part.seed(settings.seed),
            group=settings.group,
            others={of: FrozenPolicy(model) for of, model in self._other_models.items()},
        )

    def _take_weights(self) -> bool:
        """Copy the weights of the evaluation that begins now. Return False if none begins."""
        board, index = self._channels.board, self._settings.part.evaluator
        if board is None:
            return self._take_newest()
        if index == 0 and (board.all_finished or self._settled) and self._take_newest():
            states = [self._tensors, *(m.state_dict() for m in self._other_models.values())]
            for weights, state in zip(board.weights, states, strict=True):
                weights.publish(state, self._version)
            board.begin(self._frozen_at)
            self._number = board.number
            return True
        if board.has_finished(index):
            return False
        self._number = board.number  # before the weights: a newer number makes these outdated
        _, self._version = board.weights[0].read(self._tensors)
        for weights, model in zip(board.weights[1:], self._other_models.values(), strict=True):
            weights.read(model.state_dict())
        self._frozen_at = board.env_steps
        return True

    def _take_newest(self) -> bool:
        """Copy the newest weights, if an evaluation is due; return whether it is."""
        env_steps = self._progress.env_steps
        if self._settled:
            if self._begun == self._channels.weights.version:
                return False
        elif env_steps < self._due:
            return False
        self._due = self._multiple_after(env_steps)
        self._frozen_at = env_steps
        _, self._version = self._channels.weights.read(self._tensors)
        for of, (_, weights) in self._channels.others.items():
            weights.read(self._other_models[of].state_dict())
        self._begun = self._version
        return True

    def _finish(self, player: EpisodePlayer) -> None:
        self._count_episodes(player)
        known = {f"{n}{OF_EPISODES}": c for n, c in known_episodes(player.played).items()}
        values = {**outcome(player.played), **known}
        self._report(Evaluation.of(self._version, self._frozen_at, values))
        self.close()

    def _count_episodes(self, player: EpisodePlayer) -> None:
        """Count the episodes, and warn of those that were cut."""
        self._count["episodes"] += len(player.played)
        cut = sum(episode.cut for episode in player.played)
        if cut and not self._warned:
            self._warned = True
            log.warning(
                "%d of %d episodes of the evaluation were cut at %d steps, because the environment "
                "has no time limit; --max-episode-steps sets one",
                cut,
                len(player.played),
                player.limit,
            )

    def _report(self, evaluation: Evaluation) -> None:
        self._channels.results.put(evaluation)
        if self._channels.board is not None:
            self._channels.board.finish(self._settings.part.evaluator, self._number)

    def _evaluate_by_function(self) -> None:
        """Have the user's function evaluate, in one step."""
        settings, name = self._settings, self._settings.function
        assert name is not None
        context = EvaluationContext(
            policy=FrozenPolicy(self._model),
            env=self._env,
            env_steps=self._frozen_at,
            policy_version=self._version,
            episodes=settings.episodes,
            stochastic=settings.stochastic,
            seed=settings.seed,
            evaluator=settings.part.evaluator,
            evaluators=settings.part.evaluators,
            alive=self._go_on,
            player=self._play,
        )
        try:
            metrics = import_function("--evaluate-function", name)(context)
        except EvaluationCancelled:
            return
        self._report(evaluation_of(name, metrics, context))

    def _play(self, env: EnvConfig, episodes: int, stochastic: bool) -> Sequence[PlayedEpisode]:
        """Play this evaluator's part of so many episodes at once, for the user's function."""
        player = self._new_player(env, episodes, stochastic=stochastic)
        try:
            while not player.done:
                self._go_on()
                self._step(player)
        finally:
            self.close()
        self._count_episodes(player)
        return player.played

    def _go_on(self) -> None:
        """Beat, and end the user's function if it does not evaluate the last weights of a training
        that has ended."""
        self._beat()
        if self._is_outdated:
            raise EvaluationCancelled
