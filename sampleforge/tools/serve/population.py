"""The lineage of a population as plain values, of which the page draws table and figure."""

from __future__ import annotations

import math
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.populations.lineage import parse
from sampleforge.tools.plots.descent import History, Stretch
from sampleforge.tools.plots.lineage import changing
from sampleforge.tools.plots.lineage_lanes import lane_order
from sampleforge.tools.serve.tree import Refused

MAX_BYTES = 16 << 20
"""Bytes of the longest lineage.jsonl that is shown."""
MAX_MEMBERS = 200
ORDERED_UP_TO = 32
"""Members up to which the lanes are ordered so that curves between them are short."""
MAX_RESUMED = 10_000_000
"""Lines times resumes of a file up to which it is read: the time grows with both."""


def population(data: bytes, name: str) -> dict[str, Any]:
    """Return members, lines of descent and hyperparameters of the population whose lineage is
    ``data``, read from a file ``name``. Raises Refused, with the reason, for a lineage that cannot
    be read or shown."""
    if data.count(b"\n") * data.count(b'"resume"') > MAX_RESUMED:
        raise Refused(f"{name} is too long: too many resumes")
    try:
        history = History(parse(data.decode("utf-8", errors="replace"), name))
    except (ConfigError, ValueError, RecursionError) as error:
        raise Refused(str(error)) from error
    members = history.members
    if len(members) > MAX_MEMBERS:
        raise Refused(f"{name} has {len(members)} members; at most {MAX_MEMBERS} are shown")
    if not members:
        return {"members": [], "stretches": [], "hyperparameters": [], "best": None}
    order = lane_order(history) if len(members) <= ORDERED_UP_TO else members
    stretches = [stretch for member in members for stretch in history.stretches[member]]
    number = {stretch: index for index, stretch in enumerate(stretches)}
    best = {stretch: end for stretch, end in history.ancestry(history.best)}
    survival = history.survival()
    return {
        "best": history.best,
        "hyperparameters": changing(history),
        "members": [_member(member, history.stretches[member]) for member in order],
        "stretches": [
            {
                "member": each.member,
                "begin": each.begin,
                "end": each.end,
                "parent": None if each.parent is None else number[each.parent],
                "copied_at": None if each.origin is None else each.origin.donor_env_steps,
                "kept_until": survival.get(each),
                "best_until": best.get(each),
                "scores": [[s.env_steps, _finite(s.objective)] for s in each.scores],
                "settings": [[s.env_steps, dict(s.values), list(s.mutated)] for s in each.settings],
            }
            for each in stretches
        ],
    }


def _member(member: str, stretches: list[Stretch]) -> dict[str, Any]:
    """Return a member's row of the table."""
    last = stretches[-1]
    objectives = [stretch.objective for stretch in stretches]
    known = [objective for objective in objectives if not math.isnan(objective)]
    settings = [setting for stretch in stretches for setting in stretch.settings]
    return {
        "id": member,
        "objective": known[-1] if known else None,
        "env_steps": last.end,
        "copied_from": None if last.origin is None else last.origin.donor,
        "copies": len(stretches) - 1,
        "mutations": sum(bool(setting.mutated) for setting in settings),
        "hyperparameters": dict(settings[-1].values) if settings else {},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
