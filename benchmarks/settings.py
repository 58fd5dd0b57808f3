"""The tables of docs/reference/settings.md: every flag of a training command.

    python benchmarks/settings.py            # prints the page
    python benchmarks/settings.py --write    # writes it

A table per part of the configs; a default that the algorithms do not share has their names.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sampleforge.cli.flags import TITLES, config_parts, part_title
from sampleforge.config import docstrings, in_yaml
from sampleforge.models.config import ModelConfig
from sampleforge.topologies.config import ALGOS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"
INTRODUCTION = """\
# Settings

<!-- written by benchmarks/settings.py --write -->

All flags of `sampleforge train ALGO`. Each is a field of the config in Python, a key of
`--config FILE.yaml`, of presets and of `config.yaml`, too: `--train-for-env-steps` is
`train_for_env_steps`, `--model.core` is `core` of `model`. A default in words is chosen for the
environment and the machine. What a preset sets: `sampleforge presets NAME`.
"""
CHOSEN = re.compile(r" ?\(default: ([^)]*(?:\([^)]*\)[^)]*)*)\)")


def tables() -> Iterator[str]:
    """Yield the headings and tables of the page."""
    having: dict[type[Any], list[str]] = {}
    for algo, cls in ALGOS.items():
        for part in config_parts(cls):
            having.setdefault(part, []).append(algo)
    for part, algos in having.items():
        of = "" if len(algos) == len(ALGOS) else f" ({', '.join(algos)})"
        name = TITLES.get(part_title(part), part_title(part))
        yield f"## {name[0].upper()}{name[1:]}{of}\n\n" + _table(part, algos, "")
    yield "## Network\n\n" + _table(ModelConfig, [*ALGOS], "model.")


def _table(part: type[Any], algos: list[str], prefix: str) -> str:
    texts = docstrings(part)  # type: ignore[arg-type]
    rows = ["| flag | default | meaning |", "|---|---|---|"]
    for name in inspect.get_annotations(part):
        if name in texts and not inspect.get_annotations(part)[name].startswith("ClassVar"):
            text = CHOSEN.sub("", texts[name]).replace("|", "\\|").replace("<", "&lt;").strip()
            flag = f"`--{prefix}{name.replace('_', '-')}`"
            rows.append(f"| {flag} | {_default(name, texts[name], algos, prefix)} | {text} |")
    return "\n".join(rows) + "\n"


def _default(name: str, text: str, algos: list[str], prefix: str) -> str:
    """Return the default of a flag as it is typed, or as its text says it."""
    found: dict[str, list[str]] = {}
    for algo in algos:
        config = ALGOS[algo](env="X")
        value = getattr(config.model if prefix else config, name)
        found.setdefault(_typed(value), []).append(algo)
    if said := CHOSEN.search(text):
        return said[1].replace("<", "&lt;")
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{', '.join(of)}: {value or 'none'}" for value, of in found.items())


def _typed(value: Any) -> str:
    if value in (None, "", (), {}):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    values = value if isinstance(value, tuple) else (value,)
    return f"`{' '.join(in_yaml(each).strip() for each in values)}`"


def page() -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, *tables()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
