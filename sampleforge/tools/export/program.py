"""The policy as one module, from observations as the environment gives them to actions as the
environment takes them.

It consists of the model's own step and of the adapters' arithmetic in torch, with the constants of
`sampleforge.env.adapter`. Its inputs and outputs are dicts of tensors with a leading batch axis.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from sampleforge.env.adapter import action_offsets, box_units, offset
from sampleforge.loaded_policy import LoadedPolicy
from sampleforge.models.cnn import ImageTower
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.gaussian import MAX_LOG_STD, MIN_LOG_STD
from sampleforge.run.onnx_policy import NEXT_STATE, STATE, column_name
from sampleforge.spec import ACTION, ACTION_MASK, OBSERVATION, ActionSpec, ArraySpec, leaves

VALUE, Q_VALUES, LOGITS, MEAN, LOG_STD = "value", "q_values", "logits", "mean", "log_std"
Convert = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Column:
    """One input or output: its ``name``, numpy ``dtype`` name, ``shape`` of one row, and
    meaning."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    meaning: str

    def to_plain(self) -> dict[str, Any]:
        """Return the column as plain JSON values, with the batch axis."""
        shape = ["batch", *self.shape]
        return {"name": self.name, "dtype": self.dtype, "shape": shape, "meaning": self.meaning}


class PolicyProgram(nn.Module):
    """A policy without randomness: its actions are the most likely ones.

    ``inputs`` and ``outputs`` describe its columns, in their order. The recurrent state is zeros
    where an episode begins.
    """

    def __init__(self, policy: LoadedPolicy) -> None:
        super().__init__()
        spec = policy.spec
        assert spec.spaces is not None
        self.model = copy.deepcopy(policy.model).eval().requires_grad_(False)
        for module in self.model.modules():
            if isinstance(module, ImageTower):
                module.in_pieces = False
        self._mask_in_info = spec.spaces.mask_in_info
        self._observations = {
            name: (column_name(name, OBSERVATION), to_slots(space, spec.observations[name]))
            for name, space in leaves(spec.spaces.observation, OBSERVATION)
        }
        dtypes = {name: np.dtype(leaf.dtype) for name, leaf in leaves(spec.spaces.action, ACTION)}
        self._actions = {
            name: (column_name(name, ACTION), to_env(leaf, dtypes[name]))
            for name, leaf in spec.actions.items()
        }
        self.inputs = _inputs(policy)
        self.outputs = _outputs(policy)

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs of one step."""
        obs = {name: convert(inputs[key]) for name, (key, convert) in self._observations.items()}
        if self._mask_in_info:
            obs[ACTION_MASK] = inputs[ACTION_MASK]
        some = next(iter(obs.values()))
        rows = some.shape[0]
        state = inputs[STATE] if self.model.state_size else torch.zeros(rows, 0)
        step = self.model.step(obs, state, torch.zeros(rows, dtype=torch.bool))
        chosen = self.model.distribution(step.parameters, obs).mode()
        named = self._named(step.parameters) | {VALUE: step.values, NEXT_STATE: step.state}
        for name, (key, convert) in self._actions.items():
            named[key] = convert(chosen[name])
        return {column.name: named[column.name] for column in self.outputs}

    def _named(self, parameters: Tensor) -> dict[str, Tensor]:
        """Return the parameters [B, P] of the action distribution by their names."""
        if isinstance(self.model, QNetwork):
            return {Q_VALUES: parameters}
        logits, boxes = self.model.layout.num_logits, self.model.layout.num_boxes
        parts = torch.split(parameters, [logits, boxes, boxes], -1)
        log_std = parts[2].clamp(MIN_LOG_STD, MAX_LOG_STD)
        return {LOGITS: parts[0], MEAN: parts[1], LOG_STD: log_std}


def _inputs(policy: LoadedPolicy) -> tuple[Column, ...]:
    spec = policy.spec
    assert spec.spaces is not None
    columns = [
        Column(
            column_name(name, OBSERVATION),
            np.dtype(space.dtype).name,
            tuple(space.shape or ()),
            "the observation" if name == OBSERVATION else f"the observation's leaf {name!r}",
        )
        for name, space in leaves(spec.spaces.observation, OBSERVATION)
    ]
    if spec.spaces.mask_in_info:
        shape = spec.observations[ACTION_MASK].shape
        meaning = "the action mask of the info: true where a category is allowed"
        columns.append(Column(ACTION_MASK, "bool", shape, meaning))
    if policy.model.state_size:
        meaning = "next_state of the step before; zeros where an episode begins"
        columns.append(Column(STATE, "float32", (policy.model.state_size,), meaning))
    return tuple(columns)


def _outputs(policy: LoadedPolicy) -> tuple[Column, ...]:
    spec, model = policy.spec, policy.model
    assert spec.spaces is not None
    columns = [
        Column(
            column_name(name, ACTION),
            np.dtype(space.dtype).name,
            tuple(space.shape or ()),
            "the most likely action" + ("" if name == ACTION else f", leaf {name!r}"),
        )
        for name, space in leaves(spec.spaces.action, ACTION)
    ]
    if isinstance(model, QNetwork):
        best = "the largest Q-value that the mask allows"
        sizes = {Q_VALUES: (model.num_actions, "the Q-value of each action")}
    else:
        best = "the value function"
        boxes = model.layout.num_boxes
        sizes = {
            LOGITS: (model.layout.num_logits, "logits of the discrete choices, before the mask"),
            MEAN: (boxes, "means of the Gaussians of Box actions, before scaling and clipping"),
            LOG_STD: (boxes, "logarithms of their standard deviations"),
        }
    columns.append(Column(VALUE, "float32", (), best))
    columns += [Column(n, "float32", (size,), text) for n, (size, text) in sizes.items() if size]
    if model.state_size:
        meaning = "the recurrent state after this step"
        columns.append(Column(NEXT_STATE, "float32", (model.state_size,), meaning))
    return tuple(columns)


def to_slots(space: gym.Space[Any], spec: ArraySpec) -> Convert:
    """Return the function that turns an observation leaf as the environment gives it into what the
    slots hold, like `sampleforge.env.adapter.ObservationAdapter`."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    start = offset(space)
    if start is None:
        return lambda x: x.to(dtype)
    offsets = torch.as_tensor(np.asarray(start), dtype=dtype)
    return lambda x: x.to(dtype) - offsets


def to_env(spec: ActionSpec, space_dtype: np.dtype[Any]) -> Convert:
    """Return the function that turns a leaf's actions as the slots hold them into what the
    environment takes, like `sampleforge.env.adapter.ActionAdapter`."""
    dtype: torch.dtype = getattr(torch, space_dtype.name)
    if spec.kind != "box":
        if not np.any(spec.start):
            return lambda a: a.to(dtype)
        offsets = torch.as_tensor(action_offsets(spec))
        return lambda a: (a + offsets).to(dtype)
    low, high, half, centre = (None if x is None else torch.as_tensor(x) for x in box_units(spec))
    assert low is not None and high is not None
    if half is None or centre is None:
        return lambda a: torch.minimum(torch.maximum(a, low), high).to(dtype)
    return lambda a: torch.minimum(torch.maximum(a.double() * half + centre, low), high).to(dtype)
