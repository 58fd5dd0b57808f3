"""The registry: creates env vectors from the names of environments.

A name is one of four kinds: an id of a family (entry-point group ``sampleforge.envs``); any other
gymnasium id; ``module:Id``, an id that is registered when the module is imported, as in
``gymnasium.make``; or ``package.module:factory``, a function or class of a module.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.env_code import making
from sampleforge.env.factories import factory_env, factory_vector
from sampleforge.env.family import Family
from sampleforge.env.given import PREFIX, GivenEnv, lost
from sampleforge.env.gymnasium_ids import (
    Env,
    gymnasium_env,
    gymnasium_rows,
    gymnasium_vector,
)
from sampleforge.env.keywords import refusing_keywords
from sampleforge.env.old_gym import old_maker
from sampleforge.env.place import SOMEWHERE, Place, takes
from sampleforge.env.single import SyncVector
from sampleforge.env.unknown import newest_version, similar, unknown
from sampleforge.env.user_code import import_user_module
from sampleforge.env.vector import EnvVector

GROUP = "sampleforge.envs"
PLUGINS = "gymnasium.envs"

log = logging.getLogger(__name__)


@functools.cache
def families() -> tuple[Family, ...]:
    """Return the installed families, in the order of their names. If one cannot be imported, a
    warning is logged, and it is left out."""
    found, failed = load_families()
    for text in failed:
        log.warning("%s", text)
    return found


@functools.cache
def load_families() -> tuple[tuple[Family, ...], tuple[str, ...]]:
    """Import the installed families. Return them, and what is to be said of those that fail."""
    found, failed = [], []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            found.append(entry.load().FAMILY)
        except Exception as error:
            failed.append(f"{entry.value} of the entry points {GROUP} failed: {error!r}")
    return tuple(found), tuple(failed)


def family_ids(family: Family) -> Sequence[str]:
    """Return the ids of a family. Raises ConfigError if its package is installed but broken."""
    try:
        return family.ids()
    except Exception as error:
        raise ConfigError(
            f"the environments of the family {family.name} are not known, because the package "
            f"{family.requires} fails: {error!r}; install it again: "
            f'pip install --force-reinstall "sampleforge[{family.extra}]"'
        ) from error


@functools.cache
def load_plugins() -> None:
    """Register the ids of installed packages that have an entry point in the group
    ``gymnasium.envs``, with the entry point's name as namespace, as gymnasium did before 1.0.

    Packages that a family uses are left out. If a package fails, a warning is logged.
    """
    served = {family.requires for family in families()}
    for entry in entry_points(group=PLUGINS):
        if entry.module.partition(".")[0] in served:
            continue
        is_root = entry.name.startswith("__") and entry.name.endswith("__")
        try:
            with making(), nullcontext() if is_root else _namespace(entry.name):
                loaded = entry.load()
                if callable(loaded):
                    loaded()
        except Exception as error:
            log.warning("%s of the entry points %s failed: %r", entry.value, PLUGINS, error)


@contextmanager
def _namespace(name: str) -> Iterator[None]:
    """Register ids in a namespace. gymnasium's own context stays in it after an error, so that all
    that is registered later would be in the namespace of a package that fails."""
    before = registration.current_namespace
    registration.current_namespace = name
    try:
        yield
    finally:
        registration.current_namespace = before


def known_ids() -> list[str]:
    """Return the ids of the installed families, gymnasium's own, and those of its plugins. What
    else the families' packages register with gymnasium, such as ids of earlier protocols, is left
    out: it can be had as module:Id only."""
    load_plugins()
    served = {family.requires for family in families()}
    ids = {env_id for env_id, spec in gym.registry.items() if _package(spec) not in served}
    for family in families():
        try:
            ids.update(family_ids(family))
        except ConfigError as error:
            log.warning("%s", error)
    return sorted(ids)


def _package(spec: registration.EnvSpec) -> str:
    """Return the package that an environment's entry point is in; empty if it is an object."""
    module = spec.entry_point.partition(":")[0] if isinstance(spec.entry_point, str) else ""
    return module.partition(".")[0]


def make_vector(
    config: EnvConfig, num_rows: int, seeds: Sequence[int], place: Place = SOMEWHERE
) -> EnvVector:
    """Return ``num_rows`` rows of ``config.env``, with one seed each; rewards are never clipped.
    ``place``: theirs, for a factory that asks for it, and for ``config.decorrelate``.
    Box actions are in [-1, 1] unless ``config.rescale_actions`` is off.
    In a multi-agent environment these are the rows of the first agent; ``seats`` has those of all.

    Raises ConfigError for an unknown name or a missing library, and the environment's own
    exceptions.
    """
    with making():
        vector = _vector(config, num_rows, seeds, place)
    apply_flags(config, vector)
    if config.decorrelate:
        vector.decorrelate(*place.among_all(num_rows))
    return vector


def apply_flags(config: EnvConfig, vector: EnvVector) -> None:
    """Have ``vector``, which was made for ``config``, take actions and give observations in the
    form that the flags ask for; call it before the first reset. Raises ConfigError, and closes it,
    if it cannot repeat actions."""
    if config.action_repeat > 1 and not isinstance(vector, SyncVector):
        vector.close()
        raise ConfigError(
            f"--action-repeat {config.action_repeat}: {config.env} steps its rows or agents "
            "together, and an action is repeated in single environments of one agent; use "
            "--env-backend single, if it has any, or repeat the action in the environment"
        )
    if config.rescale_actions:
        for seat in vector.seats:
            seat.rescale_actions()
    if config.clip_observations:
        for seat in vector.seats:
            seat.clip_observations()


def _vector(config: EnvConfig, num_rows: int, seeds: Sequence[int], place: Place) -> EnvVector:
    """Return the rows, with actions in the environment's own units."""
    factory, config = resolve(config)
    if factory is not None:
        return factory_vector(config, factory, num_rows, seeds, place)
    family = find(config.env)
    with refusing_keywords(config):
        if family is not None:
            own = {"threads": place.threads} if takes(family.make_vector, "threads") else {}
            return family.make_vector(config, num_rows, seeds, **own)
        if config.env_backend == "vector":
            return gymnasium_vector(config, seeds)
        return gymnasium_rows(config, lambda: gymnasium_env(config), num_rows, seeds)


def make_single(config: EnvConfig, render_mode: str | None = None, place: Place = SOMEWHERE) -> Env:
    """Return a single environment, of gymnasium or PettingZoo, with its raw rewards, for videos or
    use by hand; evaluation uses `make_vector`. It takes each action once. ``place``: its own, for a
    factory that asks for it."""
    with making():
        return _single(config, render_mode, place)


def _single(config: EnvConfig, render_mode: str | None, place: Place) -> Env:
    factory, config = resolve(config)
    if factory is None:
        family = find(config.env)
        make = gymnasium_env if family is None else family.make_single
        with refusing_keywords(config):
            return make(config, render_mode)
    return factory_env(config, factory, render_mode, place)


def for_evaluation(config: EnvConfig) -> EnvConfig:
    """Return the config of evaluation episodes: each row starts with a new episode, and the family
    takes back what changes episodes as an aid to learning."""
    plain = replace(config, decorrelate=False)
    family, plain = family_of(plain), resolve(plain)[1]
    return plain if family is None else family.for_evaluation(plain)


def family_of(config: EnvConfig) -> Family | None:
    """Return the family of ``config.env``, or None for a factory or a plain gymnasium id. Raises
    as `find` does."""
    factory, plain = resolve(config)
    return None if factory is not None else find(plain.env)


def find(env_id: str) -> Family | None:
    """Return the family of an id, or None for a plain gymnasium id. Raises ConfigError for an
    unknown id, with the nearest known one, or for a missing library, with the command that installs
    it."""
    family = _claiming(env_id)
    if family is not None and env_id in family_ids(family):
        return family
    if family is None and env_id not in gym.registry:
        load_plugins()
    if family is None and env_id in gym.registry:
        return None
    raise ConfigError(_unknown(env_id))


def _claiming(env_id: str) -> Family | None:
    """Return the family whose ids have the form of ``env_id``, or None. Raises ConfigError if the
    family's library is missing."""
    family = next((family for family in families() if family.claims(env_id)), None)
    if family is not None and not family.installed:
        raise _lacking(env_id, family)
    return family


def _lacking(env: str, family: Family) -> ConfigError:
    return ConfigError(f"--env {env} {_needs(family)}")


def _needs(family: Family) -> str:
    return (
        f"needs the package {family.requires}, which is not installed: "
        f'pip install "sampleforge[{family.extra}]"'
    )


def _unknown(env_id: str) -> str:
    lacking = {family.name: _needs(family) for family in families() if not family.installed}
    said = unknown(env_id, known_ids(), families(), lacking)
    if not families():
        said += (
            " (The bundled families, Atari among them, are not known, because the package is not "
            "installed: pip install -e .)"
        )
    return said


# ---- module:Id and package.module:factory ----


def resolve(config: EnvConfig) -> tuple[Callable[..., Any] | None, EnvConfig]:
    """Return (the factory that ``config.env`` names, ``config``), or (None, ``config`` with a plain
    id).

    The text after a colon is an attribute of the module if there is one of that name, otherwise an
    id that is registered when the module is imported (an id with a version is not a valid name in
    Python). Raises ConfigError if the module does not exist, or has neither.
    """
    if isinstance(config.env, GivenEnv):
        if (given := config.env.factory()) is not None:
            return given, config
    elif config.env.startswith(PREFIX):
        raise lost(config.env)
    module_name, colon, name = config.env.partition(":")
    if not colon:
        return None, _with_limit_of_kwargs(config)

    def lacking(missing: str) -> ConfigError | None:
        family = next((family for family in families() if family.requires == missing), None)
        return None if family is None else _lacking(config.env, family)

    module = import_user_module("--env", config.env, lacking)
    factory = getattr(module, name, None) if name.isidentifier() else None
    if callable(factory):
        return factory, config
    if name not in gym.registry:
        _register_envs(module)
    if name in gym.registry:
        return None, _with_limit_of_kwargs(replace(config, env=name))
    if (maker := old_maker(name)) is not None:
        return maker, config
    raise ConfigError(
        f"--env {config.env}: {module_name} has no factory {name!r}, and importing it registers no "
        f"environment {name!r}{_meant_of(module, name)}"
    )


@functools.cache
def _register_envs(module: ModuleType) -> None:
    """Call the function of a module that registers its ids, which some packages have in the place
    of doing so when they are imported."""
    register = getattr(module, "register_envs", None)
    if callable(register) and not inspect.signature(register).parameters:
        with making():
            register()


def _meant_of(module: ModuleType, name: str) -> str:
    """Return which factory or id of a module ``name`` may mean, or what the module registers."""
    own = module.__name__.partition(".")[0]
    ids = [env_id for env_id, spec in gym.registry.items() if _package(spec) == own]
    if name.isidentifier():
        ids += [key for key, value in vars(module).items() if callable(value)]
    near = newest_version(name, ids) or next(iter(similar(name, ids)), None)
    if near is not None:
        return f". Did you mean {module.__name__}:{near}?"
    if elsewhere := similar(name, known_ids()):
        return f". Did you mean {elsewhere[0]}?"
    registered = [env_id for env_id in ids if env_id in gym.registry]
    more = " ..." if len(registered) > 5 else ""
    return f", but {', '.join(registered[:5])}{more}" if registered else ""


def _with_limit_of_kwargs(config: EnvConfig) -> EnvConfig:
    """Return the config of an id with the time limit among its ``env_kwargs``, which gymnasium.make
    takes, as its own. Raises ConfigError if it has another one."""
    kwargs = dict(config.env_kwargs)
    limit: Any = kwargs.pop("max_episode_steps", None)
    if limit is None:
        return config
    if config.max_episode_steps not in (None, limit):
        raise ConfigError(
            f"--max-episode-steps {config.max_episode_steps} and --env-kwargs max_episode_steps="
            f"{limit}: these are two time limits; leave out one of them"
        )
    return replace(config, env_kwargs=kwargs, max_episode_steps=limit)
