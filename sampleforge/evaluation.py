"""The evaluation of a trained policy, raw returns of episodes that a seed makes repeatable, and the
recording of such episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from sampleforge.algorithms.acting import FrozenPolicy
from sampleforge.config import ConfigError
from sampleforge.env.closing import CLOSE_S, close_in_time
from sampleforge.env.config import EnvConfig
from sampleforge.env.importable import names_code
from sampleforge.env.interface import told_of_rows
from sampleforge.env.vector import EnvVector
from sampleforge.loaded_policy import load_model, load_other_groups
from sampleforge.run.camera import Camera
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.trust import Trust, trusted_config
from sampleforge.run.onnx_policy import OnnxPolicy
from sampleforge.run.own_code import playing_directory
from sampleforge.run.recording import PlayRecorder
from sampleforge.run.screen.evaluating import EvaluationDisplay
from sampleforge.runtime.torch_settings import limit_threads, usual_torch
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.policy_roles import roles_of_policies
from sampleforge.workers.episode_player import (
    EpisodePlayer,
    EpisodePolicy,
    EvaluationPart,
    evaluation_envs,
    evaluation_seed,
    number_of_episodes,
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


@dataclasses.dataclass(frozen=True)
class Observers:
    """What looks on while episodes are played. ``display`` shows the progress; ``alive`` is called
    after the start of each row and before each step; ``recorder`` writes the episodes into a
    dataset; with a ``camera`` they are played one after the other in a row that it films.
    ``clock``: returns seconds. ``close_s``: seconds that the environments may take to close."""

    display: EvaluationDisplay = dataclasses.field(
        default_factory=partial(EvaluationDisplay, quiet=True)
    )
    alive: Callable[[], None] = lambda: None
    recorder: PlayRecorder | None = None
    camera: Camera | None = None
    clock: Callable[[], float] = monotonic
    close_s: float = CLOSE_S

    def record(self, player: EpisodePlayer, contestant: _Contestant, envs: EnvVector) -> None:
        """Record what a contestant plays in ``envs`` from now on, if there is a recorder."""
        if self.recorder is not None:
            self.recorder.follow(player, contestant.policy, envs, contestant.state)


NO_OBSERVERS = Observers()


@usual_torch()
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
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    trust: Trust = NO_TRUST,
    observers: Observers = NO_OBSERVERS,
) -> dict[str, Any]:
    """Play ``episodes`` episodes with the policy of a run folder; see `EpisodePlayer`. None: 100
    episodes, or 20 if one takes minutes. ``policy``: the id of the policy, if the run has several.
    ``onnx``: the file of an exported policy, which plays instead of the checkpoint. ``env``,
    ``env_kwargs``: play in this environment in place of the training's, or with these arguments
    beside its own; it must have the same observations and actions. In a multi-agent environment the
    policy plays all agents with its spaces, and the first policies of the other groups of agents
    play those.

    The same seed gives the same episodes; None means the seed of the run's own evaluator, or, if
    the episodes are recorded behind others, another one. Return ``returns``, the return of each
    episode, and the values that `sampleforge eval` prints: return_mean, return_std, return_min,
    return_max, episodes, length_mean, episodes_cut (by a limit that the environment itself does not
    have), stochastic, seed, env_steps (of the checkpoint). Numerical libraries have one thread
    meanwhile, because several are slower for a few rows. Raises ConfigError if the folder names
    code that ``trust`` does not cover, or if the exported policy is for other spaces; ValueError
    for fewer episodes than 1.
    """
    count = number_of_episodes(episodes, EPISODES)
    folder = RunFolder.existing(Path(run_dir).absolute())
    config = trusted_config(folder, trust)
    seed = _default_seed(config, observers) if seed is None else seed
    spec = folder.read_spec()
    stage = config.played_in(env, env_kwargs or {})
    rows, limit = _with_limit(stage, max_episode_steps, None if env or env_kwargs else spec)
    exported = None if onnx is None else OnnxPolicy(onnx)  # its path is the caller's
    with ExitStack() as resources:
        resources.enter_context(playing_directory(stage, config))
        contestant = _contestant(
            folder, config, which, policy, exported, recorded=observers.recorder is not None
        )
        observers.alive()
        envs = _rows(rows, count, seed, spec, contestant, observers, resources)
        resources.callback(limit_threads(1))
        how = {"stochastic": stochastic, "seed": seed, "limit": limit}
        player = _player(folder, config, contestant, envs, count, **how)
        observers.record(player, contestant, envs)
        _play(player, stage.env, observers, choose=episodes is None)
    if max_episode_steps is None:
        _warn_of_cuts(stage, player, observers.display)
    env_steps = contestant.state.get("env_steps")
    return _results(player) | {"stochastic": stochastic, "seed": seed, "env_steps": env_steps}


def _player(
    folder: RunFolder,
    config: AnyConfig,
    contestant: _Contestant,
    envs: EnvVector,
    episodes: int,
    **how: Any,
) -> EpisodePlayer:
    """Have the contestant meet the rows; return the player of so many episodes, with the policies
    of other agent groups. ``how``: further arguments of `EpisodePlayer`."""
    group, others = load_other_groups(folder, config, contestant.id, envs.spec)
    contestant.meet(envs, group)
    policies = {index: FrozenPolicy(each) for index, each in others.items()}
    return EpisodePlayer(envs, contestant.policy, episodes, group=group, others=policies, **how)


def _default_seed(config: AnyConfig, observers: Observers) -> int:
    """Return the seed of the run's own evaluator; behind recorded episodes another one, which
    depends on their number, or else the same episodes would be played again."""
    stored = 0 if observers.recorder is None else observers.recorder.stored
    return evaluation_seed(config.seed or 0) + stored


def _results(player: EpisodePlayer) -> dict[str, Any]:
    """Return what the episodes of a player say about its policy."""
    return {
        **outcome(player.played),
        "returns": [one.ret for one in player.played],
        "episodes_cut": sum(one.cut for one in player.played),
    }


@dataclasses.dataclass(frozen=True)
class _Contestant:
    """The policy that is evaluated. ``id``: in a run with several; ``state``: the plain values of
    its checkpoint, or of its file; ``meet(envs, group)`` has it meet the rows, in which it plays
    the agent group ``group``, and raises ConfigError if they have other spaces than its own."""

    policy: EpisodePolicy
    id: str | None
    state: Mapping[str, Any]
    meet: Callable[[EnvVector, int], None]


def _rows(
    env: EnvConfig,
    episodes: int,
    seed: int,
    spec: EnvSpec | None,
    contestant: _Contestant,
    observers: Observers,
    resources: ExitStack,
) -> EnvVector:
    """Make the env rows that play: the camera's one row, or as many as ``episodes`` can use.
    ``spec``: of the training's, if it is known. ``resources`` closes them."""
    resources.enter_context(told_of_rows(observers.alive))
    if observers.camera is not None:
        envs = observers.camera.row(env, seed, contestant.id)
    else:
        envs = evaluation_envs(env, episodes, seed, EvaluationPart.of(spec))
    warn = partial(observers.display.message, level="warning")
    resources.callback(close_in_time, envs, warn, observers.close_s)
    resources.callback(observers.alive)
    return envs


def _contestant(
    folder: RunFolder,
    config: AnyConfig,
    which: str,
    policy: str | None,
    exported: OnnxPolicy | None,
    *,
    recorded: bool,
) -> _Contestant:
    """Return the ``exported`` policy, or without one that of a checkpoint. ``recorded``: what it
    does is recorded."""
    if exported is not None:
        return _of_export(exported, config)
    model, spec, state = load_model(folder, config, which, policy)

    def meet(envs: EnvVector, group: int) -> None:
        _check_same_env(folder, spec, envs.spec.agent_groups[group])

    return _Contestant(FrozenPolicy(model, recorded=recorded), policy, state, meet)


def _of_export(exported: OnnxPolicy, config: AnyConfig) -> _Contestant:
    """Return the policy of an ONNX file, which may name the one of the run that it is."""

    def meet(envs: EnvVector, group: int) -> None:
        exported.check_spaces(envs.spec.agent_groups[group])
        for seat in envs.seats:
            if envs.spec.group_of(seat.agent) == group:
                seat.take_converted_actions()

    named = exported.metadata.get("policy")
    known = named if named in roles_of_policies(config).ids else None
    return _Contestant(exported, known, exported.metadata, meet)


def _check_same_env(folder: RunFolder, trained: EnvSpec, present: EnvSpec) -> None:
    """Raise ConfigError if the present environment differs from the one of the training."""
    for kind in ("observations", "actions"):
        before, now = (dict(getattr(spec, kind)) for spec in (trained, present))
        if before == now and list(before) == list(now):
            continue
        raise ConfigError(
            f"{present.env_id} has other {kind} now than when the run in {folder.path} was trained "
            f"(then -> now):\n  {before}\n  -> {now}\nuse the environment that the run was trained "
            "in, in the version of then, or one with the same observations and actions"
        )


def _with_limit(
    config: EnvConfig, limit: int | None, spec: EnvSpec | None
) -> tuple[EnvConfig, int | None]:
    """Return the config of the env rows, and the limit of the player; None if it is the
    environment's own, as the ``spec`` of the training has it. Only environments of a user's own
    factory do not obey ``max_episode_steps`` themselves."""
    given = limit is not None and not names_code(config.env)
    env = dataclasses.replace(config, max_episode_steps=limit) if given else config
    own = spec.max_episode_steps if spec is not None and config.max_episode_steps is None else None
    return env, None if limit == own else limit


def _play(player: EpisodePlayer, env: str, observers: Observers, *, choose: bool) -> None:
    """Play until the player is done, and the episodes are recorded; if that is broken off, those
    that have ended are. ``choose``: choose the number of episodes by the duration of the first
    ones."""
    recorder = observers.recorder
    try:
        _play_episodes(player, env, observers, choose=choose)
        if recorder is not None:
            recorder.finish()
    except BaseException:
        if recorder is not None:
            recorder.break_off()
        raise


def _play_episodes(player: EpisodePlayer, env: str, observers: Observers, *, choose: bool) -> None:
    display, clock = observers.display, observers.clock
    started, next_look = clock(), 0.0
    while not player.done:
        observers.alive()
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


def _warn_of_cuts(config: EnvConfig, player: EpisodePlayer, display: EvaluationDisplay) -> None:
    """Warn if episodes were cut by a limit that the environment itself does not have."""
    cut = sum(one.cut for one in player.played)
    if not cut:
        return
    text = (
        f"{cut} of {len(player.played)} episodes were cut at {player.limit:,} steps, because "
        f"{config.env} has no time limit; --max-episode-steps sets another limit"
    )
    if not player.can_cut:
        text += (
            ". Its vector environment cannot reset a single row, so these rows played no further "
            f"episode ({player.episodes} were requested)"
        )
    display.message(text, "warning")
