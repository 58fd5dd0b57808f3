"""The config class of each algorithm, by the name that commands and run folders give it."""

from __future__ import annotations

import dataclasses
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.names import OTHER_ALGORITHMS, nearest
from sampleforge.topologies.config import ALGOS

GROUP = "sampleforge.algorithms"
"""The entry points of packages that bring algorithms: name = module:ConfigClass."""


def algorithm_names() -> list[str]:
    """Return the names of all algorithms: the project's own, and those of installed packages."""
    return [*ALGOS, *sorted(set(_plugins()) - set(ALGOS))]


def config_class(algo: str) -> type[Any]:
    """Return the config class of an algorithm: one of `algorithm_names`, or module:ConfigClass.
    Raises ConfigError for an unknown name, and for a class that is not one."""
    if algo in ALGOS:
        return ALGOS[algo]
    if entry := _plugins().get(algo):
        return _checked(entry.load(), algo)
    if ":" in algo:
        from sampleforge.env.user_code import import_function

        return _checked(import_function("algorithm", algo), algo)
    ours = OTHER_ALGORITHMS.get(algo.lower())
    near = [ours] if ours else nearest(algo, algorithm_names())
    known = f"There are {', '.join(algorithm_names())}, and your own, as module:ConfigClass."
    hint = f"Did you mean {near[0]}?" if near else known
    raise ConfigError(f"Unknown algorithm {algo or '(missing)'}. {hint}")


def run_modules(config: Any) -> tuple[str, ...]:
    """Return the modules of this package that the processes of a run import: the driver, and those
    with a learner, which saves checkpoints, all of them. A pairing of another package is imported
    where an error in it is told."""
    homes = config.pairing.partition(":")[0], type(config).__module__
    own = (home for home in homes if home.startswith("sampleforge."))
    return ("sampleforge.topologies.registry", *own, "sampleforge.run.folder.checkpoint")


def names_code(algo: str) -> bool:
    """Return whether the name of an algorithm makes Python import a module that is named in it."""
    return algo not in ALGOS and algo not in _plugins() and ":" in algo


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _checked(found: Any, algo: str) -> type[Any]:
    """Return the class, if it is the config class of an algorithm of this name."""
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ConfigError(f"algorithm {algo}: {found!r} is not a dataclass with its settings")
    if not hasattr(found, "topology"):
        raise ConfigError(
            f"algorithm {algo}: {found.__name__} has no topology; derive it from SlotsRunConfig, "
            "ReplayRunConfig, RanksRunConfig or StoredRunConfig (sampleforge.topologies.config)"
        )
    for name, text in (("algo", algo), ("pairing", "module:NAME of its Pairing")):
        if not isinstance(getattr(found, name, None), str):
            raise ConfigError(
                f"algorithm {algo}: {found.__name__} has no {name}; give it the class variable "
                f'{name} = "{text}"'
            )
    cls: Any = found
    if cls.algo != algo:
        raise ConfigError(
            f"algorithm {algo}: {cls.__name__}.algo is {cls.algo!r}, and run folders would "
            f'name that; write algo = "{algo}"'
        )
    return found
