"""Synchronisation of the ranks of one policy: their learner state and, over a network, their
metrics."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import safetensors.torch
import torch

from sampleforge.algorithms.learning import Learner
from sampleforge.peers.group import RankGroup
from sampleforge.shared.counters import Counters
from sampleforge.shared.records import EpisodeList, EpisodeRecord


class MetricsSync:
    """Copies the counters and episodes of all ranks to every rank; a rank's own row of ``counters``
    is always current, the other rows are those of the last exchange.

    ``played``: the queue of this rank's actor. ``known``: the queue of all ranks' episodes, if this
    process has a driver that reads it. All ranks call `exchange` together.
    """

    def __init__(
        self, counters: Counters, played: EpisodeList, known: EpisodeList | None = None
    ) -> None:
        self._counters = counters
        self._played = played
        self._known = known

    def exchange(self, group: RankGroup) -> None:
        played = self._played.take()
        row = self._counters.row(group.rank)
        own = np.concatenate([*row.values(), [len(played)]])
        gathered = group.all_gather(torch.from_numpy(own)).numpy()
        self._counters.set_remote(gathered[:, :-1], keep=group.rank)
        episodes = gathered[:, -1].astype(int).tolist()
        if any(episodes):
            self._exchange_episodes(group, played, episodes)

    def _exchange_episodes(
        self, group: RankGroup, played: list[EpisodeRecord], counts: list[int]
    ) -> None:
        """Send every rank's episodes to all ranks, in messages of equal size, which collectives
        require."""
        own = torch.zeros(max(counts), len(EpisodeRecord._fields), dtype=torch.float64)
        for at, record in enumerate(played):
            own[at] = torch.tensor(record, dtype=torch.float64)
        gathered = group.all_gather(own.flatten()).view(group.size, *own.shape)
        if self._known is None:
            return
        for rank, count in enumerate(counts):
            for _, split, row, ret, length, policy, *_ in gathered[rank, :count].tolist():
                record = EpisodeRecord(rank, int(split), int(row), ret, int(length), int(policy))
                self._known.extend([record])


class RanksDiverged(RuntimeError):
    """The ranks do not hold the same weights, optimiser state and statistics."""


def share_state(learner: Learner, group: RankGroup, source: int = 0) -> None:
    """Copy the whole learner state of rank ``source`` to every rank, and check that all have it.
    All ranks call this together."""
    if group.rank == source:
        tensors, plain = learner.state()
        group.broadcast(safetensors.torch.save(tensors), source)
        group.broadcast(json.dumps(plain).encode(), source)
    else:
        tensors = safetensors.torch.load(group.broadcast(None, source))
        learner.load(tensors, json.loads(group.broadcast(None, source)))
    check_same_state(learner, group)


def check_same_state(learner: Learner, group: RankGroup) -> None:
    """Compare the state of all ranks by checksum. Raises RanksDiverged, on every rank."""
    sums = group.all_gather(torch.tensor([checksum(learner)], dtype=torch.float64))[:, 0].tolist()
    if len(set(sums)) > 1:
        shown = ", ".join(f"rank {rank}: {int(value):012x}" for rank, value in enumerate(sums))
        raise RanksDiverged(
            f"after update {learner.version} the ranks do not hold the same weights and statistics "
            f"(checksums {shown}); unless the model keeps statistics of its own, as BatchNorm "
            "does, this is a bug of SampleForge or a fault of this machine"
        )


def checksum(learner: Learner) -> int:
    """Return a checksum of all tensors and plain values of the state, of 48 bits, which float64
    holds exactly."""
    tensors, plain = learner.state()
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return int.from_bytes(digest.digest()[:6], "big")
