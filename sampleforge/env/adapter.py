"""The adapters between an environment and the slots, for actions and for observations.

Observations are checked against the declared space: another shape is an error that names env and
row, and so is a value that the space's dtype cannot hold, such as 1.5 or 300 as uint8. Numbers of
any type are taken for a Box of floats. Slots hold float64 observations as float32, and values of
Discrete and MultiDiscrete spaces without their offsets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.config import ConfigError
from sampleforge.env.step_values import described
from sampleforge.names import nearest
from sampleforge.spec import (
    ACTION,
    ACTION_MASK,
    OBSERVATION,
    ActionSpec,
    ArraySpec,
    EnvSpaces,
    EnvSpec,
    StackPadding,
    action_specs,
    flattener,
    leaves,
    observation_specs,
    unflattener,
)

Array = np.ndarray[Any, Any]


def env_spec(
    env_id: str,
    declared: EnvSpaces,
    *,
    metadata: Mapping[str, Any] | gym.Env[Any, Any] | None = None,
    **more: Any,
) -> EnvSpec:
    """Return the spec that follows from the spaces of an environment and its ``metadata``, or those
    that an environment has (which observation leaves are stacks of frames); actions are in the
    environment's own units. ``more``: EnvSpec's other fields. Raises ConfigError for a space that
    slots cannot hold."""
    found = stack_metadata(metadata) if isinstance(metadata, gym.Env) else metadata
    observations = with_stacks(env_id, storage_specs(declared), found)
    return EnvSpec(
        str(env_id), observations, action_specs(declared.action), spaces=declared, **more
    )


def storage_specs(declared: EnvSpaces) -> dict[str, ArraySpec]:
    """Return the specs of the observation leaves as the slots hold them: float64 as float32, and an
    action mask, in the observations or in the info, as bool [sum of categories].

    Raises ConfigError for a space, of observations or actions, that slots cannot hold.
    """
    try:
        action_specs(declared.action)
        specs = {
            name: replace(spec, dtype="float32") if spec.dtype == "float64" else spec
            for name, spec in observation_specs(declared.observation).items()
        }
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if declared.mask_in_info or ACTION_MASK in specs:
        size = sum(mask_groups(declared.action))
        given = specs.get(ACTION_MASK, ArraySpec((size,), "bool"))
        if given.shape != (size,):
            raise ConfigError(
                f"observation leaf {ACTION_MASK!r} has shape {given.shape}, but the actions "
                f"{declared.action} have {size} logits: a mask is ({size},), one entry per logit"
            )
        specs[ACTION_MASK] = ArraySpec((size,), "bool")
    return specs


def mask_groups(action_space: gym.Space[Any]) -> list[int]:
    """Return the number of logits of each categorical choice, in the order of an action mask."""
    specs = action_specs(action_space).values()
    return [n for spec in specs if spec.kind != "box" for n in spec.categories]


class ActionAdapter:
    """Converts actions from the form of the slots, leaf -> [rows, ...], to that of the environment.

    ``specs``: the specs of the leaves of ``space``, with the bounds that actions in the slots have.
    """

    def __init__(self, space: gym.Space[Any], specs: Mapping[str, ActionSpec]) -> None:
        self._nested = unflattener(space, ACTION)
        self._plain = not isinstance(space, spaces.Dict | spaces.Tuple)
        dtypes = {name: np.dtype(leaf.dtype) for name, leaf in leaves(space, ACTION)}
        self._leaves = [(name, _to_env(spec, dtypes[name])) for name, spec in specs.items()]
        self._specs = specs

    def __call__(self, actions: Mapping[str, Array]) -> dict[str, Array]:
        """Return the actions with scales, bounds and offsets applied: leaf -> [rows, ...] in the
        dtype of its space. Arrays that an environment may write to are new ones: all but those of
        Discrete leaves."""
        return {name: convert(actions[name]) for name, convert in self._leaves}

    def per_row(self, actions: Mapping[str, Array], rows: int) -> list[Any]:
        """Return one value of the action space per row, of what ``__call__`` returned: Python's int
        for a Discrete leaf, else an array; nested as the space is."""
        columns = {name: self._values(name, array) for name, array in actions.items()}
        if self._plain:
            return columns[ACTION]
        return [
            self._nested({name: each[row] for name, each in columns.items()}) for row in range(rows)
        ]

    def _values(self, name: str, array: Array) -> list[Any]:
        """Return one leaf's value of each row."""
        spec = self._specs[name]
        if spec.kind == "discrete":
            return list(array.tolist())
        if not spec.shape:  # an element of a [rows] array is no array
            return [np.asarray(value) for value in array]
        return list(array)


def _to_env(spec: ActionSpec, dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    """Return the function that turns a leaf's actions as the slots hold them, [rows, *shape], into
    what the environment takes, of its space's ``dtype``. All actions for an environment pass
    through it.

    Box actions are rescaled from the policy's bounds to the environment's, if they differ, and then
    clipped.
    """
    if spec.kind == "box":
        return _box_to_env(spec)
    if spec.kind == "multibinary" or not np.any(spec.start):
        if spec.kind == "discrete" and spec.dtype == dtype:
            return lambda a: a  # an environment is given an int of it
        return lambda a: a.astype(dtype)
    offsets = action_offsets(spec)
    return lambda a: (a + offsets).astype(dtype, copy=False)


def action_offsets(spec: ActionSpec) -> Array:
    """Return what is added to a discrete or multidiscrete action for the environment, [*shape]."""
    offsets: Array = np.reshape(spec.start, spec.shape)
    return offsets


class BoxUnits(NamedTuple):
    """The map of a box leaf from the slots' units to the environment's: min(max(a, low), high), or,
    if the leaf is `rescaled`, min(max(a * half + centre, low), high). All arrays are [*shape], in
    the leaf's dtype, or float64 if it is rescaled."""

    low: Array
    high: Array
    half: Array | None = None
    centre: Array | None = None


def box_units(spec: ActionSpec) -> BoxUnits:
    """Return the map of a box leaf from the slots' units to the environment's."""

    def elements(values: Sequence[float], dtype: Any) -> Array:
        return np.array(values, dtype).reshape(spec.shape)

    if not spec.env_low:
        return BoxUnits(elements(spec.low, spec.dtype), elements(spec.high, spec.dtype))
    low, high = elements(spec.env_low, np.float64), elements(spec.env_high, np.float64)
    bounded = np.isfinite(spec.low).reshape(spec.shape) & np.isfinite(spec.high).reshape(spec.shape)
    least, most = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    return BoxUnits(low, high, most / 2 - least / 2, least / 2 + most / 2)


def _box_to_env(spec: ActionSpec) -> Callable[[Array], Array]:
    dtype = np.dtype(spec.dtype)
    low, high, half, centre = box_units(spec)
    if half is None:
        # Two ufuncs take 2 us, np.clip 7; infinite bounds change nothing.
        return lambda a: np.minimum(np.maximum(a, low), high).astype(dtype, copy=False)

    def to_bounds(a: Array) -> Array:
        # In float64, so that only one rounding to the space's dtype takes place.
        values = np.multiply(a, half, dtype=np.float64) + centre
        clipped: Array = np.minimum(np.maximum(values, low), high).astype(dtype)
        return clipped

    return to_bounds


class ConvertedActions(ActionAdapter):
    """Takes actions that are in the environment's form already, as an exported policy gives them,
    and leaves them as they are."""

    def __call__(self, actions: Mapping[str, Array]) -> dict[str, Array]:
        return dict(actions)


class ObservationAdapter:
    """Checks observations of single rows and writes them into the slots' arrays. ``spec``: the spec
    of the environment, with its spaces. ``converted`` is filled with a text for each leaf, by its
    name, that is given in another type than its space's, by which it may be rounded."""

    def __init__(self, spec: EnvSpec, converted: dict[str, str] | None = None) -> None:
        assert spec.spaces is not None
        self._converted = {} if converted is None else converted
        self.env_id = spec.env_id
        self.space = space = spec.spaces.observation
        self.has_mask = ACTION_MASK in spec.observations
        self._masked = spec.spaces.mask_in_info
        self._leaves = dict(leaves(space, OBSERVATION))
        self._flat = flattener(space, OBSERVATION)
        self._expected = {
            name: (np.dtype(leaf.dtype), leaf.shape or (), offset(leaf))
            for name, leaf in self._leaves.items()
        }
        groups = mask_groups(spec.spaces.action)
        self._mask_size = sum(groups)
        self._groups = np.cumsum([0, *groups])[:-1]
        # SyncVector inlines the check of a plain Box: a call per env step would double its cost.
        self.plain = isinstance(space, spaces.Box) and not self._masked

    def write(
        self, row: int, value: Any, info: Mapping[str, Any], obs: Mapping[str, Array]
    ) -> None:
        """Write ``value`` into ``obs``, leaf -> [rows, ...], at ``row``.

        Raises ConfigError for a missing leaf, a wrong shape or dtype, or a bad action mask.
        """
        for name, array in self._fitted(row, value, ()).items():
            obs[name][row] = array
            if name == ACTION_MASK:
                self._check_mask(row, array)
        if self._masked:
            obs[ACTION_MASK][row] = self._mask(row, info)

    def write_rows(self, rows: Array | slice, value: Any, obs: Mapping[str, Array]) -> None:
        """Write the ``rows`` of ``value``, the observations of all rows of a VectorEnv, into
        ``obs``. Raises ConfigError as `write`."""
        every = len(next(iter(obs.values())))
        for name, array in self._fitted(None, value, (every,)).items():
            if name == ACTION_MASK and not ((array == 0) | (array == 1)).all():
                for row in np.arange(every)[rows].tolist():
                    self._check_mask(row, array[row])
            obs[name][rows] = array[rows]

    def _fitted(self, row: int | None, value: Any, axes: tuple[int, ...]) -> dict[str, Array]:
        """Return the leaves of ``value`` as the slots hold them, [*axes, ...]: of one ``row``, or
        of all. Raises ConfigError for a missing leaf, or a wrong shape or dtype."""
        try:
            given = self._flat(value)
        except (KeyError, IndexError, TypeError):
            self.refuse(row, OBSERVATION, value, axes)
        fitted = {}
        for name, leaf in given.items():
            dtype, shape, start = self._expected[name]
            array = fitting(leaf, axes + shape, dtype, self._leaves[name])
            if array is None:
                self.refuse(row, name, leaf, axes)
            if array is not leaf and name not in self._converted:
                self._note_conversion(name, leaf, dtype)
            fitted[name] = array if start is None else array - start
        return fitted

    def _note_conversion(self, name: str, value: Any, dtype: np.dtype[Any]) -> None:
        given = getattr(value, "dtype", None)
        if isinstance(given, np.dtype) and not np.can_cast(given, dtype):
            self._converted[name] = (
                f"{self.env_id}: observation leaf {name!r} is given as {given}, and converted to "
                f"{dtype}, as its observation_space says"
            )

    def refuse(
        self, row: int | None, name: str, value: Any, axes: tuple[int, ...] = ()
    ) -> NoReturn:
        """Raise ConfigError for an observation leaf of ``row`` (None: of all, [*axes, ...]) that
        does not fit its space."""
        space = self._leaves.get(name, self.space)
        shape = None if space.shape is None else axes + space.shape
        where, single = (f"row {row}", "") if row is not None else ("all rows", "single_")
        expected = f"{space.dtype} of shape {shape}"
        if shape is None:  # a Dict or Tuple that lacks one of them
            expected = f"nested, with the leaves {', '.join(self._leaves)}"
        raise ConfigError(
            f"{self.env_id}, {where}: observation leaf {name!r} must be {expected}, as its "
            f"{single}observation_space says, but the environment gave "
            f"{described(value)}{_too_much(value, shape, space.dtype)}; correct the environment's "
            "observation_space or what it returns"
        )

    def check_masks_in(self, row: int, info: Mapping[str, Any]) -> None:
        """Raise ConfigError for an action mask in an ``info`` if neither the first one, that of row
        0, had one nor the observations have: nothing would read it."""
        if ACTION_MASK in info and not self.has_mask:
            raise ConfigError(
                f"{self.env_id}, row {row}: info[{ACTION_MASK!r}] must be given at every reset and "
                "step, but the first reset gave none, so that this one has no effect; give one "
                "that allows every action where nothing is forbidden"
            )

    def _mask(self, row: int, info: Mapping[str, Any]) -> Array:
        """Return the mask in the info as a flat array; the masks of a Tuple in the order of its
        actions."""
        mask: Any = info.get(ACTION_MASK)
        parts = mask if isinstance(mask, tuple | list) else [mask]
        size = self._mask_size
        try:
            flat: Array = np.concatenate([np.ravel(part) for part in parts] or [np.empty(0)])
        except ValueError:  # a ragged list
            flat = np.empty(0)
        if mask is None or flat.shape != (size,):
            raise ConfigError(
                f"{self.env_id}, row {row}: info[{ACTION_MASK!r}] must have {size} entries, one "
                f"per logit, at every reset and step, but is {mask!r:.80}"
            )
        self._check_mask(row, flat)
        return flat.astype(np.bool_)

    def _check_mask(self, row: int, mask: Array) -> None:
        """Raise ConfigError for a mask with other values than 0 and 1, such as one that is to be
        added to the logits, in which 0 allows an action."""
        if mask.dtype != np.bool_ and not ((mask == 0) | (mask == 1)).all():
            raise ConfigError(
                f"{self.env_id}, row {row}: the action mask must hold 1 for an allowed value of an "
                f"action and 0 for a forbidden one, but is {mask.tolist()!r:.80}"
            )

    def check_masks(self, masks: Array, ended: Array) -> None:
        """Raise ConfigError for a row that has to act and whose mask, of ``masks`` [rows, n],
        allows no value of an action. In the mask of a final observation (``ended``, bool [rows])
        every value of such an action becomes allowed, as no action is taken from it; what it
        forbids otherwise stays: after a time limit the value of what would follow is that of the
        best allowed action."""
        free = np.logical_or.reduceat(masks, self._groups, axis=1)
        if free.all():
            return
        self._allow(masks, ~free & ended[:, None])
        if not (free.all(axis=1) | ended).all():
            row = int(np.flatnonzero(~free.all(axis=1) & ~ended)[0])
            raise ConfigError(
                f"{self.env_id}, row {row}: the action mask {masks[row].astype(int)} forbids every "
                "value of an action; at least one must be allowed until the episode ends"
            )

    def complete_masks(self, masks: Array, present: Array) -> None:
        """Complete the masks [rows, n] of an agent where they allow no value of an action. Where it
        takes no part any more (``present`` bool [rows] is False) every value becomes allowed, and
        otherwise, as it is not its turn, the first one."""
        if masks.shape[1]:
            free = np.logical_or.reduceat(masks, self._groups, axis=1)
            self._allow(masks, ~free & ~present[:, None])
            masks[:, self._groups] |= ~free

    def _allow(self, masks: Array, closed: Array) -> None:
        """Allow every value of the actions ``closed``, bool [rows, actions], in the masks."""
        masks |= np.repeat(closed, np.diff([*self._groups, masks.shape[1]]), axis=1)


def offset(space: gym.Space[Any]) -> Any:
    """Return the number to subtract from a categorical observation so that its values begin at 0;
    None if they do."""
    start = getattr(space, "start", 0)
    return start if np.any(start) else None


def _too_much(value: Any, shape: Any, dtype: Any) -> str:
    """Return which number of an array that has the right ``shape`` no ``dtype`` can hold; "" for
    what was refused for something else."""
    if not isinstance(value, np.ndarray | np.generic) or value.shape != shape:
        return ""
    given = np.asarray(value)
    if given.dtype.kind not in "biuf":
        return ""
    with np.errstate(invalid="ignore", over="ignore"):
        wrong = given[given.astype(dtype) != given]
    return f" with {wrong[0]}, which {dtype} cannot hold" if wrong.size else ""


def fitting(
    value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], space: gym.Space[Any]
) -> Array | None:
    """Return an observation leaf of ``space`` as an array of ``dtype``; None if it has not the
    ``shape`` or does not fit. What numpy takes for an array of numbers does (lists, scalars, arrays
    of JAX or torch), and a single number in another shape of one element. Numbers of any type fit a
    Box of floats; they fit integers and categories if they are whole numbers of ``dtype`` ([1.5, 2]
    does not)."""
    if not isinstance(value, np.ndarray):
        known = isinstance(value, bool | int | float | list | tuple | np.generic)
        if not known and not hasattr(value, "__array__"):
            return None
        try:
            value = np.asarray(value)
        except (ValueError, TypeError, RuntimeError):  # a ragged list, a tensor with a gradient
            return None
    if value.dtype.kind not in "biuf":
        return None
    if value.shape != shape:
        if value.size != 1 or math.prod(shape) != 1:
            return None
        value = value.reshape(shape)
    if value.dtype == dtype:
        array: Array = value
        return array
    cast: Array
    with np.errstate(invalid="ignore", over="ignore"):
        cast = value.astype(dtype)
    of_floats = isinstance(space, spaces.Box) and dtype.kind == "f"
    if not of_floats and not np.can_cast(value.dtype, dtype) and not np.array_equal(cast, value):
        return None
    return cast


KEY = "frame_stack"


def stack_metadata(env: gym.Env[Any, Any]) -> Mapping[str, Any]:
    """Return the metadata of an environment without the stacks of frames that one within it names
    and that its wrappers have made something else of: an array with another first axis."""
    metadata, within = env.metadata or {}, env
    while isinstance(within, gym.Wrapper) and within.env.metadata is within.metadata:
        within = within.env
    before = dict(leaves(within.observation_space, OBSERVATION))
    now = dict(leaves(env.observation_space, OBSERVATION))
    changed = {
        name
        for name in metadata.get(KEY, {})
        if name in before
        and (name not in now or (before[name].shape or ())[:1] != (now[name].shape or ())[:1])
    }
    kept = {name: each for name, each in metadata.get(KEY, {}).items() if name not in changed}
    return {**metadata, KEY: kept}


def with_stacks(
    env_id: str, specs: Mapping[str, ArraySpec], metadata: Mapping[str, Any] | None
) -> dict[str, ArraySpec]:
    """Return ``specs`` with the ``stack`` of each leaf set from the metadata. Raises ConfigError
    for an unknown leaf or padding."""
    stacked = dict(specs)
    for name, padding in (metadata or {}).get(KEY, {}).items():
        where = f"{env_id}: metadata[{KEY!r}][{name!r}]"
        if name not in specs:
            near = " or ".join(nearest(name, specs) or specs)
            raise ConfigError(f"{where} is no observation leaf; there is {near}")
        if padding not in get_args(StackPadding):
            known = " or ".join(map(repr, get_args(StackPadding)))
            raise ConfigError(f"{where} is {padding!r}, but must be {known}")
        leaf = specs[name]
        if not leaf.shape or leaf.categories is not None:
            raise ConfigError(
                f"{where}: a stack is an array of numbers whose first axis counts the frames, but "
                f"this leaf has shape {leaf.shape}"
                f"{' of categories' if leaf.categories else ''}; leave it out"
            )
        stacked[name] = replace(leaf, stack=padding)
    return stacked
