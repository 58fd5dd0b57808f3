"""An EnvSpec as plain JSON, and back: what a run folder, the probe and torchrun's ranks exchange.

What is written are the spaces, and what does not follow from them; `env_spec` makes the rest. It
may come from elsewhere, so that every value is checked, and nothing in it names code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.config import ConfigError, nearest
from sampleforge.env.adapter import env_spec
from sampleforge.env.stacks import KEY as FRAME_STACK
from sampleforge.spec import Autoreset, EnvSpaces, EnvSpec, action_specs, with_action_units

FORMAT = 1
"""Raised when the meaning of what is written changes."""
MAX_ELEMENTS = 1 << 28
"""A space of more numbers than this is refused: 256 MiB of bytes."""
INFINITIES = {"inf": math.inf, "-inf": -math.inf}
"""JSON has no word for them."""
Array = np.ndarray[Any, Any]
Plain = dict[str, Any]


def spec_to_plain(spec: EnvSpec) -> Plain:
    """Return ``spec`` as JSON's plain values. Raises ConfigError if it does not follow from its
    spaces, or if a space has no JSON form."""
    declared = spec.spaces
    if declared is None:
        raise ConfigError(f"{spec.env_id}: its spec has no spaces; make it with env_spec")
    found = {
        "format": FORMAT,
        "env_id": spec.env_id,
        "observation_space": _space_to_plain(declared.observation),
        "action_space": _space_to_plain(declared.action),
        "mask_in_info": declared.mask_in_info,
        "frame_stack": {n: leaf.stack for n, leaf in spec.observations.items() if leaf.stack},
        "rescale_actions": spec.actions != action_specs(declared.action),
        "autoreset": spec.autoreset,
        "frame_skip": spec.frame_skip,
        "max_episode_steps": spec.max_episode_steps,
        "protocol": spec.protocol,
        "asynchronous": spec.asynchronous,
    }
    if replace(spec_from_plain(found), spaces=declared) != spec:
        raise ConfigError(
            f"{spec.env_id}: its spec does not follow from its spaces, so that it cannot be "
            "stored; make it with sampleforge.env.adapter.env_spec"
        )
    return found


def spec_from_plain(plain: Any) -> EnvSpec:
    """Return the inverse of `spec_to_plain`. Raises ConfigError, which names the value, where it
    stands and what it must be."""
    reader = _Reader(plain, "")
    found = reader.value("format", int)
    if found != FORMAT:
        raise ConfigError(
            f"format is {found}, but this version of SampleForge reads format {FORMAT}; use the "
            "version that wrote it (config.yaml names it)"
        )
    stacks = reader.value("frame_stack", dict)
    declared = EnvSpaces(
        _space_from_plain(reader.value("observation_space", dict), "observation_space"),
        _space_from_plain(reader.value("action_space", dict), "action_space"),
        reader.value("mask_in_info", bool),
    )
    rescales = reader.value("rescale_actions", bool)
    spec = env_spec(
        reader.value("env_id", str),
        declared,
        metadata={FRAME_STACK: stacks},
        autoreset=reader.choice("autoreset", get_args(Autoreset)),
        frame_skip=reader.count("frame_skip"),
        max_episode_steps=reader.count("max_episode_steps", optional=True),
        protocol=reader.value("protocol", str),
        asynchronous=reader.value("asynchronous", bool),
    )
    reader.finish()
    return with_action_units(spec, rescale=rescales)


def _space_to_plain(space: gym.Space[Any]) -> Plain:
    if isinstance(space, spaces.Dict):
        children = [[_key(key), _space_to_plain(child)] for key, child in space.spaces.items()]
        return {"type": "Dict", "spaces": children}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [_space_to_plain(child) for child in space.spaces]}
    if isinstance(space, spaces.Discrete):
        dtype = np.dtype(space.dtype).name
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": dtype}
    if isinstance(space, spaces.MultiDiscrete):
        found = {"nvec": _elements(space.nvec), "start": _elements(space.start)}
        return {"type": "MultiDiscrete", **_shape_and_dtype(space), **found}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    if isinstance(space, spaces.Box):
        found = {"low": _elements(space.low), "high": _elements(space.high)}
        return {"type": "Box", **_shape_and_dtype(space), **found}
    raise ConfigError(f"{space} has no fixed-size array")


def _shape_and_dtype(space: gym.Space[Any]) -> Plain:
    return {"shape": list(space.shape or ()), "dtype": np.dtype(space.dtype).name}


def _key(key: Any) -> str | int:
    """A Dict space's key. Raises ConfigError for one that JSON does not have."""
    if isinstance(key, str | int) and not isinstance(key, bool):
        return key
    raise ConfigError(
        f"the key {key!r} of a Dict space is a {type(key).__name__}, but must be a string or an "
        "integer; rename it in the environment's space"
    )


def _elements(array: Any) -> Any:
    """The numbers of an array in their order; a single one if all are equal."""
    flat = array.ravel()
    if flat.size and (flat == flat[0]).all():
        flat = flat[:1]
    found = [str(x) if isinstance(x, float) and math.isinf(x) else x for x in flat.tolist()]
    return found[0] if len(found) == 1 else found


def _space_from_plain(plain: Any, where: str) -> gym.Space[Any]:
    reader = _Reader(plain, where)
    kind = reader.choice("type", tuple(_MAKERS))
    try:
        space = _MAKERS[kind](reader)
    except (ValueError, TypeError, OverflowError, AssertionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{where} is no {kind} space: {error}") from error
    reader.finish()
    return space


def _make_dict(reader: _Reader) -> gym.Space[Any]:
    found: dict[Any, gym.Space[Any]] = {}
    for i, pair in enumerate(reader.value("spaces", list)):
        where = f"{reader.where}.spaces[{i}]"
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (str, int):
            raise ConfigError(f"{where} is {pair!r:.80}, but must be [key, space]")
        if pair[0] in found:
            raise ConfigError(f"{where} has the key {pair[0]!r}, which another one has")
        found[pair[0]] = _space_from_plain(pair[1], where)
    return spaces.Dict(list(found.items()))


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
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_WORDS = {
    bool: "true or false",
    dict: "a JSON object",
    int: "an integer",
    list: "a list",
    str: "a string",
}


class _Reader:
    """The values of one JSON object, each checked as it is taken. ``where``: its place, as text."""

    def __init__(self, plain: Any, where: str) -> None:
        self.where = where
        if not isinstance(plain, Mapping):
            raise ConfigError(f"{where or 'it'} is {plain!r:.80}, but must be a JSON object")
        self._plain = dict(plain)
        self._known: list[str] = []

    def value(self, name: str, kind: type) -> Any:
        """Return the value of exactly this type, and have done with it."""
        found = self._take(name)
        if type(found) is not kind:
            self.refuse(name, found, _WORDS[kind])
        return found

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        found = self._take(name)
        if found not in known:
            self.refuse(name, found, f"one of {', '.join(known)}")
        return str(found)

    def count(self, name: str, *, optional: bool = False) -> Any:
        """A positive integer of at most 63 bits; None too if ``optional``."""
        found = self._take(name)
        if optional and found is None:
            return None
        if type(found) is not int or not 1 <= found < 1 << 63:
            self.refuse(name, found, "a positive integer" + (" or null" if optional else ""))
        return found

    def dtype(self, kinds: str) -> np.dtype[Any]:
        """A numpy dtype by its name; ``kinds``: numpy's letters for those that there may be."""
        found = self._take("dtype")
        if found not in _DTYPES or np.dtype(found).kind not in kinds:
            known = [name for name in _DTYPES if np.dtype(name).kind in kinds]
            self.refuse("dtype", found, f"one of {', '.join(known)}")
        dtype: np.dtype[Any] = np.dtype(found)
        return dtype

    def shape(self) -> tuple[int, ...]:
        found = self._take("shape")
        good = isinstance(found, list) and len(found) <= 32
        if not good or any(type(n) is not int or n < 0 for n in found):
            self.refuse("shape", found, "a list of integers from 0 on")
        if math.prod(found) > MAX_ELEMENTS:
            self.refuse("shape", found, f"of at most {MAX_ELEMENTS:,} elements")
        return tuple(found)

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array of ``shape``: a list of its numbers, or one number for all."""
        found = self._take(name)
        size = math.prod(shape)
        if not isinstance(found, list):
            return np.full(shape, self._number(name, found, dtype), dtype)
        if len(found) != size:
            self.refuse(name, found, f"{size} numbers, as the shape {list(shape)} says")
        values = [self._number(name, number, dtype) for number in found]
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
        """Refuse what nothing has asked for."""
        for name in self._plain:
            near = nearest(str(name), self._known)
            hint = f"; did you mean {near[0]}?" if near else "; remove it"
            raise ConfigError(f"{self._place(name)} is unknown{hint}")

    def refuse(self, name: str, found: Any, must: str) -> NoReturn:
        raise ConfigError(f"{self._place(name)} is {found!r:.80}, but must be {must}")

    def _take(self, name: str) -> Any:
        self._known.append(name)
        if name not in self._plain:
            raise ConfigError(f"{self._place(name)} is missing")
        return self._plain.pop(name)

    def _place(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name
