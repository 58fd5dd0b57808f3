"""The presets: configs ``<algo>/<name>.yaml`` in this folder, whose first line is a comment with
the purpose of the preset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.names import nearest
from sampleforge.run.folder.stored_config import config_values

FOLDER = Path(__file__).parent


def preset_names(algo: str) -> list[str]:
    """Return the names of the presets of an algorithm."""
    return sorted(path.stem for path in (FOLDER / algo).glob("*.yaml"))


def preset_file(algo: str, name: str) -> Path:
    """Return the file of a preset. Raises ConfigError, which gives the nearest name, if there is
    none."""
    names = preset_names(algo)
    if name in names:
        return FOLDER / algo / f"{name}.yaml"
    near = nearest(name, names)
    others = [each.parent.name for each in sorted(FOLDER.glob(f"*/{name}.yaml"))]
    hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(names)}."
    if others:
        hint = f"It is one of {' and '.join(others)}"
    raise ConfigError(f"Unknown {algo} preset {name}. {hint}")


def preset_values(algo: str, name: str) -> dict[str, Any]:
    """Return the config fields that a preset sets. Raises ConfigError if there is no such
    preset."""
    return config_values(preset_file(algo, name), algo)
