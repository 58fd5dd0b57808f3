"""Tournaments: every pair of policies of some runs plays games, which give standings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sampleforge.algorithms.acting import FrozenPolicy
from sampleforge.config import ConfigError, typed
from sampleforge.env.closing import close_in_time
from sampleforge.env.interface import told_of_rows
from sampleforge.env.place import row_seeds
from sampleforge.env.registry import for_evaluation, make_vector
from sampleforge.env.vector import EnvVector
from sampleforge.evaluation import NO_TRUST
from sampleforge.loaded_policy import load_model
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from sampleforge.populations.self_play import load_snapshots
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.trust import Trust, trusted_config
from sampleforge.run.own_code import playing_directory
from sampleforge.run.screen.evaluating import EvaluationDisplay
from sampleforge.run.screen.progress import short
from sampleforge.runtime.torch_settings import limit_threads
from sampleforge.spec import EnvSpec
from sampleforge.tools.tournament.games import GamePlayer, Standings, round_robin
from sampleforge.topologies.config import AnyConfig

Model = ActorCritic | QNetwork
MAX_ROWS = 64
"""Games that are played at the same time."""
OF_A_GAME = (
    "env",
    "env_kwargs",
    "max_episode_steps",
    "action_repeat",
    "rescale_actions",
    "clip_observations",
)
"""Fields of EnvConfig on which depends how a game goes, and what a policy sees and does in it."""


class Player(NamedTuple):
    """A policy that takes part, with the spec of the environment that it was trained on."""

    name: str
    model: Model
    spec: EnvSpec


def load_players(
    folders: Sequence[RunFolder],
    configs: Sequence[AnyConfig],
    which: str,
    *,
    snapshots: bool,
) -> list[Player]:
    """Return all policies of the runs in ``folders``, with the weights of the checkpoint ``which``,
    "latest" or "best"; with ``snapshots``, also those in the pools of self-play runs. They are
    named after the folders. Raises ConfigError for a run without a checkpoint."""
    names = [folder.path.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder.path) for folder in folders]
    players = []
    for folder, config, name in zip(folders, configs, names, strict=True):
        ids: Sequence[str | None] = folder.policy_ids() or [None]
        for policy in ids:
            model, spec, _ = load_model(folder, config, which, policy)
            players.append(Player(name if policy is None else f"{name}/{policy}", model, spec))
        if snapshots:
            taken = list(load_snapshots(folder, model))
            called = snapshot_names(name, [env_steps for env_steps, _ in taken])
            players += [
                Player(own, loaded, spec) for own, (_, loaded) in zip(called, taken, strict=True)
            ]
    return players


def snapshot_names(name: str, env_steps: Sequence[int]) -> list[str]:
    """Return the names of a run's snapshots that were taken at these env steps: with three digits,
    or the exact number if the three digits are those of another one, too."""
    digits = [short(number) for number in env_steps]
    return [
        f"{name}@{few if digits.count(few) == 1 else f'{number:,}'}"
        for few, number in zip(digits, env_steps, strict=True)
    ]


def play_tournament(
    run_dirs: Sequence[Path],
    episodes: int,
    *,
    which: str = "latest",
    snapshots: bool = False,
    stochastic: bool = True,
    seed: int = 0,
    trust: Trust = NO_TRUST,
    display: EvaluationDisplay,
    alive: Callable[[], None] = lambda: None,
) -> Standings:
    """Let every pair of policies of the runs play ``episodes`` episodes; return the standings.

    The same seed gives the same games. ``alive`` is called after the start of each row and before
    each step. Raises ConfigError if the runs have different environments or settings of them, or
    one with a single agent, if there are fewer than two policies, or if a folder names code that
    ``trust`` does not cover.
    """
    folders = [RunFolder.existing(path.absolute()) for path in run_dirs]
    configs = [trusted_config(folder, trust) for folder in folders]
    for folder, config in zip(folders, configs, strict=True):
        _check_env(folders[0], configs[0], folder, config)
    with playing_directory(*configs):
        players = load_players(folders, configs, which, snapshots=snapshots)
        if len(players) < 2:
            raise _too_few(folders[0], run_dirs[0], snapshots=snapshots)
        standings = Standings(configs[0].env, [player.name for player in players])
        alive()
        with ExitStack() as resources, told_of_rows(alive):
            specs = {player.name: player.spec for player in players}
            total = episodes * len(players) * (len(players) - 1) // 2
            alone = any(player.spec.one_per_process for player in players)
            envs = tournament_envs(configs[0], 1 if alone else total, seed)
            resources.callback(close_in_time, envs, partial(display.message, level="warning"))
            resources.callback(alive)
            _check_players(configs[0].env, envs, specs)
            resources.callback(limit_threads(1))
            games = GamePlayer(
                envs,
                [FrozenPolicy(player.model) for player in players],
                round_robin(len(players), episodes),
                stochastic=stochastic,
                seed=seed,
            )
            while not games.done:
                alive()
                games.step()
                display.progress(len(games.played), total, None)
    for played in games.played:
        standings.add(played)
    return standings


def _too_few(folder: RunFolder, given: Path, *, snapshots: bool) -> ConfigError:
    """Return the error of a single policy, that of the run in ``folder``, ``given`` so by the user.
    ``snapshots``: those of the run were to take part."""
    others = ", or --snapshots for those of its self-play"
    if snapshots:
        others = f" (there is no file in {folder.snapshots}, where those of self-play are)"
    return ConfigError(
        f"{given} has one policy, and a tournament needs two; give more runs{others}"
    )


def _check_env(first: RunFolder, expected: AnyConfig, folder: RunFolder, config: AnyConfig) -> None:
    """Raise ConfigError if two runs were trained on different environments, or on other games in
    one: the rows are made as the first run has them."""
    for name in OF_A_GAME:
        one, other = getattr(expected, name), getattr(config, name)
        if one != other:
            raise ConfigError(
                f"{folder.path} was trained with {typed(name, other)}, but {first.path} with "
                f"{typed(name, one)}: policies can only play each other on one environment, with "
                "the same settings; leave out one of the runs"
            )


def tournament_envs(config: AnyConfig, games: int, seed: int) -> EnvVector:
    """Return the rows on which so many games are played, each at its time if they are few."""
    rows = min(MAX_ROWS, games)
    return make_vector(for_evaluation(config), rows, row_seeds(seed, 0, 0, rows))


def _check_players(env: str, envs: EnvVector, players: Mapping[str, EnvSpec]) -> None:
    """Raise ConfigError if the environment ``env``, of which ``envs`` are rows, has one agent, or
    agents with different spaces, or if a player was trained with other spaces. ``players``: by
    name, the spec with which each was trained."""
    present = envs.spec
    if len(envs.seats) < 2:
        raise ConfigError(
            f"{env} has one agent, so there are no games in it; see `sampleforge eval`"
        )
    if present.other_groups:
        raise ConfigError(
            f"the agents of {env} have different observations or actions, so a policy cannot "
            "change sides, and games from one side alone compare the sides more than the policies; "
            "compare the returns of each policy: sampleforge eval RUN --policy policy_0"
        )
    for name, own in players.items():
        if (own.observations, own.actions) != (present.observations, present.actions):
            raise ConfigError(f"{env} has other spaces now than when {name} was trained")
