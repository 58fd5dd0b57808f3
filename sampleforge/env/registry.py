"""From the name of an environment to its rows.

A name is one of four things: an id of a family (entry-point group ``sampleforge.envs``); any other
gymnasium id; ``module:Id``, an id that is registered when the module is imported, as in
``gymnasium.make``; or ``package.module:factory``, a function or class of a module.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from sampleforge.config import ConfigError, nearest
from sampleforge.env.config import EnvConfig
from sampleforge.env.family import Family
from sampleforge.env.gymnasium_vector import GymnasiumVector
from sampleforge.env.scratch import make_cwd_importable
from sampleforge.env.single import SyncVector
from sampleforge.env.vector import EnvVector

GROUP = "sampleforge.envs"
PLUGINS = "gymnasium.envs"
Env = gym.Env[Any, Any]

log = logging.getLogger(__name__)


@functools.cache
def families() -> tuple[Family, ...]:
    """The installed families, in the order of their names."""
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return tuple(entry.load().FAMILY for entry in found)


@functools.cache
def load_plugins() -> None:
    """Register the ids of installed packages that announce them in the entry-point group
    ``gymnasium.envs``, under the entry point's name as namespace, as gymnasium did before 1.0.

    Packages that a family serves are left out. One that fails is a warning in the log.
    """
    served = {family.requires for family in families()}
    for entry in entry_points(group=PLUGINS):
        if entry.module.partition(".")[0] in served:
            continue
        is_root = entry.name.startswith("__") and entry.name.endswith("__")
        try:
            with nullcontext() if is_root else registration.namespace(entry.name):
                loaded = entry.load()
                if callable(loaded):
                    loaded()
        except Exception as error:
            log.warning("%s of the entry points %s failed: %r", entry.value, PLUGINS, error)


def known_ids() -> list[str]:
    """Ids of the installed families, gymnasium's own, and those of its plugins."""
    load_plugins()
    ids = {env_id for family in families() for env_id in family.ids()}
    return sorted({*ids, *gym.registry})


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    """``num_rows`` rows of ``config.env``, one seed each; rewards are never clipped. Box actions
    are in [-1, 1] unless ``config.rescale_actions`` is off.

    Raises ConfigError for an unknown name or one whose library is missing; what the environment
    itself raises comes through.
    """
    vector = _vector(config, num_rows, seeds)
    if config.rescale_actions:
        vector.rescale_actions()
    return vector


def _vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    """The rows, with actions in the environment's own units."""
    factory, config = resolve(config)
    if factory is not None:
        return _factory_vector(config, factory, num_rows, seeds)
    family = find(config.env)
    if family is not None:
        return family.make_vector(config, num_rows, seeds)
    if config.env_backend == "vector":
        return _gymnasium_vector(config, seeds)
    return gymnasium_rows(config, lambda: gymnasium_env(config), num_rows, seeds)


def make_single(config: EnvConfig, render_mode: str | None = None) -> Env:
    """One environment with its raw rewards, for video or by hand; evaluation uses `make_vector`."""
    factory, config = resolve(config)
    if factory is None:
        family = find(config.env)
        make = gymnasium_env if family is None else family.make_single
        return make(config, render_mode)
    if _takes(factory, "num_envs"):
        raise ConfigError(
            f"{config.env} makes rows (it takes num_envs), and this needs a single environment; "
            "name a factory that returns a gymnasium.Env"
        )
    rendering = {} if render_mode is None else {"render_mode": render_mode}
    env: Env = factory(**config.env_kwargs, **rendering)
    limit = config.max_episode_steps
    return env if limit is None else TimeLimit(env, limit)


def find(env_id: str) -> Family | None:
    """The family of an id, or none for a plain gymnasium id. Raises ConfigError for an id that does
    not exist, with the nearest one, or that needs a library, with the line that installs it."""
    family = _claiming(env_id)
    if family is not None and env_id in family.ids():
        return family
    if family is None and env_id not in gym.registry:
        load_plugins()
    if family is None and env_id in gym.registry:
        return None
    raise ConfigError(_unknown(env_id))


def _claiming(env_id: str) -> Family | None:
    """The family that an id is of by its form. Raises ConfigError if its library is missing."""
    family = next((family for family in families() if family.claims(env_id)), None)
    if family is not None and not family.installed:
        raise _lacking(env_id, family)
    return family


def _lacking(env: str, family: Family) -> ConfigError:
    return ConfigError(
        f"--env {env} needs the package {family.requires}, which is not installed: "
        f'pip install "sampleforge[{family.extra}]"'
    )


def _unknown(env_id: str) -> str:
    best = _nearest_id(env_id)
    remedy = (
        f"Did you mean {best}?"
        if best is not None
        else "`sampleforge envs` lists the known ones; an id that a module registers when it is "
        "imported is written module:Id, and an environment of your own package.module:factory"
    )
    if not families():
        remedy += (
            " (The bundled families, Atari among them, are not known, because the package is not "
            "installed: pip install -e .)"
        )
    return f"Unknown environment {env_id}. {remedy}"


def _nearest_id(env_id: str) -> str | None:
    """The known id most like ``env_id``: its newest version where only the version is wrong."""
    known = known_ids()
    name = env_id.rpartition("-v")[0] or env_id
    versions = [i for i in known if i.rpartition("-v")[0].lower() == name.lower()]
    if versions:
        return max(versions, key=lambda i: registration.parse_env_id(i)[2] or 0)
    return next(iter(nearest(env_id, known)), None)


# ---- plain gymnasium ids ----


def gymnasium_env(config: EnvConfig, render_mode: str | None = None) -> Env:
    """``gym.make`` without the checker, which the probe replaces. Raises ConfigError, with
    gymnasium's own line on how to install it, for an environment whose library is missing."""
    given: dict[str, Any] = dict(config.env_kwargs)
    if config.max_episode_steps is not None:
        given["max_episode_steps"] = config.max_episode_steps
    if render_mode is not None:
        given["render_mode"] = render_mode
    try:
        return gym.make(config.env, disable_env_checker=True, **given)
    except gym.error.DependencyNotInstalled as error:
        raise ConfigError(f"--env {config.env} needs a package: {error}") from error


def sync_vector(
    config: EnvConfig, make: Callable[[], Env], num_rows: int, seeds: Sequence[int], **told: Any
) -> SyncVector:
    """Rows of single envs; refuses a backend that there is not. ``told``: SyncVector's keywords."""
    if config.env_backend == "vector":
        raise ConfigError(
            f"{config.env} has no vector env of its own; use --env-backend auto or single"
        )
    return SyncVector(config, make, num_rows, seeds, **told)


def gymnasium_rows(
    config: EnvConfig, make: Callable[[], Env], num_rows: int, seeds: Sequence[int], **told: Any
) -> SyncVector:
    """Rows of what ``gym.make`` gives, stepped `bare`."""
    limit = gym.spec(config.env).max_episode_steps
    return sync_vector(
        config, lambda: bare(make()), num_rows, seeds, max_episode_steps=limit, **told
    )


def bare(env: Env) -> Env:
    """``env`` without its outermost wrappers where these do only what SyncVector does as well: keep
    the time limit, and reset before stepping (0.7 us a step)."""
    while isinstance(env, TimeLimit | OrderEnforcing):
        env = env.env
    return env


def _gymnasium_vector(config: EnvConfig, seeds: Sequence[int]) -> EnvVector:
    """The vector env that a gymnasium id has registered itself."""
    if gym.spec(config.env).vector_entry_point is None:
        raise ConfigError(
            f"{config.env} has no vector env of its own; use --env-backend auto or single"
        )
    given: dict[str, Any] = dict(config.env_kwargs)
    limit = config.max_episode_steps or gym.spec(config.env).max_episode_steps
    if config.max_episode_steps is not None:
        given["max_episode_steps"] = config.max_episode_steps
    env = gym.make_vec(
        config.env, num_envs=len(seeds), vectorization_mode="vector_entry_point", **given
    )
    return GymnasiumVector(config, env, seeds, max_episode_steps=limit)


# ---- module:Id and package.module:factory ----


def resolve(config: EnvConfig) -> tuple[Callable[..., Any] | None, EnvConfig]:
    """(the factory that ``config.env`` names, ``config``), or (None, ``config`` with a plain id).

    What stands after a colon is an attribute of the module if it could be one and is there, else an
    id that is registered once the module is imported: no id with a version is a name in Python.
    Raises ConfigError for a module that does not exist, or that has neither.
    """
    module_name, colon, name = config.env.partition(":")
    if not colon:
        return None, config
    module = _import(config.env, module_name)
    factory = getattr(module, name, None) if name.isidentifier() else None
    if callable(factory):
        return factory, config
    if name in gym.registry:
        return None, replace(config, env=name)
    callables = [key for key, value in vars(module).items() if callable(value)]
    best = next(iter(nearest(name, callables)), None) if name.isidentifier() else _nearest_id(name)
    hint = f". Did you mean {module_name}:{best}?" if best is not None else ""
    raise ConfigError(
        f"--env {config.env}: {module_name} has no factory {name!r}, and importing it registers no "
        f"environment {name!r}{hint}"
    )


def _import(env: str, module_name: str) -> ModuleType:
    """The module in front of the colon; those in the working directory are found."""
    make_cwd_importable()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(missing + "."):
            raise  # the module is there; one that it imports is not
        family = next((family for family in families() if family.requires == missing), None)
        if family is not None:
            raise _lacking(env, family) from error
        raise ConfigError(
            f"--env {env}: there is no module {missing!r}; modules are looked for in the working "
            "directory and where Python finds packages"
        ) from error


def _factory_vector(
    config: EnvConfig, factory: Callable[..., Any], num_rows: int, seeds: Sequence[int]
) -> EnvVector:
    """Rows from a factory: one VectorEnv if it takes num_envs, else one env per row."""
    kwargs = config.env_kwargs
    if not _takes(factory, "num_envs"):
        return sync_vector(
            config, lambda: _checked(config, factory(**kwargs), gym.Env), num_rows, seeds
        )
    if config.env_backend == "single" or config.max_episode_steps is not None:
        raise ConfigError(
            f"{config.env} makes rows of its own (it takes num_envs): --env-backend single and "
            "--max-episode-steps do not reach them; give its own arguments in --env-kwargs"
        )
    env = _checked(config, factory(num_envs=num_rows, **kwargs), VectorEnv)
    return GymnasiumVector(config, env, seeds)


def _checked(config: EnvConfig, env: Any, kind: type[Any]) -> Any:
    """``env`` if it is of the kind that its factory's arguments announce; else ConfigError."""
    if isinstance(env, kind):
        return env
    raise ConfigError(
        f"{config.env} returned a {type(env).__name__}, but must return a gymnasium "
        f"{kind.__name__}: a factory that takes num_envs returns a VectorEnv, any other an Env"
    )


def _takes(factory: Callable[..., Any], name: str) -> bool:
    return name in inspect.signature(factory).parameters
