"""Ranks that learn one policy have one state: shared at the start, compared whenever asked."""

from __future__ import annotations

import hashlib
import json

import safetensors.torch
import torch

from sampleforge.algos.learner import Learner
from sampleforge.data.ranks import RankGroup


class RanksDiverged(RuntimeError):
    """Ranks that should hold the same weights, optimiser state and statistics do not."""


def share_state(learner: Learner, group: RankGroup, source: int = 0) -> None:
    """Give every rank the whole state of the learner of rank ``source``, and check that it has it.
    All ranks call this together."""
    if group.rank == source:
        tensors, plain = learner.state()
        group.broadcast(safetensors.torch.save(tensors), source)
        group.broadcast(json.dumps(plain).encode(), source)
    else:
        tensors = safetensors.torch.load(group.broadcast(None, source))
        learner.load(tensors, json.loads(group.broadcast(None, source)))
    check_agreement(learner, group)


def check_agreement(learner: Learner, group: RankGroup) -> None:
    """Compare the state of all ranks by checksum. Raises RanksDiverged, on every rank."""
    sums = group.gather(torch.tensor([checksum(learner)], dtype=torch.float64))[:, 0].tolist()
    if len(set(sums)) > 1:
        shown = ", ".join(f"rank {rank}: {int(value):012x}" for rank, value in enumerate(sums))
        raise RanksDiverged(
            f"after update {learner.version} the ranks do not hold the same weights and statistics "
            f"(checksums {shown}); unless the model keeps statistics of its own, as BatchNorm "
            "does, this is a fault of SampleForge or of this machine"
        )


def checksum(learner: Learner) -> int:
    """48 bits, which float64 holds exactly, of all tensors and plain values of the state."""
    tensors, plain = learner.state()
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return int.from_bytes(digest.digest()[:6], "big")
