"""An update of a learner as the hooks of callbacks see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from sampleforge.algorithms.learning import Learner
from sampleforge.workers.callback import Hook, WorkerCallbacks, call, numbers
from sampleforge.workers.metrics import CUSTOM


@dataclass(frozen=True)
class LearnerUpdate:
    """An update of one learner with one batch.

    ``policy``: the id of its policy; ``learner``: its number (DD-PPO: the rank). ``version``: the
    policy version after the update. ``metrics``: the update's own, read-only. ``model``: the
    learner's, on its device: read it, but leave it as it is. ``custom_metrics``: add numbers to it;
    those of learner 0 are reported, see docs/callbacks.md.
    """

    policy: str
    learner: int
    version: int
    metrics: Mapping[str, float]
    model: torch.nn.Module
    custom_metrics: dict[str, float] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The learner, in words."""
        return f"learner {self.learner} of {self.policy}"


class UpdateHooks:
    """Calls ``hooks`` after the updates of a learner."""

    def __init__(self, hooks: tuple[Hook, ...], callbacks: WorkerCallbacks) -> None:
        self._hooks = hooks
        (self._policy,) = callbacks.policies
        self._index = callbacks.worker

    def __call__(self, learner: Learner, metrics: dict[str, float]) -> None:
        """Call the hooks, and add the numbers that they give to the ``metrics`` of the update, from
        which `ReportMetrics` makes their mean, minimum and maximum."""
        shown = MappingProxyType(dict(metrics))
        update = LearnerUpdate(self._policy, self._index, learner.version, shown, learner.model)
        call(self._hooks, update)
        for name, value in numbers(update.custom_metrics, update.place).items():
            metrics |= {f"{CUSTOM}{name}_{kind}": value for kind in ("mean", "min", "max")}


def update_hooks(callbacks: WorkerCallbacks | None) -> UpdateHooks | None:
    """Return what calls the hooks of a learner's updates; None if no callback overrides them."""
    hooks = () if callbacks is None else callbacks.hooks("on_learner_update")
    return UpdateHooks(hooks, callbacks) if callbacks is not None and hooks else None
