"""The policy's distribution over all leaves of an action. The leaves are independent, so their
log-probabilities add up.

The parameters of a distribution, along the last axis:
  logits of every discrete element in leaf order (MultiBinary: two per element) |
  means of every box element in leaf order | their log standard deviations in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from sampleforge.ops.categorical import Categoricals
from sampleforge.ops.gaussian import Gaussian
from sampleforge.spec import ActionSpec


@dataclass(frozen=True)
class _Leaf:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_box: bool
    start: int
    """Index of the leaf's first element among all discrete, or all box, elements."""

    @property
    def elements(self) -> slice:
        return slice(self.start, self.start + math.prod(self.shape))


@dataclass(frozen=True)
class ActionLayout:
    """The place of each action leaf among the parameters. Build it once with `action_layout`."""

    leaves: tuple[_Leaf, ...]
    sizes: tuple[int, ...]
    """Number of categories of each discrete element."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Upper bound of each box element, as ``low`` is its lower bound."""

    @property
    def num_logits(self) -> int:
        return sum(self.sizes)

    @property
    def num_boxes(self) -> int:
        return len(self.low)

    def head_size(self, *, state_std: bool) -> int:
        """Return the number of outputs that the policy head needs: all parameters of the
        distribution with ``state_std``, all but the log standard deviations (which come last)
        without."""
        return self.num_logits + self.num_boxes * (2 if state_std else 1)

    @property
    def is_bounded(self) -> bool:
        pairs = zip(self.low, self.high, strict=True)
        return all(math.isfinite(lo) and math.isfinite(hi) and lo < hi for lo, hi in pairs)


def action_layout(actions: Mapping[str, ActionSpec]) -> ActionLayout:
    """Return the layout of the distribution's parameters for these action leaves."""
    leaves: list[_Leaf] = []
    sizes: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    for name, spec in actions.items():
        is_box = spec.kind == "box"
        start = len(low) if is_box else len(sizes)
        leaves.append(_Leaf(name, spec.shape, getattr(torch, spec.dtype), is_box, start))
        sizes, low, high = sizes + spec.categories, low + spec.low, high + spec.high
    return ActionLayout(tuple(leaves), sizes, low, high)


class ActionDistribution:
    """The distribution with ``parameters`` [..., P], whose order the head of this file gives.

    Parameters may be of any float dtype; the maths is float32. ``mask``: bool [..., number of
    logits], True where a category is allowed, in the order of the logits. ``squash``: boxes are
    tanh-squashed into their bounds; otherwise they are plain Gaussians, which the environment
    clips. Every result but the actions is float32 [...]; so is the attribute ``parameters``.
    """

    def __init__(
        self,
        actions: Mapping[str, ActionSpec] | ActionLayout,
        parameters: Tensor,
        mask: Tensor | None = None,
        squash: bool = False,
    ) -> None:
        layout = actions if isinstance(actions, ActionLayout) else action_layout(actions)
        self._layout = layout
        self._discrete: Categoricals | None = None
        self._box: Gaussian | None = None
        expected = layout.head_size(state_std=True)
        assert parameters.shape[-1] == expected, (tuple(parameters.shape), expected)
        self.parameters = parameters = parameters.float()
        if not layout.low:
            self._discrete = Categoricals(parameters, layout.sizes, mask)
            return
        if layout.sizes:
            logits = parameters[..., : layout.num_logits]
            self._discrete = Categoricals(logits, layout.sizes, mask)
        mean, log_std = parameters[..., layout.num_logits :].chunk(2, -1)
        low, high = bounds_of(layout, parameters.device) if squash else (None, None)
        self._box = Gaussian(mean, log_std, low, high)

    def sample(
        self, generator: torch.Generator | None = None, noise: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return a sample, leaf name -> [..., *shape] in the leaf's dtype, without gradient.

        ``noise`` [..., number of box elements]: standard normal numbers for the boxes; drawn from
        the generator if None."""
        return self._leaves(
            None if self._discrete is None else self._discrete.sample(generator),
            None if self._box is None else self._box.sample(generator, noise),
        )

    def mode(self) -> dict[str, Tensor]:
        """Return the most likely action of every row, leaf name -> [..., *shape]."""
        return self._leaves(
            None if self._discrete is None else self._discrete.mode(),
            None if self._box is None else self._box.mode(),
        )

    def log_prob(self, actions: Mapping[str, Tensor]) -> Tensor:
        """Return the log-probability [...] of actions in the form that `sample` returns.

        The density of squashed boxes is with respect to the squashed action."""
        if self._box is None:
            return self._discrete_log_prob(actions)
        boxes = torch.cat(self._flat(actions, is_box=True), -1)
        log_prob = self._box.log_prob(boxes)
        return log_prob if self._discrete is None else log_prob + self._discrete_log_prob(actions)

    def entropy(self) -> Tensor:
        """Return the entropy [...], summed over the leaves. For squashed boxes it is exact to 1e-6
        per element (`Gaussian.entropy`)."""
        if self._box is None:
            assert self._discrete is not None
            return self._discrete.entropy()
        entropy = self._box.entropy()
        return entropy if self._discrete is None else entropy + self._discrete.entropy()

    def symmetric_kl_to_uniform(self) -> Tensor:
        """Return the divergence [...] from the uniform distribution u, summed over the elements.

        Discrete elements: (KL(p, u) + KL(u, p)) / 2 over the allowed categories. Box elements:
        minus their entropy, which is KL(p, u) up to a constant; KL(u, p) does not exist for a
        Gaussian, and u does not exist without bounds."""
        if self._box is None:
            assert self._discrete is not None
            return self._discrete.symmetric_kl_to_uniform()
        box = -self._box.entropy()
        return box if self._discrete is None else box + self._discrete.symmetric_kl_to_uniform()

    def kl(self, other: ActionDistribution) -> Tensor:
        """Return KL(self, other) [...]. Both must be over the same actions under the same mask."""
        if self._box is None:
            assert self._discrete is not None and other._discrete is not None
            return self._discrete.kl(other._discrete)
        assert other._box is not None
        box = self._box.kl(other._box)
        if self._discrete is None:
            return box
        assert other._discrete is not None
        return box + self._discrete.kl(other._discrete)

    def _discrete_log_prob(self, actions: Mapping[str, Tensor]) -> Tensor:
        assert self._discrete is not None
        layout = self._layout
        if len(layout.leaves) == 1 and layout.leaves[0].shape == ():
            return self._discrete.log_prob(actions[layout.leaves[0].name])
        indices = torch.cat(self._flat(actions, is_box=False), -1).long()
        return self._discrete.log_prob(indices.squeeze(-1) if len(layout.sizes) == 1 else indices)

    def _flat(self, actions: Mapping[str, Tensor], is_box: bool) -> list[Tensor]:
        """Return the box leaves, or the discrete leaves, each as [..., elements]."""
        chosen = [leaf for leaf in self._layout.leaves if leaf.is_box == is_box]
        return [
            x.reshape(*x.shape[: x.ndim - len(leaf.shape)], -1)
            for leaf, x in ((leaf, actions[leaf.name]) for leaf in chosen)
        ]

    def _leaves(self, indices: Tensor | None, boxes: Tensor | None) -> dict[str, Tensor]:
        layout = self._layout
        if len(layout.leaves) == 1 and layout.leaves[0].shape == () and indices is not None:
            return {layout.leaves[0].name: indices}
        if indices is not None and len(layout.sizes) == 1:
            indices = indices.unsqueeze(-1)
        actions: dict[str, Tensor] = {}
        for leaf in layout.leaves:
            elements = boxes if leaf.is_box else indices
            assert elements is not None
            flat = elements[..., leaf.elements].to(leaf.dtype)
            actions[leaf.name] = flat.reshape(*flat.shape[:-1], *leaf.shape)
        return actions


@lru_cache(maxsize=64)
def bounds_of(layout: ActionLayout, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return low and high, float64 [number of box elements]. Raises ValueError if an element is
    unbounded or has low >= high."""
    if not layout.is_bounded:
        raise ValueError(
            f"squashed actions need finite bounds with low < high, but the Box actions have low "
            f"{layout.low} and high {layout.high}; leave squash_actions off, or bound the Box"
        )
    with torch.inference_mode(False):  # built while acting, used in training too
        low = torch.tensor(layout.low, dtype=torch.float64, device=device)
        return low, torch.tensor(layout.high, dtype=torch.float64, device=device)
