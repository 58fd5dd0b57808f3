"""Variants of a test that the everyday run leaves out."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """Return the parameters of a variant for `pytest.mark.parametrize` that only `-m slow` runs: it
    takes seconds, and those beside it take nearly the same way through the code."""
    return pytest.param(*values, marks=pytest.mark.slow)
