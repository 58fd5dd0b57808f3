"""The command `sampleforge train ALGO`: make a config from preset, file and flags, and train.

Flags override the file, and the file overrides the preset.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import tyro

from sampleforge.cli import flags
from sampleforge.config import ConfigError, from_plain
from sampleforge.presets import preset_names, preset_values
from sampleforge.run.folder.stored_config import config_values
from sampleforge.runtime.streams import lasting_streams
from sampleforge.runtime.torchrun import World
from sampleforge.topologies import config_classes
from sampleforge.topologies.config import ALGOS
from sampleforge.topologies.config_classes import algorithm_names

EVERYDAY = {
    "": "env env_kwargs input",
    "run": "train_for_env_steps train_for_seconds stop run_dir resume seed device init_from",
    "learning": "learning_rate anneal gamma batch_size minibatch_size num_epochs rollout "
    "gae_lambda clip_ratio exploration_coeff epsilon_env_steps replay_capacity learning_starts "
    "samples_per_insert updates_per_env_step n_step normalise_returns reward_scale "
    "advantage_exponent target_entropy",
    "model": "encoder hidden_sizes core normalise_observations",
    "speed": "num_workers num_envs_per_worker async_rl num_learners num_ranks benchmark",
    "report and evaluation": "evaluate_interval evaluate_episodes track callbacks quiet serial",
}
"""The flags that --help shows, by the title of their group; --help-all shows all."""

HELP_ALL: flags.Field = (
    "help_all",
    Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        tyro.conf.arg(help="Show all flags and exit.", help_behavior_hint=""),
    ],
    dataclasses.field(default=False),
)


def run(args: Sequence[str]) -> int:
    """Train; return the exit code. Raises ConfigError."""
    with lasting_streams():
        return _run(args)


def _run(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return 0 if args else 2
    config, preset = parse_command(args[0], args[1:])
    # Other launchers set RANK and WORLD_SIZE too, which only ddppo reads.
    reads_world = config.algo == "ddppo" or "TORCHELASTIC_RUN_ID" in os.environ
    world = World.of_environment() if reads_world else None
    if world is not None and (world.size > 1 or config.algo == "ddppo"):
        from sampleforge.cli.running import run as run_session
        from sampleforge.torchrun import run_rank

        return run_rank(config, world, partial(run_session, preset=preset))
    from sampleforge.cli.running import run as run_training
    from sampleforge.env.probe import EnvProbeError
    from sampleforge.populations.callbacks import with_schedule_seed
    from sampleforge.run.folder.new_folder import with_folder_and_seed
    from sampleforge.run.screen.messages import banner, environment_failed

    with ExitStack() as resources:
        config = with_folder_and_seed(with_schedule_seed(config), resources)
        if not config.quiet:
            print(banner(config), flush=True)
        try:
            return run_training(config, preset=preset)
        except EnvProbeError as error:
            raise type(error)(environment_failed(error, config.run_dir)) from error


def parse_config(
    algo: str,
    args: Sequence[str],
    verb: str = "train",
    usual: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Return the config of a command line of ``verb``. ``usual``: the defaults of that verb, where
    they differ from those of the algorithm; what the algorithm has not is left out. Raises
    ConfigError, and SystemExit like `flags.parse`."""
    return parse_command(algo, args, verb, usual)[0]


def parse_command(
    algo: str,
    args: Sequence[str],
    verb: str = "train",
    usual: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Any, str | None]:
    """Return the config of a command line, as `parse_config` does, and the name of its preset, if
    there is one."""
    cls = config_class(algo)
    usual = {name: value for name, value in usual.items() if hasattr(cls, name)}
    flags.check_known(cls, args, ALGOS, algo)
    args = flags.with_values(cls, args)
    values = flags.unchecked(cls)
    defaults = values(**usual)
    parsed = _parse(algo, cls, defaults, args, verb)
    if parsed.preset or parsed.config:
        layers = _layers(algo, values, parsed.preset, parsed.config)
        defaults = from_plain(values, {**usual, **layers})
        parsed = _parse(algo, cls, defaults, args, verb)
    config = from_plain(cls, flags.config_values(cls, defaults, parsed), "command line")
    if not config.env:
        raise ConfigError(
            f"There is no --env to train on; give one, for example: {_example(algo, verb)} "
            "(`sampleforge envs` lists them), or a --preset: "
            f"{', '.join(preset_names(algo)) or f'there are none for {algo}'}"
        )
    return config, parsed.preset


def config_class(algo: str) -> type[Any]:
    """Return the config class of an algorithm. Raises ConfigError for an unknown name."""
    if algo.startswith("-"):
        raise ConfigError(
            "The algorithm comes before the flags, as in "
            f"`sampleforge train appo {algo} ...`. There are {', '.join(algorithm_names())}."
        )
    return config_classes.config_class(algo)


def _parse(algo: str, cls: type[Any], defaults: Any, args: Sequence[str], verb: str) -> Any:
    first = [
        _file_flag(
            "preset", "Start from the settings of a preset (`sampleforge presets` lists them)."
        ),
        _file_flag(
            "config", "YAML file of settings; it overrides the preset, and flags override it."
        ),
        HELP_ALL,
    ]
    text = f"{cls.__doc__}\n\nFor example: {_example(algo, verb)}"
    prog = f"sampleforge {verb} {algo}"
    if {"-h", "--help"} & {*args}:
        kind = flags.chosen_flags(cls, defaults, first, EVERYDAY)
        return flags.parse_shown(kind, ["--help"], prog, text)
    if "--help-all" in args:
        args = ["--help"]
    else:
        with suppress(ConfigError):  # of all flags, as it may name others
            kind = flags.config_flags(cls, defaults, first, flags.given_names(args))
            return flags.parse_shown(kind, args, prog, text)
    kind = flags.config_flags(cls, defaults, first)
    return flags.parse_shown(kind, args, prog, text)


def _example(algo: str, verb: str) -> str:
    """Return a command that an algorithm can run."""
    data = "--input DATASET " if algo == "marwil" else ""
    env = "Pendulum-v1" if algo in ("sac", "crossq", "td3") else "CartPole-v1"
    return f"sampleforge {verb} {algo} {data}--env {env} --train-for-seconds 30"


def _file_flag(name: str, text: str) -> flags.Field:
    hint = Annotated[
        str | None,
        tyro.conf.arg(
            help=text, metavar="NAME" if name == "preset" else "FILE", help_behavior_hint=""
        ),
    ]
    return name, hint, dataclasses.field(default=None)


def _layers(algo: str, values: type[Any], preset: str | None, file: str | None) -> dict[str, Any]:
    """Return the fields that the preset sets, overridden by those of the file. Each source is
    checked under its own name, so that an error names it."""
    merged: dict[str, Any] = {}
    sources = {f"preset {preset}": preset_values(algo, preset)} if preset else {}
    sources |= {file: config_values(Path(file), algo)} if file else {}
    for source, layer in sources.items():
        from_plain(values, layer, source)
        merged = _over(merged, layer)
    return merged


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``below`` overridden by ``above``. Groups of fields (model) are merged."""
    merged = dict(below)
    for raw_key, value in above.items():
        key = raw_key.replace("-", "_")
        group = key == "model" and isinstance(merged.get(key), Mapping)
        merged[key] = _over(merged[key], value) if group else value
    return merged


def _usage() -> str:
    lines = "\n".join(f"  {algo:<6} {cls.__doc__}" for algo, cls in ALGOS.items())
    return (
        "usage: sampleforge train ALGO [flags]\n\nalgorithms:\n"
        f"{lines}\n\n`sampleforge train ALGO --help` lists the flags, for example\n"
        "  sampleforge train appo --env CartPole-v1 --train-for-seconds 30"
    )
