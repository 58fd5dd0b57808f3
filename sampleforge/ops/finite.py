"""Checks that arrays hold finite numbers only, fast enough for every env step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

SMALL = 8192
"""Number of elements up to which a dot product is faster than checking each element, and up to
which BLAS uses one thread."""


def all_finite(array: npt.NDArray[Any]) -> bool:
    """Return whether a contiguous array of floats holds neither NaN nor inf.

    x . x is NaN or inf if one element of x is: 0.9 us for 16 rows of 4, where np.isfinite takes
    2.4. It is also inf if the sum of squares overflows: then each element is checked.
    """
    flat = array.reshape(-1)
    if flat.size <= SMALL:
        with np.errstate(over="ignore"):
            if flat.dot(flat) < math.inf:
                return True
    return bool(np.isfinite(flat).all())


def rows_not_finite(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which rows of ``array`` [rows, ...] hold NaN or inf, bool [rows]."""
    finite: npt.NDArray[np.bool_] = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return ~finite
