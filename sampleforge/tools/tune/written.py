"""The file with the flags that a search has found."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sampleforge.run.folder.atomic_file import write_atomically
from sampleforge.tools.tune.config import TuneConfig

if TYPE_CHECKING:
    from rich.console import Console


def write_tuned(
    console: Console, asked: TuneConfig, out: Path, head: str, values: Mapping[str, Any]
) -> None:
    """Write the flags that were found as a YAML file for --config, after the comment ``head``, and
    print the command that trains with it."""
    text = yaml.safe_dump({"algo": asked.algo, "env": asked.env, **values}, sort_keys=False)
    write_atomically(out, (head + text).encode())
    words = ["sampleforge", "train", asked.algo]
    words += ["--preset", asked.preset] if asked.preset else []
    console.print(f"Written to {out}. To train with it:", soft_wrap=True, markup=False)
    print(shlex.join([*words, "--config", str(out)]))
