"""Uniformly random actions, for the probe of an environment and for measuring a simulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from sampleforge.spec import ActionSpec, EnvSpec

Array = np.ndarray[Any, Any]


def random_actions(
    spec: EnvSpec, rows: int, rng: np.random.Generator, masks: Array | None = None
) -> dict[str, Array]:
    """Return uniformly random actions, leaf -> [rows, ...] as in the slots; boxes within their
    bounds, or in +-1 without bounds. ``masks``: bool [rows, sum of categories], True where a
    category is allowed."""
    at, actions = 0, {}
    for name, leaf in spec.actions.items():
        if leaf.kind == "box":
            actions[name] = _random_box(leaf, rows, rng)
            continue
        columns = []
        for n in leaf.categories:
            allowed = np.ones((rows, n)) if masks is None else masks[:, at : at + n]
            columns.append(np.argmax(rng.random((rows, n)) * allowed, axis=1))
            at += n
        actions[name] = np.stack(columns, axis=1).reshape(rows, *leaf.shape).astype(leaf.dtype)
    return actions


def _random_box(leaf: ActionSpec, rows: int, rng: np.random.Generator) -> Array:
    low = np.nan_to_num(np.array(leaf.low), neginf=-1.0)
    high = np.nan_to_num(np.array(leaf.high), posinf=1.0)
    values = rng.uniform(low, np.maximum(low, high), (rows, len(leaf.low)))
    return values.reshape(rows, *leaf.shape).astype(leaf.dtype)
