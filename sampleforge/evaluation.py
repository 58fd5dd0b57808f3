"""The evaluation of a trained policy: raw returns of episodes that a seed makes repeatable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from sampleforge.algos.policy import FrozenPolicy
from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.importable import names_code
from sampleforge.env.scratch import scratch_directory
from sampleforge.env.starting import told_of_rows
from sampleforge.env.vector import EnvVector
from sampleforge.export.onnx_policy import OnnxPolicy
from sampleforge.folder.run_folder import RunFolder
from sampleforge.folder.trust import Trust, imports_code
from sampleforge.loaded_policy import load_model, load_other_groups, read_config
from sampleforge.runtime.threads import limit_threads
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import AnyConfig, roles_of_policies
from sampleforge.workers.episode_player import (
    EpisodePlayer,
    EpisodePolicy,
    evaluation_envs,
    evaluation_seed,
    outcome,
)

EPISODES = 100
"""Default number of episodes."""
FEW_EPISODES = 20
"""Default number of episodes if one takes minutes."""
LONG_S = 60.0
"""Seconds within which every env row must have ended its first episode for `EPISODES` to be
played."""
LOOK_S = 0.05
"""Seconds between two updates of the display."""
NO_TRUST = Trust()


class Display(Protocol):
    """Shows the progress of an evaluation."""

    def message(self, text: str, level: str) -> None: ...
    def progress(self, done: int, total: int, return_mean: float | None) -> None: ...


def evaluate(
    run_dir: str | Path,
    *,
    episodes: int | None = None,
    max_episode_steps: int | None = None,
    stochastic: bool = False,
    seed: int | None = None,
    which: str = "latest",
    policy: str | None = None,
    onnx: str | Path | None = None,
    trust: Trust = NO_TRUST,
    display: Display | None = None,
    alive: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = monotonic,
) -> dict[str, Any]:
    """Play ``episodes`` episodes with the policy of a run folder; see `EpisodePlayer`. None: 100
    episodes, or 20 if one takes minutes. ``policy``: the id of the policy, if the run has several.
    ``onnx``: the file of an exported policy, which plays instead of the checkpoint.
    In a multi-agent environment it plays all agents with its spaces, and the first policies of the
    other groups of agents play those.

    The same seed gives the same episodes; None means the seed of the run's own evaluator. Return
    the values that `sampleforge eval` prints: return_mean, return_std, return_min, return_max,
    episodes, length_mean, episodes_cut (by a limit that the environment itself does not have),
    stochastic, seed, env_steps (of the checkpoint). ``alive`` is called after the start of each row
    and before each step. Numerical libraries have one thread meanwhile, because several are slower
    for a few rows. Raises ConfigError if the folder names code that ``trust`` does not cover, or if
    the exported policy is for other spaces than the environment's.
    """
    folder = RunFolder.existing(Path(run_dir).absolute())
    exported = None if onnx is None else OnnxPolicy(onnx)
    config = read_config(folder, trust)
    with scratch_directory(cwd_importable=imports_code(config)):
        player_policy: EpisodePolicy
        if exported is None:
            model, spec, state = load_model(folder, config, which, policy)
            player_policy = FrozenPolicy(model)
        else:
            player_policy, state = exported, exported.metadata
            named = state.get("policy")
            policy = named if named in roles_of_policies(config).ids else None
        seed = evaluation_seed(config.seed or 0) if seed is None else seed
        limited, limit = _with_limit(config, max_episode_steps)
        display = display or _Silent()
        alive()
        with ExitStack() as resources, told_of_rows(alive):
            envs = evaluation_envs(limited, episodes or EPISODES, seed)
            resources.callback(_close, envs, display, alive)
            resources.callback(limit_threads(1))
            group, others = load_other_groups(folder, config, policy, envs.spec)
            present = envs.spec.agent_groups[group]
            if exported is None:
                _check_same_env(folder, spec, present)
            else:
                exported.check_spaces(present)
                for seat in envs.seats:
                    if envs.spec.group_of(seat.agent) == group:
                        seat.take_converted_actions()
            player = EpisodePlayer(
                envs,
                player_policy,
                episodes or EPISODES,
                stochastic=stochastic,
                seed=seed,
                limit=limit,
                group=group,
                others={index: FrozenPolicy(each) for index, each in others.items()},
            )
            _play(player, config.env, episodes is None, display, alive, clock)
    cut = sum(one.cut for one in player.played)
    if cut and limit is None:
        display.message(_cut_warning(config, player, cut), "warning")
    return {
        **outcome(player.played),
        "episodes_cut": cut,
        "stochastic": stochastic,
        "seed": seed,
        "env_steps": state.get("env_steps"),
    }


def _check_same_env(folder: RunFolder, trained: EnvSpec, present: EnvSpec) -> None:
    """Raise ConfigError if the present environment differs from the one of the training."""
    for kind in ("observations", "actions"):
        before, now = (dict(getattr(spec, kind)) for spec in (trained, present))
        if before == now and list(before) == list(now):
            continue
        raise ConfigError(
            f"{present.env_id} has other {kind} now than when the run in {folder.path} was trained "
            f"(then -> now):\n  {before}\n  -> {now}\nuse the version of the environment that the "
            "run was trained in"
        )


def _close(envs: EnvVector, display: Display, alive: Callable[[], None]) -> None:
    """Close the rows. An error is only a warning: the episodes have been played, or another error
    is why not."""
    alive()
    try:
        envs.close()
    except Exception as error:
        display.message(f"closing the environments failed: {error!r}", "warning")


def _with_limit(config: AnyConfig, limit: int | None) -> tuple[EnvConfig, int | None]:
    """Return the config of the env rows, and the limit that the player has to enforce. Only
    environments of a user's own factory do not obey ``max_episode_steps`` themselves."""
    if limit is None or names_code(config.env):
        return config, limit
    return dataclasses.replace(config, max_episode_steps=limit), None


def _play(
    player: EpisodePlayer,
    env: str,
    choose: bool,
    display: Display,
    alive: Callable[[], None],
    clock: Callable[[], float],
) -> None:
    """Play until the player is done. ``choose``: choose the number of episodes by the duration of
    the first ones."""
    started, next_look = clock(), 0.0
    while not player.done:
        alive()
        player.step()
        took = clock() - started
        if took < next_look:
            continue
        next_look = took + LOOK_S
        if choose and (player.rows_in_first == 0 or took >= LONG_S):
            choose = False
            display.message(_choose(player, env, took), "info")
        display.progress(player.num_played, player.episodes, player.return_mean)
    if choose:  # all episodes ended before the first update of the display
        display.message(_choose(player, env, clock() - started), "info")


def _choose(player: EpisodePlayer, env: str, took: float) -> str:
    """Choose the number of episodes by the duration of the first ones; return the message for the
    user."""
    rows, left = player.num_rows, player.rows_in_first
    if left == 0:
        lengths = [one.length for one in player.played]
        return (
            f"{player.episodes} episodes of {env} (the first {rows}, played together, took "
            f"{took:.1f} s, and up to {max(lengths):,} steps); --episodes sets the number"
        )
    player.shorten(FEW_EPISODES)
    return (
        f"{FEW_EPISODES} episodes of {env} rather than {EPISODES}, because one takes minutes: "
        f"after {took:.0f} s ({player.steps:,} steps) {left} of the first {rows}, played together, "
        "have not ended; --episodes sets the number"
    )


def _cut_warning(config: EnvConfig, player: EpisodePlayer, cut: int) -> str:
    text = (
        f"{cut} of {len(player.played)} episodes were cut at {player.limit:,} steps, because "
        f"{config.env} has no time limit; --max-episode-steps sets another limit"
    )
    if not player.can_cut:
        text += (
            ". Its vector environment cannot reset a single row, so these rows played no further "
            f"episode ({player.episodes} were requested)"
        )
    return text


class _Silent:
    def message(self, text: str, level: str) -> None: ...
    def progress(self, done: int, total: int, return_mean: float | None) -> None: ...
