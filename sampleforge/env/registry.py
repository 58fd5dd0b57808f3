"""From the name of an environment to its rows.

A name is an id of a family (entry-point group ``sampleforge.envs``), any other gymnasium id, or
``package.module:factory``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

import gymnasium as gym
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
Env = gym.Env[Any, Any]


@functools.cache
def families() -> tuple[Family, ...]:
    """The installed families, in the order of their names."""
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return tuple(entry.load().FAMILY for entry in found)


def known_ids() -> list[str]:
    """Ids of the installed families and gymnasium's own."""
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
    if ":" in config.env:
        return _factory_vector(config, num_rows, seeds)
    family = find(config.env)
    if family is not None:
        return family.make_vector(config, num_rows, seeds)
    if config.env_backend == "vector":
        return _gymnasium_vector(config, seeds)
    return gymnasium_rows(config, lambda: gymnasium_env(config), num_rows, seeds)


def make_single(config: EnvConfig, render_mode: str | None = None) -> Env:
    """One environment with its raw rewards, for video or by hand; evaluation uses `make_vector`."""
    if ":" not in config.env:
        family = find(config.env)
        make = gymnasium_env if family is None else family.make_single
        return make(config, render_mode)
    factory = load_factory(config.env)
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
    not exist, with the nearest ones, or that needs a library, with the line that installs it."""
    claimed = next((family for family in families() if family.claims(env_id)), None)
    if claimed is not None and not claimed.installed:
        raise ConfigError(
            f"--env {env_id} needs the package {claimed.requires}, which is not installed: "
            f'pip install "sampleforge[{claimed.extra}]"'
        )
    if claimed is not None and env_id in claimed.ids():
        return claimed
    if claimed is None and env_id in gym.registry:
        return None
    raise ConfigError(_unknown(env_id))


def _unknown(env_id: str) -> str:
    near = nearest(env_id, known_ids())
    remedy = f"did you mean {' or '.join(near)}?" if near else "`sampleforge envs` lists them;"
    if not families():
        remedy += (
            " (The bundled families, Atari among them, are not known, because the package is not "
            "installed: pip install -e .)"
        )
    return (
        f"--env {env_id!r} is no environment id; {remedy} "
        "An environment of your own is package.module:factory"
    )


# ---- plain gymnasium ids ----


def gymnasium_env(config: EnvConfig, render_mode: str | None = None) -> Env:
    """``gym.make`` without the checker, which the probe replaces."""
    given: dict[str, Any] = dict(config.env_kwargs)
    if config.max_episode_steps is not None:
        given["max_episode_steps"] = config.max_episode_steps
    if render_mode is not None:
        given["render_mode"] = render_mode
    return gym.make(config.env, disable_env_checker=True, **given)


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
    """Rows of what ``gym.make`` gives, stepped without its outermost wrappers where these do only
    what SyncVector does as well: keep the time limit, and reset before stepping (0.7 us a step)."""

    def bare() -> Env:
        env = make()
        while isinstance(env, TimeLimit | OrderEnforcing):
            env = env.env
        return env

    limit = gym.spec(config.env).max_episode_steps
    return sync_vector(config, bare, num_rows, seeds, max_episode_steps=limit, **told)


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


# ---- package.module:factory ----


def load_factory(name: str) -> Callable[..., Any]:
    """The object called ``package.module:factory``; modules in the working directory are found.

    Raises ConfigError for a module or name that does not exist, with the nearest.
    """
    make_cwd_importable()
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(missing + "."):
            raise  # the module is there; one that it imports is not
        raise ConfigError(
            f"--env {name}: there is no module {missing!r}; modules are looked for in the working "
            "directory and where Python finds packages"
        ) from error
    factory = getattr(module, attribute, None)
    if callable(factory):
        return factory  # type: ignore[no-any-return]
    near = nearest(attribute, [n for n, value in vars(module).items() if callable(value)])
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(f"--env {name}: {module_name} has no factory {attribute!r}{hint}")


def _factory_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    """Rows from a factory: one VectorEnv if it takes num_envs, else one env per row."""
    factory = load_factory(config.env)
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
