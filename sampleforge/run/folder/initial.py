"""The weights of another run, with which a new run begins (--init-from)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, cast, get_args

import torch

from sampleforge.algorithms.learning import Learner
from sampleforge.config import ConfigError
from sampleforge.models.parts import check_parts, part_of
from sampleforge.run.folder.checkpoint import CheckpointStore, model_tensors, store_of

Which = Literal["latest", "best"]
OF_ONE_LEARNER = re.compile(r"model/|rng|\w*optimiser/")
"""How the names of a learner's tensors begin that are not taken."""


class InitialWeights:
    """The checkpoint whose weights a new run begins with, and which ``parts`` of them it takes
    (`sampleforge.models.parts`; empty: all). ``mismatch``: whether a weight that the checkpoint has
    not, or in another shape, is refused, or left as it is made."""

    def __init__(
        self, store: CheckpointStore, which: Which, parts: Collection[str], mismatch: str
    ) -> None:
        self._store = store
        self._which = which
        self._parts = frozenset(parts)
        self._mismatch = mismatch

    def weights(self, model: torch.nn.Module) -> list[str]:
        """Load the weights into ``model``; return the names of those that are left as they are
        made. Raises ConfigError for weights that do not fit."""
        own = model.state_dict()
        check_parts("init_parts", self._parts, own)
        wanted = {name: tensor for name, tensor in own.items() if self._takes(name)}
        found = _fitting(model_tensors(self._tensors()), wanted)
        # Statistics belong together: a mean of another shape has another count, too.
        apart = {_leaf(name) for name in wanted if name not in found} - {""}
        found = {name: tensor for name, tensor in found.items() if _leaf(name) not in apart}
        left = [name for name in wanted if name not in found]
        if left and (self._mismatch == "refuse" or not found):
            raise ConfigError(
                f"--init-from: {', '.join(left[:6])}{', ...' if left[6:] else ''} of the network "
                f"here {'are' if left[1:] else 'is'} not in the checkpoint in {self._store.folder},"
                " or of another shape there; name the --init-parts that both have, leave the rest "
                "new with --init-mismatch new, or use the same network"
            )
        model.load_state_dict({**own, **found})
        return left

    def learner(self, learner: Learner) -> None:
        """Load what the learner has beside its model: critics and their targets, and the scales of
        returns and rewards, as far as the checkpoint has them and the critic is taken."""
        if self._parts and "critic" not in self._parts:
            return
        own, plain = learner.state()
        beside = {name: tensor for name, tensor in own.items() if not OF_ONE_LEARNER.match(name)}
        learner.load({**own, **_fitting(self._tensors(), beside)}, plain)

    def _takes(self, name: str) -> bool:
        return not self._parts or part_of(name) in self._parts

    def _tensors(self) -> dict[str, torch.Tensor]:
        loaded = self._store.load(self._which, log=lambda text: None)
        assert loaded is not None, "it was found before"
        return loaded[0].tensors


def initial_weights(config: Any) -> InitialWeights:
    """Return the weights that ``config.init_from`` names: RUN, RUN@best, RUN:POLICY or
    RUN:POLICY@best. Raises ConfigError if there is no such checkpoint."""
    place, _, which = config.init_from.partition("@")
    if (which or "latest") not in get_args(Which):
        raise ConfigError(
            f"--init-from {config.init_from}: {which!r} must be latest or best, the checkpoint of "
            "the run"
        )
    store = store_of("--init-from", place)
    return InitialWeights(
        store, cast("Which", which or "latest"), config.init_parts, config.init_mismatch
    )


def _leaf(name: str) -> str:
    """Return the observation leaf whose statistics a weight is of; empty for any other weight."""
    return name.rpartition(".")[0] if name.startswith("normaliser.") else ""


def _fitting(
    found: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return those of ``found`` that have the name, shape and dtype of one of ``own``."""
    return {
        name: found[name]
        for name, tensor in own.items()
        if name in found and (found[name].shape, found[name].dtype) == (tensor.shape, tensor.dtype)
    }
