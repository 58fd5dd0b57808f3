"""The file format of a checkpoint: safetensors, whose header holds the plain values as JSON.

No part of a file can hold code: tensors are raw numbers, and everything else is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors
import safetensors.torch
import torch

FORMAT = "1"
_MALFORMED = (
    safetensors.SafetensorError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    RecursionError,  # of torch; of absurdly nested JSON
)


class CheckpointError(ValueError):
    """A checkpoint cannot be used, or there is none where there must be one."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint: tensors of any shape and dtype by name, and ``state``, plain
    values of JSON (str keys, lists but no tuples), with integers of any size and exact floats."""

    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]


def encode(checkpoint: Checkpoint, about: dict[str, Any]) -> bytes:
    """Return the bytes of a file with a checkpoint and plain values ``about`` it, its entry in the
    manifest.

    Raises TypeError for a state that is not plain, CheckpointError for a tensor that is not finite.
    """
    _assert_finite(checkpoint.tensors)
    # Clones, because safetensors refuses views of one storage, and parameters often are.
    tensors = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in checkpoint.tensors.items()
    }
    _assert_plain(checkpoint.state, "state")
    header = {"format": FORMAT, "state": json.dumps(checkpoint.state), "about": json.dumps(about)}
    return safetensors.torch.save(tensors, header)


def _assert_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise CheckpointError for NaN and inf: a run that resumes from them learns nothing."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = tensor[~torch.isfinite(tensor)]
            raise CheckpointError(
                f"tensor {name!r} holds {bad.flatten()[0].item()} ({bad.numel()} of its "
                f"{tensor.numel()} elements are not finite)"
            )


def decode(data: bytes) -> Checkpoint:
    """Return the checkpoint that `encode` has encoded. Raises CheckpointError for other bytes."""
    header = _header(data)
    try:
        tensors = safetensors.torch.load(data)
        state = json.loads(header["state"])
    except _MALFORMED as error:
        raise CheckpointError(f"it holds no checkpoint ({error})") from error
    if not isinstance(state, dict):
        raise CheckpointError("its state is not a mapping")
    _assert_finite(tensors)
    return Checkpoint(tensors, state)


def decode_about(data: bytes) -> dict[str, Any]:
    """Return the ``about`` of `encode`. Raises CheckpointError if there is none."""
    try:
        about = json.loads(_header(data)["about"])
    except _MALFORMED as error:
        raise CheckpointError(f"its header has no valid manifest entry ({error})") from error
    if not isinstance(about, dict):
        raise CheckpointError("its header has no valid manifest entry")
    return about


def _header(data: bytes) -> dict[str, Any]:
    """Return the text values of a safetensors header. The file begins with the length of the
    header, 8 bytes, little endian; the header is JSON."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise CheckpointError("it is truncated, or not a safetensors file")
    try:
        header = json.loads(data[8 : 8 + length])["__metadata__"]
    except _MALFORMED as error:
        raise CheckpointError(f"its header is damaged ({type(error).__name__})") from error
    if not isinstance(header, dict) or "format" not in header:
        raise CheckpointError("it is not a SampleForge checkpoint")
    if header["format"] != FORMAT:
        raise CheckpointError(
            f"it is of format {header['format']}, and this version of SampleForge reads format "
            f"{FORMAT}; use the version that wrote it"
        )
    return header


def _assert_plain(value: Any, where: str) -> None:
    """Raise TypeError for a value that JSON cannot hold, or would change without an error (a tuple,
    a key that is not a string). ``where``: the dotted name of the value."""
    if isinstance(value, dict):
        for key, child in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; keys must be strings")
            _assert_plain(child, f"{where}.{key}")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _assert_plain(child, f"{where}[{index}]")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise TypeError(
            f"{where} is a {type(value).__name__}; a checkpoint's state holds only dict, list, "
            "str, int, float, bool and None (arrays belong to its tensors)"
        )
