"""The policy as one module, from observations as the environment gives them to actions as the
environment takes them.

It consists of the model's own step and of the adapters' arithmetic in torch, with the constants of
`sampleforge.env.adapter`. Its inputs and outputs are dicts of tensors with a leading batch axis.

`max_error` compares what was exported with our own forward pass, on random observations. The
reference is `LoadedPolicy.act` for actions and states, and the model's own step for the other
outputs. Numbers are compared by their difference, which is relative where they are larger than 1;
rescaled Box actions in the unit of the policy, to which their bounds are -1 and 1: a rounding of
the last digit there is 449 times as large between bounds of 2 and 900. Where a discrete action
differs, its error is what its score (logit or Q-value) lacks to the best one, because two scores
that are equal up to rounding may be ordered differently.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from sampleforge.env.adapter import action_offsets, box_units, mask_groups, offset
from sampleforge.loaded_policy import LoadedPolicy
from sampleforge.models.cnn import ImageTower
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.distributions import MAX_LOG_STD, MIN_LOG_STD
from sampleforge.run.onnx_policy import NEXT_STATE, STATE, column_name
from sampleforge.spec import (
    ACTION,
    ACTION_MASK,
    NO_BOUND,
    OBSERVATION,
    ActionSpec,
    ArraySpec,
    flatten,
    leaves,
    unflatten,
)

VALUE, Q_VALUES, LOGITS, MEAN, LOG_STD = "value", "q_values", "logits", "mean", "log_std"
PARAMETERS = "parameters"
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
            name: (
                column_name(name, OBSERVATION),
                to_slots(space, spec.observations[name], clip=policy.clip_observations),
            )
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
        if self.model.has_own_distribution:
            return {PARAMETERS: parameters}
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
    best: str | None = "the largest Q-value that the mask allows"
    if isinstance(model, QNetwork):
        sizes = {Q_VALUES: (model.num_actions, "the Q-value of each action")}
    else:
        best = "the value function" if model.has_values else None
        boxes = model.layout.num_boxes
        before = "before tanh and scaling" if model.squash else "before scaling and clipping"
        sizes = {
            LOGITS: (model.layout.num_logits, "logits of the discrete choices, before the mask"),
            MEAN: (boxes, f"means of the Gaussians of Box actions, {before}"),
            LOG_STD: (boxes, "logarithms of their standard deviations"),
        }
        if model.has_own_distribution:
            assert model.head is not None
            text = "the parameters of the actions' distribution, as the policy head gives them"
            sizes = {PARAMETERS: (model.head.num_parameters, text)}
    if best is not None:
        columns.append(Column(VALUE, "float32", (), best))
    columns += [Column(n, "float32", (size,), text) for n, (size, text) in sizes.items() if size]
    if model.state_size:
        meaning = "the recurrent state after this step"
        columns.append(Column(NEXT_STATE, "float32", (model.state_size,), meaning))
    return tuple(columns)


def to_slots(space: gym.Space[Any], spec: ArraySpec, *, clip: bool = False) -> Convert:
    """Return the function that turns an observation leaf as the environment gives it into what the
    slots hold, like `sampleforge.env.adapter.ObservationAdapter`. ``clip``: numbers beyond the
    bounds of a Box are cut off."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if clip and isinstance(space, spaces.Box):
        # torch and onnxruntime do not compare integers of every size.
        wide = dtype if dtype.is_floating_point else torch.int64
        low, high = (torch.as_tensor(bound).to(wide) for bound in (space.low, space.high))
        return lambda x: torch.minimum(torch.maximum(x.to(wide), low), high).to(dtype)
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


OBSERVATIONS = 1000
"""Number of random observations of a check."""
LARGEST_BATCH = 64
Array = np.ndarray[Any, Any]
Columns = dict[str, Array]


def max_error(
    policy: LoadedPolicy,
    exported: Callable[[Columns], Columns],
    observations: int = OBSERVATIONS,
    seed: int = 0,
) -> float:
    """Return the largest error of ``exported``, which maps the inputs of one batch to its outputs,
    over all outputs of random ``observations``, in batches of 1 and of up to `LARGEST_BATCH`. It is
    inf if an output is missing, of another dtype or shape, or not finite."""
    inputs, reference = random_steps(policy, observations, seed)
    dtypes = {column.name: column.dtype for column in PolicyProgram(policy).outputs}
    sizes = [1] + [LARGEST_BATCH] * math.ceil((observations - 1) / LARGEST_BATCH)
    begin, errors = 0, [0.0]
    for size in sizes:
        rows = slice(begin, begin + size)
        outputs = exported({name: column[rows] for name, column in inputs.items()})
        if {name: column.dtype.name for name, column in outputs.items()} != dtypes:
            return math.inf
        errors += _errors(policy, outputs, {n: x[rows] for n, x in reference.items()})
        begin += size
    return max(errors)


def random_steps(policy: LoadedPolicy, count: int, seed: int) -> tuple[Columns, Columns]:
    """Return ``count`` random inputs, and their outputs by our own forward pass, both as columns
    [count, ...]. Discrete scores (logits or Q-values) are also in an additional column, with -inf
    where the mask forbids the category.

    Every second observation is one as those that the policy was trained with (`_usual`): where the
    observations of an environment are far from 0, the normaliser clips all others.
    """
    spec, model = policy.spec, policy.model
    assert spec.spaces is not None
    rng = np.random.default_rng(seed)
    space = _drawable(spec.spaces.observation)
    space.seed(seed)
    program, groups = PolicyProgram(policy), mask_groups(spec.spaces.action)
    inputs: dict[str, list[Any]] = {column.name: [] for column in program.inputs}
    actions: dict[str, list[Any]] = {name: [] for name in spec.actions}
    slot_rows, states = [], []
    for number in range(count):
        obs, mask = space.sample(), None
        if number % 2:
            obs = _usual(policy, space, obs, rng)
        if ACTION_MASK in spec.observations:
            mask = _random_mask(groups, rng)
        if mask is not None and not spec.spaces.mask_in_info:
            obs, mask = _with_mask(spec.spaces.observation, obs, mask), None
        state = rng.normal(size=(1, model.state_size)).astype(np.float32)
        for name, leaf in flatten(spec.spaces.observation, obs, OBSERVATION).items():
            inputs[column_name(name, OBSERVATION)].append(leaf)
        if mask is not None:
            inputs[ACTION_MASK].append(mask)
        if model.state_size:
            inputs[STATE].append(state[0])
        action, next_state = policy.act(obs, torch.from_numpy(state), mask=mask)
        for name, leaf in flatten(spec.spaces.action, action, ACTION).items():
            actions[name].append(leaf)
        states.append(torch.zeros(1, 0) if next_state is None else next_state)
        slot_rows.append(policy.as_rows(obs, mask))
    columns = {
        column.name: np.asarray(inputs[column.name], column.dtype) for column in program.inputs
    }
    reference = {column_name(name, ACTION): np.asarray(x) for name, x in actions.items()}
    reference[NEXT_STATE] = torch.cat(states).numpy()
    reference |= _step(policy, slot_rows, columns.get(STATE))
    return columns, reference


@torch.inference_mode()
def _step(policy: LoadedPolicy, slot_rows: list[Columns], state: Array | None) -> Columns:
    """Return value, parameters and masked scores of the model's own step."""
    model, rows = policy.model, len(slot_rows)
    obs = {
        name: torch.from_numpy(np.concatenate([row[name] for row in slot_rows]))
        for name in policy.spec.observations
    }
    before = torch.zeros(rows, 0) if state is None else torch.from_numpy(state)
    output = model.step(obs, before, torch.zeros(rows, dtype=torch.bool))
    parameters = output.parameters.numpy()
    num_logits = sum(n for leaf in policy.spec.actions.values() for n in leaf.categories)
    if not isinstance(model, QNetwork) and model.has_own_distribution:
        unknown = np.full((rows, num_logits), -np.inf)  # another choice than ours is an error
        return {VALUE: output.values.numpy(), PARAMETERS: parameters, _SCORES: unknown}
    scores, boxes = parameters[:, :num_logits], parameters[:, num_logits:]
    mean, log_std = np.split(boxes, 2, -1)
    mask = obs.get(ACTION_MASK)
    masked = scores if mask is None else np.where(mask.numpy(), scores, -np.inf)
    return {
        VALUE: output.values.numpy(),
        Q_VALUES: scores,
        LOGITS: scores,
        MEAN: mean,
        LOG_STD: log_std.clip(MIN_LOG_STD, MAX_LOG_STD),
        _SCORES: masked,
    }


_SCORES = "masked scores"


def _errors(policy: LoadedPolicy, outputs: Columns, reference: Columns) -> list[float]:
    """Return the largest error of each output of one batch."""
    discrete = {
        column_name(name, ACTION): error
        for name, error in _choice_errors(policy, outputs, reference).items()
    }
    units = _units(policy)
    return [
        discrete[name]
        if name in discrete
        else _number_error(column, reference[name], units.get(name, 1.0))
        for name, column in outputs.items()
    ]


def _units(policy: LoadedPolicy) -> dict[str, Array]:
    """Return the unit of the policy in each rescaled Box action, [*shape]: half of the bounds'
    distance, but at least 1."""
    units = {}
    for name, leaf in policy.spec.actions.items():
        if leaf.kind == "box" and (half := box_units(leaf).half) is not None:
            units[column_name(name, ACTION)] = np.maximum(1.0, half)
    return units


def _number_error(found: Array, expected: Array, unit: Array | float) -> float:
    """Return the largest difference, in ``unit``, or relative where a number is larger than
    that."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return math.inf
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float((np.abs(found - expected) / np.maximum(unit, np.abs(expected))).max(initial=0.0))


def _choice_errors(policy: LoadedPolicy, outputs: Columns, reference: Columns) -> dict[str, float]:
    """Return the error of each discrete action leaf: the largest lack of a chosen category's
    score, 0 where the choice is the reference's, inf where it is forbidden or does not exist."""
    at, errors = 0, {}
    for name, leaf in policy.spec.actions.items():
        if leaf.kind == "box":
            continue
        column = column_name(name, ACTION)
        starts = action_offsets(leaf) if leaf.kind != "multibinary" else 0
        found = (outputs[column].astype(np.int64) - starts).reshape(len(outputs[column]), -1)
        expected = (reference[column].astype(np.int64) - starts).reshape(found.shape)
        errors[name] = 0.0
        for element, n in enumerate(leaf.categories):
            scores = reference[_SCORES][:, at : at + n]
            for row in np.flatnonzero(found[:, element] != expected[:, element]).tolist():
                choice = int(found[row, element])
                exists = 0 <= choice < n and np.isfinite(scores[row, choice])
                lack = scores[row].max() - scores[row, choice] if exists else math.inf
                errors[name] = max(errors[name], float(lack))
            at += n
    return errors


def _drawable(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return a copy of ``space`` whose samples are of usual size: bounds of `NO_BOUND` or more
    count as none."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _drawable(child) for key, child in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_drawable(child) for child in space.spaces])
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return copy.deepcopy(space)
    low, high = (
        np.where(np.abs(bound) < NO_BOUND, bound, np.copysign(np.inf, bound)).astype(space.dtype)
        for bound in (space.low, space.high)
    )
    return spaces.Box(low, high, space.shape, space.dtype.type)


def _usual(policy: LoadedPolicy, space: gym.Space[Any], obs: Any, rng: np.random.Generator) -> Any:
    """Return the observation ``obs`` of ``space`` with each vector of floats that is normalised
    drawn from a normal distribution with the statistics' mean and deviation; within its bounds,
    unless the policy cuts off what is beyond."""
    normaliser = policy.model.normaliser
    found = flatten(space, obs, OBSERVATION)
    for name, box in leaves(space, OBSERVATION):
        if normaliser is None or not isinstance(box, spaces.Box) or name not in normaliser:
            continue
        leaf = normaliser.leaf(name)
        if np.issubdtype(box.dtype, np.floating) and leaf.mean.shape == box.shape:
            mean, scale = leaf.mean.double().numpy(), leaf.scale.double().numpy()
            usual = mean + rng.normal(size=box.shape) / scale
            if not policy.clip_observations:
                usual = usual.clip(box.low, box.high)
            found[name] = usual.astype(box.dtype)
    return unflatten(space, found, OBSERVATION)


def _random_mask(groups: list[int], rng: np.random.Generator) -> Array:
    """Return a random action mask, bool [sum of categories], that allows at least one category of
    each choice. ``groups``: the number of categories of each choice."""
    parts = []
    for n in groups:
        part = rng.random(n) < 0.6
        part[rng.integers(n)] = True
        parts.append(part)
    return np.concatenate(parts)


def _with_mask(space: gym.Space[Any], obs: Any, mask: Array) -> Any:
    """Return the observation with ``mask`` as its leaf `ACTION_MASK`."""
    flat: Mapping[str, Any] = flatten(space, obs, OBSERVATION)
    dtype = dict(leaves(space, OBSERVATION))[ACTION_MASK].dtype
    return unflatten(space, {**flat, ACTION_MASK: mask.astype(dtype)}, OBSERVATION)
