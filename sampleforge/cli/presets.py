"""The command `sampleforge presets [NAME ...]`: list the presets, or print some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from sampleforge.cli.flags import parse
from sampleforge.config import ConfigError, nearest
from sampleforge.presets import description, preset_file, preset_names
from sampleforge.topologies.config import ALGOS


@dataclass(frozen=True)
class PresetFlags:
    names: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]")
    ] = ()
    """Presets to print (default: list them all)."""


def run(args: Sequence[str]) -> int:
    """List the presets or print those that are named. Raises ConfigError for an unknown name."""
    text = "List the presets, or print some: sampleforge train ALGO --preset NAME uses one."
    flags = parse(PresetFlags, args, "sampleforge presets", text)
    presets = {
        (algo, name): preset_file(algo, name) for algo in ALGOS for name in preset_names(algo)
    }
    if not flags.names:
        width = max((len(name) for _, name in presets), default=0)
        for (algo, name), path in presets.items():
            print(f"{algo:<6} {name:<{width}}  {description(path)}")
    for wanted in flags.names:
        paths = [path for (_, name), path in presets.items() if name == wanted]
        if not paths:
            near = nearest(wanted, [name for _, name in presets])
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(f"Unknown preset {wanted}.{hint} `sampleforge presets` lists them")
        for path in paths:
            print(path.read_text(encoding="utf-8"), end="")
    return 0
