"""The protection against run folders from unknown sources: values that name code, and links.

Values of a run folder that make Python import code are used only if the user trusts the folder
(--trust) or gives the same values on the command line. Links that lead out of the folder are
refused.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sampleforge.config import ConfigError, typed
from sampleforge.env.given import PREFIX
from sampleforge.topologies.config_classes import config_class, names_code

if TYPE_CHECKING:
    from sampleforge.run.folder.run_folder import RunFolder
    from sampleforge.topologies.config import AnyConfig

C = TypeVar("C", bound=Any)
MAIN = "__main__:"
"""How the names of code begin that a script or a notebook has defined itself."""
CODE_OF_MODEL = ("model.encoder", "model.head")
"""Fields of a config, by dotted name, whose values can name code that a policy consists of."""
CODE_TO_ACT = ("env", "env_kwargs", *CODE_OF_MODEL)
"""Fields of a config, by dotted name, whose values can name code that a policy or its environment
consists of."""
IMPORTABLE = (
    *CODE_TO_ACT,
    "policy_mapping",
    "callbacks",
    "evaluate_env",
    "evaluate_env_kwargs",
    "evaluate_function",
)
"""Fields of a config whose values can name code to import."""


@dataclass(frozen=True)
class Trust:
    """The trust of the user in a run folder: in ``everything`` (--trust), or in the values that are
    ``repeated`` on the command line, by dotted name."""

    everything: bool = False
    repeated: Mapping[str, Any] = field(default_factory=dict)


def trusted(config_file: Path, config: C, trust: Trust, used: Sequence[str] = CODE_TO_ACT) -> C:
    """Return ``config``, read from ``config_file``. Raises ConfigError if a value of it names code
    and ``trust`` does not cover it, or if a repeated value differs from the stored one. Only the
    fields ``used`` count. An environment that was a Python object, which no file holds, may be
    given under a name: it is then that of the config. So may code of the program that trained."""
    for name, value in trust.repeated.items():
        if str(_value(config, name)).startswith((PREFIX, MAIN)):
            config = _replaced(config, name, value)
    stored = {name: _value(config, name) for name in IMPORTABLE}
    for name, value in trust.repeated.items():
        if value != stored[name]:
            other = ", or play with another one by `sampleforge eval --evaluate-{}`"
            flag = name.replace("_", "-")
            raise ConfigError(
                f"{typed(name, value)}: the run in {config_file.parent} was trained with "
                f"{stored[name]!r}; repeat that value, or leave out the flag"
                f"{other.format(flag) if name in ('env', 'env_kwargs') else ''}"
            )
    for name, value in naming_code(config, used).items():
        _check_is_here(config_file, name, value)
    if trust.everything:
        return config
    refused = {
        name: value
        for name, value in naming_code(config, used).items()
        if name not in trust.repeated and value
    }
    if not refused:
        return config
    lines = "\n  ".join(f"{name}: {value!r}" for name, value in refused.items())
    repeat = " ".join(typed(name, stored[name]) for name in refused)
    raise ConfigError(
        f"{config_file} names code that would be imported and run:\n  {lines}\n"
        "A run folder may come from an unknown source, so such values are used only with your "
        "consent. If you know where this folder comes from, add --trust (in Python: trust=True), "
        f"or repeat the values: {repeat}"
    )


def _check_is_here(config_file: Path, name: str, value: Any) -> None:
    """Raise ConfigError if ``value`` of the field ``name`` is code of a script or notebook, which
    is not the main module of this process."""
    here = vars(sys.modules["__main__"])
    if str(value).startswith(MAIN) and str(value).removeprefix(MAIN) not in here:
        by_name = "my_module:" + str(value).removeprefix(MAIN)
        raise ConfigError(
            f"{config_file} names code of the script or notebook that has trained, {name}: "
            f"{value!r}, which no other program can import. Put it into a module and add "
            f"{typed(name, by_name)}; or define it in this program, too, if that is one of Python"
        )


def _replaced(config: C, name: str, value: Any) -> C:
    """Return ``config`` with the value of a field by its dotted name."""
    first, _, rest = name.partition(".")
    inner = _replaced(getattr(config, first), rest, value) if rest else value
    return replace(config, **{first: inner})


def naming_code(config: Any, used: Sequence[str] = CODE_TO_ACT) -> dict[str, Any]:
    """Return the values of the fields ``used``, by dotted name, that make Python import code; the
    value is empty if it names no code."""
    from sampleforge.env.config import EnvConfig
    from sampleforge.env.importable import importable_kwargs, names_code

    encoder, values = config.model.encoder, {}
    if "env" in used:
        values["env"] = config.env if names_code(config.env) else ""
    if "env_kwargs" in used:
        values["env_kwargs"] = importable_kwargs(config)
    if "model.encoder" in used:
        values["model.encoder"] = encoder if ":" in encoder else ""
    if "model.head" in used:
        values["model.head"] = config.model.head or ""
    if "policy_mapping" in used:
        values["policy_mapping"] = getattr(config, "policy_mapping", None) or ""
    if "callbacks" in used:
        values["callbacks"] = config.callbacks
    if "evaluate_env" in used:
        own = config.evaluate_env or ""
        values["evaluate_env"] = own if names_code(own) else ""
    if "evaluate_env_kwargs" in used:
        given = EnvConfig(
            env=config.evaluate_env or config.env, env_kwargs=config.evaluate_env_kwargs
        )
        values["evaluate_env_kwargs"] = importable_kwargs(given)
    if "evaluate_function" in used:
        values["evaluate_function"] = config.evaluate_function or ""
    return values


def imports_code(config: Any, used: Sequence[str] = CODE_TO_ACT) -> bool:
    """Return whether a value of a config, in the fields ``used``, names code."""
    return any(naming_code(config, used).values())


def _value(config: Any, name: str) -> Any:
    """Return the value of a config's field by its dotted name."""
    for part in name.split("."):
        config = getattr(config, part, None)  # ranks have no policy mapping
    return config


def check_places(folder: Path, names: tuple[str, ...]) -> None:
    """Raise ConfigError if one of ``names`` in ``folder``, or anything below it, is a link that
    leads out of the folder, or is neither file nor folder (reading a pipe could block for ever)."""
    inside = folder.resolve()
    waiting = [folder / name for name in names]
    while waiting:
        path = waiting.pop()
        try:
            mode = path.lstat().st_mode
            below = os.listdir(path) if stat.S_ISDIR(mode) else []
        except FileNotFoundError:  # a run in progress has removed it
            continue
        waiting += [path / name for name in below]
        if stat.S_ISLNK(mode):
            try:
                target = path.resolve()
            except (OSError, RuntimeError):  # RuntimeError: before Python 3.13
                target = path
            if target.is_symlink():  # as it is, since Python 3.13
                raise ConfigError(f"{path} is a link that leads nowhere; remove it")
            if not target.is_relative_to(inside):
                raise ConfigError(
                    f"{path} is a link to {target}, outside of the run folder, and such links are "
                    "not followed; replace the link by the file or folder that it points to"
                )
        elif not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise ConfigError(f"{path} is neither a file nor a folder; remove it")


def trusted_config(
    folder: RunFolder, trust: Trust, used: tuple[str, ...] = CODE_TO_ACT
) -> AnyConfig:
    """Return the config of a run of any algorithm. Raises ConfigError if it does not fit, or if one
    of the fields ``used`` names code that ``trust`` does not cover."""
    algo = folder.algo
    if names_code(algo) and not trust.everything:
        raise ConfigError(
            f"the run in {folder.path} is of algorithm {algo}, whose code would be imported and "
            "run. A run folder may come from an unknown source; if you know where this one comes "
            "from, add --trust (in Python: trust=True)"
        )
    try:
        found = config_class(algo)
    except ConfigError as error:
        raise ConfigError(
            f"the run in {folder.path}: {error}; install the package that brings it, or use the "
            "version that config.yaml names"
        ) from error
    config: AnyConfig = folder.read_config(found, trust, used)
    return config
