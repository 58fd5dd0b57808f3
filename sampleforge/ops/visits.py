"""Which observations an episode had before, told by fingerprints of their bytes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

WORD = 8
"""Bytes of an int64."""
LOW = 0xFFFFFFFF
"""The low half of a word."""
FACTOR = -7046029254386353131
"""An odd number whose multiples differ in many bits: 2^64 over the golden ratio, as int64."""
PIECE = 2**20
"""Bytes of which the fingerprints are computed at once: those that stay in a core's cache."""


def fingerprints(leaves: Mapping[str, Tensor]) -> Tensor:
    """Return a number for each observation, int64 [T, B], of the ``leaves`` [T, B, ...]: the same
    for the same bytes, and for others, but for one pair in 2^32 or fewer, another one."""
    found = None
    for _, leaf in sorted(leaves.items()):
        steps = max(1, PIECE * len(leaf) // max(1, leaf.numel() * leaf.element_size()))
        own = torch.cat([_weighted_sum(piece) for piece in torch.split(leaf, steps)])
        found = own if found is None else _mixed(found) * FACTOR + own
    assert found is not None, "an observation has a leaf"
    return found


def _weighted_sum(leaf: Tensor) -> Tensor:
    """Return the sum over the words of each observation of ``leaf`` [T, B, ...], int64 [T, B], each
    times the odd number of its place."""
    data = leaf.reshape(*leaf.shape[:2], -1).contiguous().view(torch.uint8)
    words = pad(data, (0, WORD - data.shape[-1] % WORD)).view(torch.int64)  # aligned: a copy
    places = torch.arange(words.shape[-1], device=words.device) * 2 + 1
    return (_mixed(words) * (_mixed(places * FACTOR) * FACTOR | 1)).sum(-1)


def _mixed(words: Tensor) -> Tensor:
    """Return the int64 ``words``, one to one, with the high half also in the low one: in a product
    modulo 2^64 a bit changes no lower ones."""
    return (words >> 32).bitwise_and_(LOW).bitwise_xor_(words)


def first_visits(leaves: Mapping[str, Tensor], is_first: Tensor) -> Tensor:
    """Return whether an observation was not there before in its episode, bool [T, B], as far as
    these T steps show it. ``leaves`` [T, B, ...]; ``is_first``: bool [T, B], the first observation
    of an episode."""
    episodes = is_first.long().cumsum(0) * FACTOR
    ordered, index = (fingerprints(leaves) + episodes).sort(stable=True, dim=0)
    again = torch.zeros_like(is_first)
    again[1:] = ordered[1:] == ordered[:-1]
    return ~torch.empty_like(again).scatter_(0, index, again)
