"""The parts of a learner's state that all learners have, for checkpoints and copies of it: the
weights, the optimiser, and where the learning is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sampleforge.algos.flat_parameters import Optimiser, load_optimiser, optimiser_tensors
from sampleforge.algos.learning import Learner, Tensors


def state_tensors(
    networks: Mapping[str, nn.Module],
    optimiser: Optimiser,
    others: Mapping[str, torch.Tensor],
) -> Tensors:
    """Return the weights of ``networks`` as ``<network>/<name>``, the optimiser's state of each
    parameter as ``optimiser/<its index>/<name>``, and ``others``: clones on the CPU."""
    tensors = {
        f"{network}/{name}": tensor
        for network, module in networks.items()
        for name, tensor in module.state_dict().items()
    }
    tensors |= optimiser_tensors(optimiser)
    return {n: t.detach().cpu().clone() for n, t in {**tensors, **others}.items()}


def load_tensors(networks: Mapping[str, nn.Module], optimiser: Optimiser, tensors: Tensors) -> None:
    """Restore weights and optimiser from what `state_tensors` has returned. Raises ValueError if
    they are of another model."""
    for network, module in networks.items():
        prefix = f"{network}/"
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        try:
            module.load_state_dict(own)
        except RuntimeError as error:
            raise ValueError(f"the checkpoint is of another model: {error}") from error
    load_optimiser(optimiser, tensors)


def state_values(learner: Learner) -> dict[str, Any]:
    """Return the plain values of a learner's state."""
    return {
        "version": learner.version,
        "env_steps": learner.env_steps,
        "hyperparameters": learner.hyperparameters(),
        **({"tag": dict(learner.tag)} if learner.tag else {}),
    }


def load_values(learner: Learner, plain: Mapping[str, Any]) -> None:
    """Restore what `state_values` has returned."""
    learner.version = plain["version"]
    learner.env_steps = plain.get("env_steps", 0)
    learner.tag = dict(plain.get("tag", {}))
    learner.change(plain.get("hyperparameters", {}))
