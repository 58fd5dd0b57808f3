"""A sum tree over non-negative numbers, from which batches of leaves are drawn in proportion to
them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_FANOUT = 16
"""Children per node. numpy's cost is per level and, in a large tree, per cache line: of 2, 4, 8, 16
and 32, 16 draws and updates fastest from 10k to 10M leaves (at 1M twice as fast as 2)."""
_ONES = np.ones(_FANOUT)  # a product with it is a sum over the children, at a third of the cost
_SUM_OF_BYTES = np.int64(0x0101010101010101)
"""The highest byte of a product with it is the sum of the factor's bytes."""
_TOP = 4096
"""The top level has at most so many nodes, which are searched at once through their cumulative
sum."""


def padded_leaves(size: int) -> int:
    """Return the number of leaves that a tree with ``size`` leaves stores: whole nodes."""
    return -(-size // _FANOUT) * _FANOUT


class SumTree:
    """A sum tree with ``size`` float64 leaves, all 0 at first.

    ``leaves`` [`padded_leaves`]: memory for them, with what they are now; the caller may read it.

    float32 would lose small leaves beside a large sum. Every parent is recomputed from its
    children, never changed by a difference, so that rounding errors do not accumulate.
    """

    def __init__(self, size: int, leaves: Floats | None = None) -> None:
        assert size >= 1
        self.size = size
        self._levels: list[Floats] = []  # [nodes, fan-out] each: one row per parent
        nodes = size
        while True:
            nodes = -(-nodes // _FANOUT)
            self._levels.append(np.zeros((nodes, _FANOUT)))
            if nodes * _FANOUT <= _TOP:
                break
        if leaves is not None:
            self._levels[0] = leaves.reshape(-1, _FANOUT)
            for children, parents in zip(self._levels, self._levels[1:], strict=False):
                parents.reshape(-1)[: len(children)] = children.sum(1)
        self._total: float | None = None  # not known

    @property
    def leaves(self) -> Floats:
        """All leaves [size], for reading."""
        return self._levels[0].reshape(-1)[: self.size]

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        if self._total is None:
            self._total = float(self._levels[-1].sum())
        return self._total

    def clear(self) -> None:
        """Set all leaves to 0."""
        self._total = None
        for level in self._levels:
            level[...] = 0.0

    def set(self, indices: Indices, values: Floats) -> None:
        """Set the leaves ``indices`` [N] to ``values`` [N]; if an index occurs twice, the last
        value counts. Raises ValueError, and changes nothing, if a value is negative or not
        finite."""
        _check(values)
        self._total = None
        self._levels[0].reshape(-1)[indices] = values
        for children, parents in zip(self._levels, self._levels[1:], strict=False):
            indices = indices // _FANOUT
            parents.reshape(-1)[indices] = children.take(indices, axis=0) @ _ONES

    def set_range(self, start: int, values: Floats) -> None:
        """Set the leaves from ``start`` on to ``values`` [N]; faster than `set` for whole blocks.
        Raises ValueError like `set`."""
        _check(values)
        stop = start + len(values)
        assert 0 <= start < stop <= self.size, (start, stop, self.size)
        self._total = None
        self._levels[0].reshape(-1)[start:stop] = values
        for children, parents in zip(self._levels, self._levels[1:], strict=False):
            start, stop = start // _FANOUT, -(-stop // _FANOUT)
            parents.reshape(-1)[start:stop] = children[start:stop].sum(1)

    def find(self, at: Floats) -> Indices:
        """Return the leaf [N] under each point ``at`` [N] of [0, total).

        Leaf i covers the points from the sum of the leaves before it to that sum plus its own
        value. A leaf of 0 is never returned, neither by rounding nor for a point at or beyond the
        total. The total must be positive; ascending points are fastest."""
        top = self._levels[-1].reshape(-1)
        ends = _cumsum(top, 0)
        node = ends.searchsorted(at, side="right")
        if node.max() == len(top):
            node[node == len(top)] = top.nonzero()[0][-1]
        left = at - (ends.take(node) - top.take(node))
        for children in reversed(self._levels[:-1]):
            np.maximum(left, 0.0, out=left)  # below 0, by rounding, it would choose a child of 0
            rows = children.take(node, axis=0)
            ends = _cumsum(rows, 1)
            child = _count(ends <= left[:, None])
            if child.max() == _FANOUT:
                # By rounding, more is left than the children's sum: take the last nonzero child.
                for row in (child == _FANOUT).nonzero()[0]:
                    child[row] = rows[row].nonzero()[0][-1]
            node *= _FANOUT
            node += child
            if children is not self._levels[0]:
                child += np.arange(0, rows.size, _FANOUT)  # its index among all elements of `rows`
                left -= ends.take(child) - rows.take(child)
        return node

    def draw(self, count: int, random: np.random.Generator, batches: int = 1) -> Indices:
        """Draw ``count`` leaves, one from each of ``count`` equal parts of the total (stratified
        sampling), and that ``batches`` times; return their indices [batches * count]."""
        points = (np.arange(count) + random.random((batches, count))) * (self.total / count)
        return self.find(points.reshape(-1))


def _cumsum(values: Floats, axis: int) -> Floats:
    """Return the cumulative sums along an axis, added up in order like numpy's, which take 3 to 8
    times as long."""
    sums: Floats = torch.from_numpy(values).cumsum(axis).numpy()
    return sums


def _count(mask: npt.NDArray[np.bool_]) -> Indices:
    """Return the number of True in each row of ``mask`` [N, `_FANOUT`], int64 [N]. It has no
    branches, which a search in each row cannot predict."""
    halves = mask.view(np.int64)  # [N, 2], a byte is a boolean
    counts: Indices = ((halves[:, 0] + halves[:, 1]) * _SUM_OF_BYTES) >> 56
    return counts


def _check(values: Floats) -> None:
    # NaN fails every comparison, so this refuses it too.
    if not (values.min() >= 0 and values.max() < np.inf):
        bad = values[~((values >= 0) & (values < np.inf))]
        raise ValueError(
            f"{len(bad)} of {len(values)} priorities are negative or not finite, such as {bad[0]}"
        )
