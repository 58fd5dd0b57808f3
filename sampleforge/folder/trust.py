"""What a run folder may not decide alone: values that name code, and places outside of it.

A run folder may come from somewhere else. Its values that make Python import what they name are
used only if the user vouches for the folder (--trust) or gives the same value on the command line;
and nothing in it is followed out of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sampleforge.config import ConfigError, typed

IMPORTABLE = ("env", "env_kwargs", "model.encoder")
"""Fields of a config, by dotted name, whose values can name code."""


@dataclass(frozen=True)
class Trust:
    """What the user says about a run folder: ``everything`` in it may be used (--trust), or the
    values ``repeated`` on the command line, by dotted name, may be."""

    everything: bool = False
    repeated: Mapping[str, Any] = field(default_factory=dict)


def check_trust(
    config_file: Path, config: Any, trust: Trust, used: Sequence[str] = IMPORTABLE
) -> None:
    """Raise ConfigError for values in ``config``, read from ``config_file``, that name code and
    that the user has neither vouched for nor repeated; and for repeated ones that differ. Only the
    fields that are ``used`` count."""
    stored = {name: _value(config, name) for name in IMPORTABLE}
    for name, value in trust.repeated.items():
        if value != stored[name]:
            raise ConfigError(
                f"{typed(name, value)}: the run in {config_file.parent} was trained with "
                f"{stored[name]!r}; repeat that value, or leave out the flag"
            )
    if trust.everything:
        return
    refused = {
        name: value
        for name, value in naming_code(config, used).items()
        if name not in trust.repeated and value
    }
    if not refused:
        return
    found = "\n  ".join(f"{name}: {value!r}" for name, value in refused.items())
    repeat = " ".join(typed(name, stored[name]) for name in refused)
    raise ConfigError(
        f"{config_file} names code that would be imported and run:\n  {found}\n"
        "A run folder may come from somewhere else, so that such values are used only if you say "
        f"so. If you know this folder: add --trust (in Python: trust=True), or repeat what it "
        f"names: {repeat}"
    )


def naming_code(config: Any, used: Sequence[str] = IMPORTABLE) -> dict[str, Any]:
    """The values of a config, by dotted name, that make Python import what they name; empty ones
    for those that do not. Only of the fields that are ``used``."""
    from sampleforge.env.importable import importable_kwargs, names_code

    encoder, found = config.model.encoder, {}
    if "env" in used:
        found["env"] = config.env if names_code(config.env) else ""
    if "env_kwargs" in used:
        found["env_kwargs"] = importable_kwargs(config)
    if "model.encoder" in used:
        found["model.encoder"] = encoder if ":" in encoder else ""
    return found


def imports_code(config: Any, used: Sequence[str] = IMPORTABLE) -> bool:
    """Whether any value of a config, in the fields that are ``used``, names code."""
    return any(naming_code(config, used).values())


def _value(config: Any, name: str) -> Any:
    """The field of a config with that dotted name."""
    for part in name.split("."):
        config = getattr(config, part)
    return config


def check_places(folder: Path, names: tuple[str, ...]) -> None:
    """Raise ConfigError if one of ``names`` in ``folder``, or anything below it, is a link that
    leads out of the folder, or no file or folder at all (a pipe would be waited for for ever)."""
    inside = folder.resolve()
    waiting = [folder / name for name in names]
    while waiting:
        path = waiting.pop()
        try:
            mode = path.lstat().st_mode
            below = os.listdir(path) if stat.S_ISDIR(mode) else []
        except FileNotFoundError:  # the run is going on, and has removed it
            continue
        waiting += [path / name for name in below]
        if stat.S_ISLNK(mode):
            try:
                target = path.resolve()
            except (OSError, RuntimeError) as error:  # RuntimeError: before Python 3.13
                raise ConfigError(f"{path} is a link that leads nowhere; remove it") from error
            if not target.is_relative_to(inside):
                raise ConfigError(
                    f"{path} is a link to {target}, outside of the run folder, and such links are "
                    "not followed; put there what it points to, or move the whole folder instead"
                )
        elif not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise ConfigError(f"{path} is neither a file nor a folder; remove it")
