"""Where ranks meet: at a place that other users of the machine cannot reach."""

from __future__ import annotations

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch

from sampleforge.config import ConfigError
from sampleforge.peers.rendezvous import StartupRendezvous
from sampleforge.peers.torch_group import RendezvousStore, StoreRendezvous
from sampleforge.runtime.torchrun import World


def listening() -> set[tuple[str, int]]:
    """Addresses at which this process listens."""
    connections = psutil.Process().net_connections()
    return {(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN}


def test_the_store_of_one_machine_has_no_port_and_joins_the_ranks_again_and_again() -> None:
    before = listening()
    store = RendezvousStore()
    joins = [store.rendezvous(rank, 2, "gloo", 60.0, "cpu") for rank in range(2)]

    def meet(join: StoreRendezvous) -> list[float]:
        gathered = []
        for generation in range(2):
            group = join.join(generation)
            values = group.all_gather(torch.tensor([float(join.rank + 10 * generation)]))
            gathered += values.flatten().tolist()
        return gathered

    assert not listening() - before
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(meet, joins)) == [[0.0, 1.0, 10.0, 11.0]] * 2
    assert stat.S_IMODE(os.stat(os.path.dirname(store.path)).st_mode) & 0o077 == 0


def test_a_store_at_loopback_listens_there_alone() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = World(0, 2, 0, 2, "localhost", port)
    before = listening()
    rendezvous = StartupRendezvous(world, patience=20.0)
    assert listening() - before == {("127.0.0.1", port)}
    with pytest.raises(ConfigError, match="another program has port"):
        StartupRendezvous(world, patience=5.0)
    rendezvous.another_store().set("key", "value")
