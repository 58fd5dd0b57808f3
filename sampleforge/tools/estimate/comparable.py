"""Whether the episodes of a dataset say anything about the return of a policy."""

from __future__ import annotations

from sampleforge.config import ConfigError, typed
from sampleforge.data.dataset import OfflineDataset
from sampleforge.models.config import ModelConfig
from sampleforge.spec import EnvSpec


def check_comparable(data: OfflineDataset, spec: EnvSpec, model: ModelConfig) -> None:
    """Raise ConfigError if the actions of ``data`` were drawn in another way than those of a policy
    with this ``model``, which acts in the environment of ``spec``.

    A policy that squashes its Box actions never takes one beyond the bounds, and almost never one
    at a bound, which is where many of the others end. Its density there is that of an action
    within, and so are ratios with it, which are wrong by factors of thousands. A policy head of the
    user's own is not checked: what it draws is not known."""
    has_boxes = any(leaf.kind == "box" for leaf in spec.actions.values())
    if not has_boxes or data.squashed is None or model.head is not None:
        return
    if data.squashed != model.squash_actions:
        acted, judged = (
            typed("model.squash_actions", each) for each in (data.squashed, model.squash_actions)
        )
        raise ConfigError(
            f"{data.source} was recorded with {acted}, and the run has {judged}: the two policies "
            "take their Box actions from different sets, so that the ratios of their probabilities "
            f"mean nothing; record data with a policy that has {judged}, too"
        )
