"""What a learner is to the processes around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

Tensors = dict[str, torch.Tensor]


class Learner(Protocol):
    """A learner of one policy, as an object without a process. Its `update` is between it and the
    worker that has its batches.

    ``version``: the policy version, which never goes back. ``env_steps``: those that have led to
    its weights. ``tag``: plain values that others keep with its state. ``model``: the network that
    is published.
    """

    version: int
    env_steps: int
    tag: dict[str, Any]

    @property
    def model(self) -> nn.Module: ...

    def hyperparameters(self) -> dict[str, Any]:
        """Return the values that `change` can change, by name."""

    def change(self, new: Mapping[str, Any]) -> None:
        """Change hyperparameters, from the next update on. Raises ValueError for a name that cannot
        change, ConfigError for a value out of range."""

    def reseed(self, seed: int) -> None:
        """Seed anew the random numbers that the learner draws, if it draws any."""

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        """Return the complete state of learning: tensors (clones on the CPU) and plain values."""

    def load(self, tensors: Tensors, plain: dict[str, Any]) -> None:
        """Restore a `state`. Raises ValueError if it is of another model."""
