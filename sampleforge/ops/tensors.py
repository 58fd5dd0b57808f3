"""Dataclasses of tensors, changed tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch

Record = TypeVar("Record", bound=Any)
Change = Callable[[torch.Tensor], torch.Tensor]


def mapped(record: Record, change: Change, **of_fields: Change) -> Record:
    """Return the dataclass with each of its tensors changed, those of dicts and dataclasses in it
    as well. ``of_fields``: the changes of single fields, in the place of ``change``."""
    changed: dict[str, Any] = {}
    for field in fields(record):
        value, own = getattr(record, field.name), of_fields.get(field.name, change)
        if isinstance(value, dict):
            changed[field.name] = {name: own(leaf) for name, leaf in value.items()}
        elif is_dataclass(value):
            changed[field.name] = mapped(value, own)
        elif value is not None:
            assert isinstance(value, torch.Tensor), f"{field.name} is not a tensor"
            changed[field.name] = own(value)
    return replace(record, **changed)


def moved(record: Record, device: torch.device) -> Record:
    """Return the dataclass with all its tensors on ``device``, from there or from the CPU; they may
    still be under way. On a CPU it is the same dataclass: a copy would cost 20 us a batch."""
    if device.type == "cpu":
        return record
    return mapped(record, lambda tensor: tensor.to(device, non_blocking=True))


def tensors_of(record: Any) -> list[torch.Tensor]:
    """Return the tensors of a dataclass, with those of dicts and dataclasses in it, in order."""
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    mapped(record, keep)
    return found
