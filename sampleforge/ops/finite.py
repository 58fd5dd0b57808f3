"""Whether arrays hold finite numbers only, fast enough to ask at every env step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

SMALL = 8192
"""Elements up to which a product is faster than a look at each; BLAS keeps to one thread, too."""


def all_finite(array: npt.NDArray[Any]) -> bool:
    """Whether a contiguous array of floats holds neither NaN nor inf.

    x * x is NaN or inf if one element of x is: 0.9 us for 16 rows of 4, where np.isfinite takes
    2.4. It is inf where the sum of squares overflows, too: then each element is looked at.
    """
    flat = array.reshape(-1)
    if flat.size <= SMALL:
        with np.errstate(over="ignore"):
            if flat.dot(flat) < math.inf:
                return True
    return bool(np.isfinite(flat).all())


def rows_not_finite(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """bool [rows]: which rows of ``array`` [rows, ...] hold NaN or inf."""
    finite: npt.NDArray[np.bool_] = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return ~finite
