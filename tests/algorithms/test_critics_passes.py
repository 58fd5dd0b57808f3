"""The passes of critics by hand wait for no device that is not the CPU."""

from __future__ import annotations

import torch

from sampleforge.algorithms.critics_passes import CriticPasses
from sampleforge.algorithms.flat_parameters import flatten
from sampleforge.models.config import ModelConfig
from sampleforge.models.critics import Critics
from tests.support.sac import SPEC


def test_the_number_of_rows_that_count_is_not_asked_of_a_device() -> None:
    """The meta device has no numbers: what asks for one fails, as it fails in a CUDA graph."""
    config = ModelConfig(hidden_sizes=(8, 8), layer_norm=False)
    critics = Critics(config, SPEC.observations, SPEC.actions, 2).to("meta")
    flatten(critics)
    passes = CriticPasses(critics.layers, critics.act, 0)
    values = passes.forward(torch.empty(6, 5, device="meta"))
    passes.backward(values)
    result = torch.empty(6, 2, device="meta")
    passes.add_input_gradient(values, result)
    assert values.shape == (6,) and result.device.type == "meta"
