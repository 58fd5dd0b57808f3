"""Other weights, or the state of a checkpoint, that a running learner continues from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from sampleforge.algos.learning import Learner

REQUEST = "load"
"""The kind of request by which the driver asks a learner to load a state: see `StateLoad`."""
NETWORKS = ("model/", "target/")
"""Beginnings of the names of the weights in a learner's state; a learner may lack the second."""


@dataclass(frozen=True)
class StateLoad:
    """The payload of a request to load a state; the answer is whether the learner has loaded it.

    ``number``: of the request, larger than those of all earlier ones. ``file``: of
    `write_state_file`. ``raised_by``: policy versions that the learner skips, at least one more
    than the largest policy lag that is learned from: so all experience of the weights before is
    stale.
    """

    number: int
    file: Path
    raised_by: int

    def is_part_of(self, learner: Learner) -> bool:
        """Return whether the learner has loaded this state, also in an earlier life."""
        return int(learner.tag.get(REQUEST, 0)) >= self.number

    def read(self) -> LoadedState:
        """Return the contents of the file, in this process."""
        with safetensors.safe_open(self.file, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            plain = json.loads(opened.metadata()["plain"])
        return LoadedState(self.number, tensors, plain, self.raised_by)


@dataclass(frozen=True)
class LoadedState:
    """A state in memory. ``plain``: the plain values of a complete state of a learner; empty where
    ``tensors`` are only a policy's weights, ``model/<name>``."""

    number: int
    tensors: dict[str, torch.Tensor]
    plain: dict[str, Any]
    raised_by: int

    def put_into(self, learner: Learner) -> None:
        """Replace the state of ``learner``, between two updates. The policy version never goes
        back. Weights alone leave the rest of the state: the optimiser's moments, the
        hyperparameters, the random generators."""
        tensors, plain = learner.state()
        version = max(learner.version + self.raised_by, int(self.plain.get("version", 0)))
        tag = {**learner.tag, REQUEST: self.number}
        if self.plain:
            tensors, plain = self.tensors, self.plain
        else:
            for network in NETWORKS:
                own = {network + n.removeprefix("model/"): t for n, t in self.tensors.items()}
                tensors |= {name: tensor for name, tensor in own.items() if name in tensors}
        learner.load(tensors, {**plain, "version": version, "tag": tag})


def write_state_file(file: Path, tensors: dict[str, torch.Tensor], plain: dict[str, Any]) -> None:
    """Write what `StateLoad.read` reads. Raises OSError if the file cannot be written."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    file.write_bytes(safetensors.torch.save(whole, {"plain": json.dumps(plain)}))
