"""The invertible squashing of value targets (Pohlen et al. 2018, arXiv 1805.11593).

h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x keeps returns of any size within what one network can
learn, without clipping rewards.
"""

from __future__ import annotations

from torch import Tensor

EPSILON = 1e-3
"""R2D2's."""


def rescale(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """h(x), elementwise."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + epsilon * x


def unrescale(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """The inverse of `rescale` (proposition A.2 of the paper), elementwise."""
    root = (1 + 4 * epsilon * (x.abs() + 1 + epsilon)).sqrt()
    return x.sign() * (((root - 1) / (2 * epsilon)).square() - 1)


def slope(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """h'(x), elementwise."""
    return 0.5 / (x.abs() + 1).sqrt() + epsilon
