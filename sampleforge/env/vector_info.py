"""The info of a VectorEnv, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sampleforge.env.step_values import refuse

NOTHING = object()
"""In place of the value of a row that has none."""


def value_of_row(info: Mapping[str, Any], name: str, row: int, rows: int, env_id: str) -> Any:
    """Return what ``info`` holds under ``name`` for one ``row`` of ``rows``; `NOTHING` if it has
    nothing for it.

    gymnasium gives an array (or list) with an entry per row, or a dict of such, and beside it, as
    ``_name``, a bool array of the rows that have one (none: all have). Raises ConfigError for
    anything else."""
    if name not in info:
        return NOTHING
    value, having = info[name], info.get(f"_{name}")
    if having is not None and not _entry(having, f"_{name}", row, rows, env_id):
        return NOTHING
    if not isinstance(value, Mapping):
        return _entry(value, name, row, rows, env_id)
    masks = {f"_{key}" for key in value}
    own = {k: value_of_row(value, k, row, rows, env_id) for k in value if k not in masks}
    return {key: each for key, each in own.items() if each is not NOTHING}


def _entry(column: Any, name: str, row: int, rows: int, env_id: str) -> Any:
    if isinstance(column, list | tuple | np.ndarray) and np.ndim(column) and len(column) == rows:
        return column[row]
    refuse(
        f"{env_id}, all {rows} rows",
        f"info[{name!r}]",
        f"an array with an entry for each of the {rows} rows",
        column,
        f"return one, and beside it _{name}, a bool array of the rows that have an entry",
    )
