"""Encoders by name: the built-in ones, registered ones, and import strings.

An encoder is a class ``Encoder(observations: Mapping[str, ArraySpec], config: ModelConfig)`` with
an attribute ``out_features: int`` and ``forward(obs leaves [N, ...]) -> [N, out_features]``.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from sampleforge.config import ConfigError, typed
from sampleforge.models.config import ModelConfig
from sampleforge.names import nearest
from sampleforge.runtime.causes import in_words
from sampleforge.spec import ACTION_MASK, ArraySpec

_BUILT_IN = {
    "mlp": "sampleforge.models.encoders:MLP",
    "nature_cnn": "sampleforge.models.cnn:ImageEncoder",
    "dqn_cnn": "sampleforge.models.cnn:ImageEncoder",
    "doom_cnn": "sampleforge.models.cnn:ImageEncoder",
    "impala_resnet": "sampleforge.models.cnn:ImageEncoder",
}
TRIED_ROWS = 2
"""Observations that a user's encoder is tried with when it is created."""
_registered: dict[str, str] = {}
Module = TypeVar("Module", bound=nn.Module)


def register_encoder(name: str, target: str | type[nn.Module]) -> None:
    """Make ``--model.encoder name`` mean this class, given itself or as ``package.module:Class``.

    The import string is sent to other processes, so they need no registration. The class must be
    importable: raises ConfigError for one defined in a function, a script or a notebook.
    """
    if name in _BUILT_IN or name == "auto" or ":" in name or not name:
        raise ConfigError(f"an encoder cannot be registered as {name!r}: that name is taken")
    _registered[name] = target if isinstance(target, str) else _import_string(target)


def resolve_encoder(config: ModelConfig, observations: Mapping[str, ArraySpec]) -> ModelConfig:
    """Return ``config`` with an encoder that any process can create: a built-in name or an import
    string.

    ``auto`` becomes nature_cnn if a leaf is encoded as pixels or planes, else mlp. Raises
    ConfigError for an unknown name.
    """
    name = config.encoder
    if name == "auto":
        name = "nature_cnn" if config.has_convolved(observations) else "mlp"
    name = _registered.get(name, name)
    if name not in _BUILT_IN and ":" not in name:
        known = ["auto", *_BUILT_IN, *_registered]
        near = nearest(name, known, 1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}."
        raise ConfigError(
            f"Unknown encoder {name}. {hint} Your own is given as package.module:Class, or by a "
            "name that register_encoder knows"
        )
    return config if name == config.encoder else dataclasses.replace(config, encoder=name)


def with_import_string(config: ModelConfig) -> ModelConfig:
    """Return ``config`` with the import string of an encoder that `register_encoder` knows in the
    place of its name, which no other process knows."""
    return dataclasses.replace(config, encoder=_registered.get(config.encoder, config.encoder))


def make_encoder(
    config: ModelConfig, observations: Mapping[str, ArraySpec], floats: Collection[str] = ()
) -> nn.Module:
    """Return a new encoder of all leaves but the action mask. ``floats``: leaves that it gets as
    floats whatever their dtype, because they are normalised. Raises ConfigError if the class does
    not exist or is not an encoder, or if its output has another width than it says."""
    config = resolve_encoder(config, observations)
    name = config.encoder
    cls: Any = import_module_class("model.encoder", _BUILT_IN.get(name, name), nn.Module)
    leaves = encoded_leaves(observations)
    try:
        encoder: nn.Module = cls(leaves, config)
    except Exception as error:
        if name in _BUILT_IN or isinstance(error, ConfigError):
            raise
        shapes = {leaf: f"{spec.shape} {spec.dtype}" for leaf, spec in leaves.items()}
        raise ConfigError(
            f"--model.encoder {name}: its constructor fails for observations {shapes}: "
            f"{in_words(error)}; correct the encoder"
        ) from error
    if not isinstance(getattr(encoder, "out_features", None), int):
        raise ConfigError(f"encoder {name} has no attribute out_features: int; set it in __init__")
    if name not in _BUILT_IN:
        _try_out(encoder, name, observations, floats)
    return encoder


def _try_out(
    encoder: nn.Module, name: str, observations: Mapping[str, ArraySpec], floats: Collection[str]
) -> None:
    """Raise ConfigError if a user's encoder does not turn `TRIED_ROWS` observations of zeros into
    [TRIED_ROWS, out_features] floats, or cannot be saved."""
    obs = {
        leaf: torch.zeros(
            (TRIED_ROWS, *spec.shape),
            dtype=torch.float32 if leaf in floats else getattr(torch, spec.dtype),
        )
        for leaf, spec in observations.items()
    }
    expected = [TRIED_ROWS, encoder.out_features]
    training = encoder.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            out = encoder.eval()(obs)
    except Exception as error:
        shapes = {leaf: f"{tuple(x.shape)} {x.dtype}" for leaf, x in obs.items()}
        raise ConfigError(
            f"--model.encoder {name}: forward fails for observations {shapes}: {in_words(error)}; "
            "correct the encoder"
        ) from error
    encoder.train(training)
    check_savable(f"--model.encoder {name}", encoder)
    got: Any = list(out.shape) if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
    if got != expected:
        raise ConfigError(
            f"--model.encoder {name}: forward must return a tensor of shape [rows, out_features], "
            f"here {expected}, but returned {got}; correct forward or out_features"
        )


def check_savable(flag: str, module: nn.Module) -> None:
    """Raise ConfigError if a module of the user's own, which ``flag`` names, has a weight that no
    checkpoint may hold: the run would end at its first one."""
    buffers = dict(module.named_buffers())
    for key, value in module.state_dict().items():
        is_number = isinstance(value, torch.Tensor) and value.is_floating_point()
        if is_number and not value.isfinite().all():
            raise ConfigError(
                f"{flag}: the {'buffer' if key in buffers else 'parameter'} {key} holds numbers "
                "that are not finite, which no checkpoint may; make them finite, or, if it is a "
                "constant such as a mask, use register_buffer(..., persistent=False)"
            )


def encoded_leaves(observations: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
    """Return the leaves that an encoder sees: all but the action mask."""
    return {leaf: spec for leaf, spec in observations.items() if leaf != ACTION_MASK}


def _import_string(target: type[nn.Module]) -> str:
    if target.__module__ == "__main__" or "<locals>" in target.__qualname__:
        raise ConfigError(
            f"encoder class {target.__qualname__} of {target.__module__} cannot be imported by "
            "other processes; put it at the top level of a module"
        )
    return f"{target.__module__}:{target.__qualname__}"


def import_module_class(field: str, import_string: str, base: type[Module]) -> type[Module]:
    """Return the class package.module:Class, derived from ``base``, which the config's ``field``
    names. Raises ConfigError if there is none."""
    module_name, _, class_name = import_string.partition(":")
    try:
        target = importlib.import_module(module_name)
        for part in class_name.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{typed(field, import_string)}: importing it fails: {error}; it must be "
            "package.module:Class, importable from where the run is started"
        ) from error
    if not (isinstance(target, type) and issubclass(target, base)):
        wanted = "torch.nn.Module" if base is nn.Module else f"{base.__module__}.{base.__name__}"
        raise ConfigError(f"{typed(field, import_string)}: it is no class derived from {wanted}")
    return target
