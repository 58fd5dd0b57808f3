"""The conversion of an EnvSpec to plain JSON and back, for run folder, probe and torchrun's ranks.

The JSON holds the spaces and the fields that do not follow from them; `env_spec` derives the rest.
It may come from an unknown source, so every value is checked, and no value names code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.config import ConfigError
from sampleforge.env.adapter import KEY as FRAME_STACK
from sampleforge.env.adapter import env_spec
from sampleforge.names import nearest
from sampleforge.spec import Autoreset, EnvSpaces, EnvSpec, action_specs, with_action_units

FORMAT = 1
"""Version of the JSON format; it is increased when the meaning of a value changes."""
MAX_ELEMENTS = 1 << 28
"""Largest number of elements of a space that is accepted (256 MiB of bytes)."""
INFINITIES = {"inf": math.inf, "-inf": -math.inf}
"""The names of infinite numbers, which JSON does not have."""
Array = np.ndarray[Any, Any]
Plain = dict[str, Any]


def spec_to_plain(spec: EnvSpec) -> Plain:
    """Return ``spec`` as plain JSON values. Raises ConfigError if it does not follow from its
    spaces, or if a space has no JSON form."""
    declared = spec.spaces
    if declared is None:
        raise ConfigError(f"{spec.env_id}: its spec has no spaces; make it with env_spec")
    plain: Plain = {
        "format": FORMAT,
        "env_id": spec.env_id,
        "observation_space": space_to_plain(declared.observation),
        "action_space": space_to_plain(declared.action),
        "mask_in_info": declared.mask_in_info,
        "frame_stack": {n: leaf.stack for n, leaf in spec.observations.items() if leaf.stack},
        "rescale_actions": spec.actions != action_specs(declared.action),
        "autoreset": spec.autoreset,
        "frame_skip": spec.frame_skip,
        "max_episode_steps": spec.max_episode_steps,
        "protocol": spec.protocol,
        "asynchronous": spec.asynchronous,
        **({"reward_shaping": dict(spec.reward_shaping)} if spec.reward_shaping else {}),
        **({"takes_task": True} if spec.takes_task else {}),
        **({"has_goals": True} if spec.has_goals else {}),
        **({"one_per_process": True} if spec.one_per_process else {}),
    }
    if spec.agents:
        plain["agents"] = list(spec.agents)
    if replace(spec_from_plain(plain), spaces=declared) != replace(spec, other_groups=()):
        raise ConfigError(
            f"{spec.env_id}: its spec does not follow from its spaces, so that it cannot be "
            "stored; make it with sampleforge.env.adapter.env_spec"
        )
    if spec.other_groups:
        plain["other_groups"] = [spec_to_plain(group) for group in spec.other_groups]
    return plain


def spec_from_plain(plain: Any, where: str = "") -> EnvSpec:
    """Return the spec that `spec_to_plain` has converted. Raises ConfigError for a wrong value,
    with its place and what it must be. ``where``: the place of ``plain`` itself."""
    reader = _Reader(plain, where)
    version = reader.value("format", int)
    if version != FORMAT:
        raise ConfigError(
            f"format is {version}, but this version of SampleForge reads format {FORMAT}; use the "
            "version that wrote it (config.yaml names it)"
        )
    stacks = reader.value("frame_stack", dict)
    declared = EnvSpaces(
        reader.space("observation_space"),
        reader.space("action_space"),
        reader.value("mask_in_info", bool),
    )
    rescales = reader.value("rescale_actions", bool)
    shaping = reader.value("reward_shaping", dict) if "reward_shaping" in plain else {}
    spec = env_spec(
        reader.value("env_id", str),
        declared,
        metadata={FRAME_STACK: stacks},
        autoreset=reader.choice("autoreset", get_args(Autoreset)),
        frame_skip=reader.count("frame_skip"),
        max_episode_steps=reader.count("max_episode_steps", optional=True),
        protocol=reader.value("protocol", str),
        asynchronous=reader.value("asynchronous", bool),
        agents=reader.names("agents"),
        reward_shaping={str(name): float(number) for name, number in shaping.items()},
        takes_task=bool(reader.value("takes_task", bool, optional=True)),
        has_goals=bool(reader.value("has_goals", bool, optional=True)),
    )
    spec = with_action_units(spec, rescale=rescales)
    others = [
        spec_from_plain(group, f"other_groups[{i}]")
        for i, group in enumerate(reader.value("other_groups", list, optional=True) or ())
    ]
    alone = bool(reader.value("one_per_process", bool, optional=True))
    reader.finish()
    return replace(spec, one_per_process=alone, other_groups=tuple(others))


def space_to_plain(space: gym.Space[Any]) -> Plain:
    """Return a space as plain JSON values, which are equal for equal spaces. Raises ConfigError for
    a space that has no such form."""
    if isinstance(space, spaces.Dict):
        children = [[_key(key), space_to_plain(child)] for key, child in space.spaces.items()]
        return {"type": "Dict", "spaces": children}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_plain(child) for child in space.spaces]}
    if isinstance(space, spaces.Discrete):
        dtype = np.dtype(space.dtype).name
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": dtype}
    if isinstance(space, spaces.MultiDiscrete):
        elements = {"nvec": _elements(space.nvec), "start": _elements(space.start)}
        return {"type": "MultiDiscrete", **_shape_and_dtype(space), **elements}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    if isinstance(space, spaces.Box):
        elements = {"low": _elements(space.low), "high": _elements(space.high)}
        return {"type": "Box", **_shape_and_dtype(space), **elements}
    raise ConfigError(f"{space} has no fixed-size array")


def _shape_and_dtype(space: gym.Space[Any]) -> Plain:
    return {"shape": list(space.shape or ()), "dtype": np.dtype(space.dtype).name}


def _key(key: Any) -> str | int:
    """Return a Dict space's key. Raises ConfigError for a key that JSON does not have."""
    if isinstance(key, str | int) and not isinstance(key, bool):
        return key
    raise ConfigError(
        f"the key {key!r} of a Dict space is a {type(key).__name__}, but must be a string or an "
        "integer; rename it in the environment's space"
    )


def _elements(array: Any) -> Any:
    """Return the numbers of an array in order, or a single number if all are equal."""
    flat = array.ravel()
    if flat.size and (flat == flat[0]).all():
        flat = flat[:1]
    numbers = [str(x) if isinstance(x, float) and math.isinf(x) else x for x in flat.tolist()]
    return numbers[0] if len(numbers) == 1 else numbers


def _space_from_plain(plain: Any, where: str) -> gym.Space[Any]:
    reader = _Reader(plain, where)
    kind = reader.choice("type", tuple(_MAKERS))
    try:
        space = _MAKERS[kind](reader)
    except (ValueError, TypeError, OverflowError, AssertionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{where} is not a valid {kind} space: {error}") from error
    reader.finish()
    return space


def _make_dict(reader: _Reader) -> gym.Space[Any]:
    children: dict[Any, gym.Space[Any]] = {}
    for i, pair in enumerate(reader.value("spaces", list)):
        where = f"{reader.where}.spaces[{i}]"
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (str, int):
            raise ConfigError(f"{where} is {pair!r:.80}, but must be [key, space]")
        if pair[0] in children:
            raise ConfigError(f"{where} has the key {pair[0]!r}, which another space has")
        children[pair[0]] = _space_from_plain(pair[1], where)
    return spaces.Dict(list(children.items()))


def _make_tuple(reader: _Reader) -> gym.Space[Any]:
    children = enumerate(reader.value("spaces", list))
    return spaces.Tuple(
        [_space_from_plain(child, f"{reader.where}.spaces[{i}]") for i, child in children]
    )


def _make_discrete(reader: _Reader) -> gym.Space[Any]:
    dtype, start = reader.dtype("iu"), reader.value("start", int)
    if dtype == np.int64:  # the only one that gymnasium 1.1 has
        return spaces.Discrete(reader.count("n"), start=start)
    return spaces.Discrete(reader.count("n"), start=start, dtype=dtype)


def _make_multi_discrete(reader: _Reader) -> gym.Space[Any]:
    dtype, shape = reader.dtype("iu"), reader.shape()
    nvec, start = (reader.array(name, shape, dtype) for name in ("nvec", "start"))
    return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)


def _make_multi_binary(reader: _Reader) -> gym.Space[Any]:
    shape = reader.shape()
    return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)


def _make_box(reader: _Reader) -> gym.Space[Any]:
    dtype, shape = reader.dtype("iufb"), reader.shape()
    low, high = (reader.array(name, shape, dtype) for name in ("low", "high"))
    return spaces.Box(low, high, shape, dtype)


_MAKERS: dict[str, Callable[[_Reader], gym.Space[Any]]] = {
    "Box": _make_box,
    "Dict": _make_dict,
    "Discrete": _make_discrete,
    "MultiBinary": _make_multi_binary,
    "MultiDiscrete": _make_multi_discrete,
    "Tuple": _make_tuple,
}


_DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
_WORDS = {
    bool: "true or false",
    dict: "a JSON object",
    int: "an integer",
    list: "a list",
    str: "a string",
}


class _Reader:
    """Reads the values of one JSON object and checks each. ``where``: the place of the object, for
    error messages."""

    def __init__(self, plain: Any, where: str) -> None:
        self.where = where
        if not isinstance(plain, Mapping):
            raise ConfigError(f"{where or 'it'} is {plain!r:.80}, but must be a JSON object")
        self._plain = dict(plain)
        self._known: list[str] = []

    def value(self, name: str, kind: type, *, optional: bool = False) -> Any:
        """Return the value, which must have exactly the type ``kind``; None if it is missing and
        ``optional``."""
        if optional and name not in self._plain:
            self._known.append(name)
            return None
        value = self._take(name)
        if type(value) is not kind:
            self.refuse(name, value, _WORDS[kind])
        return value

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        """Return a string, which must be one of ``known``."""
        value = self._take(name)
        if value not in known:
            self.refuse(name, value, f"one of {', '.join(known)}")
        return str(value)

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of strings; empty if it is missing."""
        values = self.value(name, list, optional=True) or []
        if not all(isinstance(value, str) for value in values):
            self.refuse(name, values, "a list of strings")
        return tuple(values)

    def space(self, name: str) -> gym.Space[Any]:
        """Return a space."""
        return _space_from_plain(self.value(name, dict), self._place(name))

    def count(self, name: str, *, optional: bool = False) -> Any:
        """Return a positive integer of at most 63 bits; also None if ``optional``."""
        value = self._take(name)
        if optional and value is None:
            return None
        if type(value) is not int or not 1 <= value < 1 << 63:
            self.refuse(name, value, "a positive integer" + (" or null" if optional else ""))
        return value

    def dtype(self, kinds: str) -> np.dtype[Any]:
        """Return a numpy dtype by its name; ``kinds``: numpy's letters of the allowed kinds."""
        name = self._take("dtype")
        if name not in _DTYPES or np.dtype(name).kind not in kinds:
            known = [known for known in _DTYPES if np.dtype(known).kind in kinds]
            self.refuse("dtype", name, f"one of {', '.join(known)}")
        dtype: np.dtype[Any] = np.dtype(name)
        return dtype

    def shape(self) -> tuple[int, ...]:
        """Return the shape of a space."""
        shape = self._take("shape")
        good = isinstance(shape, list) and len(shape) <= 32
        if not good or any(type(n) is not int or n < 0 for n in shape):
            self.refuse("shape", shape, "a list of integers from 0 on")
        if math.prod(shape) > MAX_ELEMENTS:
            self.refuse("shape", shape, f"of at most {MAX_ELEMENTS:,} elements")
        return tuple(shape)

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array of ``shape``, given as a list of its numbers or as one number for all."""
        numbers = self._take(name)
        size = math.prod(shape)
        if not isinstance(numbers, list):
            return np.full(shape, self._number(name, numbers, dtype), dtype)
        if len(numbers) != size:
            self.refuse(name, numbers, f"{size} numbers, as the shape {list(shape)} requires")
        values = [self._number(name, number, dtype) for number in numbers]
        return np.array(values, dtype).reshape(shape)

    def _number(self, name: str, number: Any, dtype: np.dtype[Any]) -> Any:
        if dtype.kind == "f":
            if isinstance(number, str) and number in INFINITIES:
                return INFINITIES[number]
            if type(number) not in (int, float) or not math.isfinite(number):
                self.refuse(name, number, 'a finite number, "inf" or "-inf"')
            if abs(number) > float(np.finfo(dtype).max):
                self.refuse(name, number, f"within {dtype}")
        elif dtype.kind == "b":
            if type(number) is not bool:
                self.refuse(name, number, "true or false")
        else:
            info = np.iinfo(dtype)
            if type(number) is not int or not info.min <= number <= info.max:
                self.refuse(name, number, f"an integer within {dtype}")
        return number

    def finish(self) -> None:
        """Raise ConfigError for a value that was not read, because it is unknown."""
        for name in self._plain:
            near = nearest(str(name), self._known)
            hint = f"; did you mean {near[0]}?" if near else "; remove it"
            raise ConfigError(f"{self._place(name)} is unknown{hint}")

    def refuse(self, name: str, value: Any, must: str) -> NoReturn:
        """Raise ConfigError for a wrong value; ``must``: what it must be."""
        raise ConfigError(f"{self._place(name)} is {value!r:.80}, but must be {must}")

    def _take(self, name: str) -> Any:
        self._known.append(name)
        if name not in self._plain:
            raise ConfigError(f"{self._place(name)} is missing")
        return self._plain.pop(name)

    def _place(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name
