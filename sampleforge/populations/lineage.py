"""The lineage of a population: who copied whom and what was perturbed, in lineage.jsonl.

Each line is a JSON object, written when it happens and never changed:

* ``start``: a member begins, with its first hyperparameters.
* ``score``: a member's objective in a round (null: it has none of its own yet).
* ``exploit``: a member has copied the weights of a donor.
* ``explore``: hyperparameters of a member were perturbed; ``changed`` maps names to [old, new].
* ``resume``: the run goes on from a checkpoint at which the file had ``lines`` lines; what had
  happened later is undone.

``env_steps`` is the member's own count, ``wall_s`` the seconds since the population began, and
``hyperparameters`` are those after the event.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.run.folder.files import LineFile

FILE = "lineage.jsonl"
Event = Mapping[str, Any]
"""One line of the file."""


class Lineage:
    """Appends events to the lineage at ``path``. An incomplete last line, which a kill has left, is
    cut off first.

    ``lines``: number of lines so far.
    """

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)
        self.lines = path.read_bytes().count(b"\n")

    def append(self, event: Event) -> None:
        """Append an event. Raises ValueError for one that `read` would refuse, CannotWrite as on a
        full disk."""
        text = json.dumps(event, allow_nan=False)
        if (problem := _problem(json.loads(text))) is not None:
            raise ValueError(f"{problem}: {text}")
        self._file.write(text)
        self.lines += 1

    def close(self) -> None:
        self._file.close()


def position(
    member: str, round_number: int, env_steps: int, wall_s: float, learned: int | None = None
) -> dict[str, Any]:
    """Return what every event says of its member, without the hyperparameters. ``learned``: the env
    steps that had led to the member's weights (None: unknown, or the weights do not matter)."""
    place = {"member": member, "round": round_number, "env_steps": env_steps, "wall_s": wall_s}
    return place if learned is None else {**place, "at": learned}


def read(path: Path) -> list[dict[str, Any]]:
    """Return the events of a lineage in order, without those that a later ``resume`` has undone and
    without the ``resume`` events. An incomplete last line is left out, because its writer may have
    been killed, or may be writing it now. Raises ConfigError, which names the line and the reason,
    if the file cannot be read or a line is damaged."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, where: str) -> list[dict[str, Any]]:
    """As `read`, of the contents of a file that messages call ``where``."""
    *lines, _incomplete = text.split("\n")
    kept: list[dict[str, Any] | None] = []
    for number, line in enumerate(lines, 1):
        event = _parsed(line, f"{where}, line {number}")
        if event["event"] == "resume":
            undone = range(min(event["lines"], len(kept)), len(kept))
            kept = [None if at in undone else earlier for at, earlier in enumerate(kept)]
        kept.append(None if event["event"] == "resume" else event)
    return [event for event in kept if event is not None]


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is damaged: {error}") from error
    if (problem := _problem(event)) is not None:
        raise ConfigError(f"{where} is damaged: {problem}")
    checked: dict[str, Any] = event
    return checked


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _is_number_or_null(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_hyperparameter(value: Any) -> bool:
    return isinstance(value, bool) or _is_number_or_null(value)


def _are_hyperparameters(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_hyperparameter, value.values()))


def _are_changes(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    pairs = value.values()
    return all(
        isinstance(p, list) and len(p) == 2 and all(map(_is_hyperparameter, p)) for p in pairs
    )


_COMMON: dict[str, Callable[[Any], bool]] = {
    "member": _is_text,
    "round": _is_count,
    "env_steps": _is_count,
    "wall_s": _is_number,
    "hyperparameters": _are_hyperparameters,
}
_KEYS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "start": _COMMON,
    "score": {**_COMMON, "objective": _is_number_or_null, "episodes": _is_count},
    "exploit": {
        **_COMMON,
        "donor": _is_text,
        "donor_env_steps": _is_count,
        "objective": _is_number_or_null,
        "donor_objective": _is_number_or_null,
    },
    "explore": {**_COMMON, "changed": _are_changes},
    "resume": {"lines": _is_count},
}
"""Event -> the keys that it must have, with the checks of their values. It may have others."""


def _problem(event: Any) -> str | None:
    """Return what is wrong with an event; None if it is whole."""
    if not isinstance(event, dict):
        return "it is no JSON object"
    name = event.get("event")
    if not isinstance(name, str) or name not in _KEYS:
        return f"event is {name!r}, but must be one of {', '.join(_KEYS)}"
    for key, is_right in _KEYS[name].items():
        if key not in event:
            return f"{name} has no {key!r}"
        if not is_right(event[key]):
            return f"{key} of {name} is {event[key]!r}"
    return None
