"""The rendezvous of ranks that share nothing but the address of a store, once per start.

The store may outlive the ranks (torchrun keeps it over restarts, during which hosts come and go),
so it may hold entries of earlier rounds. Therefore every rank but rank 0 writes a nonce under its
number, rank 0 answers each nonce with the round's token, and all other keys begin with that token.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import secrets
import socket
from datetime import timedelta
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import psutil
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from sampleforge.config import ConfigError
from sampleforge.peers.group import RankLost, Rendezvous, SoloRendezvous
from sampleforge.peers.torch_group import Backend, StoreRendezvous
from sampleforge.runtime.torchrun import World

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

POLL = 0.05
SHUTDOWN_TIMEOUT = 10.0
"""Seconds that a rank waits at the shutdown barrier before it disconnects."""


class StartupRendezvous:
    """The rendezvous of the ranks of ``world``: `lead` on rank 0, `follow` on all other ranks.

    Afterwards ``token`` names this round, and the rendezvous `of_group` forms the group.
    ``patience``: seconds within which all ranks have to come. Raises ConfigError if the store
    cannot be made or reached.
    """

    def __init__(self, world: World, patience: float) -> None:
        self.world = world
        self.token = ""
        self._patience = timedelta(seconds=patience)
        self.address = own_address(world)
        self._store = self._open(is_master=world.rank == 0 and not world.has_store)

    def _open(self, *, is_master: bool) -> TCPStore:
        world = self.world
        try:
            return TCPStore(
                world.host,
                world.port,
                is_master=is_master,
                timeout=self._patience,
                wait_for_workers=False,
                master_listen_fd=_loopback_listener(world) if is_master else None,
            )
        except (RuntimeError, OSError) as error:
            in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if in_use or "EADDRINUSE" in str(error):
                raise ConfigError(
                    f"rank 0 cannot listen at {world.store}: another program has port "
                    f"{world.port}; end that program, or give all ranks another MASTER_PORT "
                    "(torchrun --master-port)"
                ) from error
            raise ConfigError(
                f"rank {world.rank} cannot reach the store of the ranks at {world.store} within "
                f"{self._patience.total_seconds():g} s: is rank 0 running, is the address right, "
                f"does a firewall close the port? ({str(error).splitlines()[0]})"
            ) from error

    def lead(self, message: Any, about: dict[str, Any]) -> list[dict[str, Any]]:
        """On rank 0, wait for all ranks and send them ``message`` (plain values). Return every
        rank's ``about``, in rank order. Raises RankLost if a rank does not come, and ConfigError if
        the ranks do not match (`peer_mismatch`)."""
        assert self.world.rank == 0
        self.token = secrets.token_hex(8)
        joined = {0: about}
        give_up_at = monotonic() + self._patience.total_seconds()
        answered: set[str] = set()
        while len(joined) < self.world.size:
            for rank in set(range(self.world.size)) - joined.keys():
                self._answer(rank, answered, joined)
            if monotonic() > give_up_at:
                missing = ", ".join(str(r) for r in range(self.world.size) if r not in joined)
                raise RankLost(
                    f"of {self.world.size} ranks, rank {missing} did not come to {self.world.store}"
                    f" within {self._patience.total_seconds():g} s"
                )
            sleep(POLL if len(joined) < self.world.size else 0.0)
        peers = [joined[rank] for rank in range(self.world.size)]
        problem = peer_mismatch(peers)
        self._store.set(f"{self.token}/start", json.dumps({"problem": problem, "start": message}))
        if problem:
            sleep(1.0)  # the store may be in this process: the other ranks read it
            raise ConfigError(problem)
        return peers

    def _answer(self, rank: int, answered: set[str], joined: dict[int, dict[str, Any]]) -> None:
        """Give the token to every process that says it is this rank. The rank has joined when it
        has written its ``about`` under the token."""
        key = f"hello/{rank}"
        if not self._store.check([key]):
            return
        nonce = self._store.get(key).decode()
        if nonce not in answered:
            self._store.set(f"token/{nonce}", self.token)
            answered.add(nonce)
        about = f"{self.token}/about/{rank}"
        if self._store.check([about]):
            joined[rank] = json.loads(self._store.get(about))

    def follow(self, about: dict[str, Any]) -> Any:
        """On any other rank, send ``about`` (plain values on this rank) to rank 0 and return rank
        0's message. Raises RankLost if rank 0 does not come, and ConfigError if rank 0 finds that
        the ranks do not match."""
        nonce, rank = secrets.token_hex(8), self.world.rank
        self._store.set(f"hello/{rank}", nonce)
        self.token = self._wait(f"token/{nonce}").decode()
        self._store.set(f"{self.token}/about/{rank}", json.dumps(about))
        start = json.loads(self._wait(f"{self.token}/start"))
        if start["problem"]:
            raise ConfigError(start["problem"])
        return start["start"]

    def _wait(self, key: str) -> bytes:
        try:
            self._store.wait([key], self._patience)
            return self._store.get(key)
        except RuntimeError as error:
            raise RankLost(
                f"rank {self.world.rank} of {self.world.size} has waited "
                f"{self._patience.total_seconds():g} s at {self.world.store}, but rank 0, or one "
                f"that it waits for, did not come ({str(error).splitlines()[0]})"
            ) from error

    def another_store(self) -> Store:
        """Return a new connection to the store, all of whose keys belong to this round."""
        return PrefixStore(self.token, self._open(is_master=False))

    def of_group(self, backend: Backend, timeout: float, device: str) -> Rendezvous:
        """Return the object with which this rank, which learns on ``device``, joins the others'
        group, once all have come. ``timeout``: see `ProcessGroup`."""
        rank, size = self.world.rank, self.world.size
        if size == 1:
            return SoloRendezvous(device)
        return StoreRendezvous(
            self.another_store, rank, size, backend, timeout, device, address=self.address
        )

    def shutdown_barrier(self) -> None:
        """Tell the other ranks that this rank has done its last update. It may disconnect only when
        all ranks have, because its last messages might still be on the way."""
        self._store.set(f"{self.token}/ended/{self.world.rank}", "")

    def wait_for_shutdown_barrier(self) -> None:
        """Wait until all ranks have reached the shutdown barrier, for at most `SHUTDOWN_TIMEOUT`
        seconds, because a rank that has died never does."""
        keys = [f"{self.token}/ended/{rank}" for rank in range(self.world.size)]
        limit = timedelta(seconds=SHUTDOWN_TIMEOUT)
        try:
            self._store.wait(keys, limit)
            self._store.set(f"{self.token}/left/{self.world.rank}", "")
            if self.world.rank == 0 and not self.world.has_store:  # the store is in this process
                others = [f"{self.token}/left/{rank}" for rank in range(1, self.world.size)]
                self._store.wait(others, limit)
        except dist.DistError:
            return


def _loopback_listener(world: World) -> int | None:
    """Return the descriptor of a socket that listens for the store on loopback alone, if that is
    where the store shall be; torch's own listens on all interfaces. None for another address."""
    found = socket.getaddrinfo(world.host, world.port, type=socket.SOCK_STREAM)
    if not all(ipaddress.ip_address(place[0]).is_loopback for *_, place in found):
        return None
    family, kind, protocol, _, place = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(socket.SOMAXCONN)
        return listener.detach()


def own_address(world: World) -> str:
    """Return the address at which the other hosts reach this one: that of the interface towards
    the store, or of the interface GLOO_SOCKET_IFNAME. Raises ConfigError if there is none."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        addresses = psutil.net_if_addrs()
        own = [a.address for a in addresses.get(interface, []) if a.family == socket.AF_INET]
        if not own:
            raise ConfigError(
                f"GLOO_SOCKET_IFNAME is {interface!r}, but there is no such interface with an IPv4 "
                f"address here; there are: {', '.join(addresses)}"
            )
        return own[0]
    try:
        entries = socket.getaddrinfo(world.host, world.port, type=socket.SOCK_DGRAM)
        family, kind, _, _, place = min(entries, key=lambda entry: entry[0] != socket.AF_INET)
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # a datagram socket chooses a route and sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"MASTER_ADDR {world.host!r} cannot be reached from here: {error.strerror}; give an "
            "address of the host of rank 0 (torchrun --master-addr, or --rdzv-endpoint with "
            "--local-addr)"
        ) from error


def peer_mismatch(peers: list[dict[str, Any]]) -> str | None:
    """Return the message for ranks that cannot run together, given the ``about`` of each in rank
    order, where what rank 0 has as None may differ; None if they can."""
    who = [f"rank {rank} ({about['host']})" for rank, about in enumerate(peers)]
    local = [ipaddress.ip_address(about["address"]).is_loopback for about in peers]
    if any(local) and not all(local):
        at = local.index(True)
        return (
            f"{who[at]} can be reached at {peers[at]['address']} only, which no other host can; "
            "give torchrun an address of the network (--master-addr or --local-addr), or set "
            "GLOO_SOCKET_IFNAME there"
        )
    for name, remedy in {
        "version": "install the same version of SampleForge everywhere",
        "backend": "give all ranks a GPU of their own, or all --device cpu",
    }.items():
        for rank, about in enumerate(peers):
            if peers[0][name] not in (None, about[name]):
                return (
                    f"{who[0]} has {name} {peers[0][name]}, but {who[rank]} has {about[name]}; "
                    f"{remedy}"
                )
    furthest = max(range(len(peers)), key=lambda rank: (peers[rank]["checkpoint"], -rank))
    if peers[furthest]["checkpoint"] > peers[0]["checkpoint"]:
        return (
            f"{who[furthest]} has a checkpoint of {peers[furthest]['checkpoint']} env steps in "
            f"its --run-dir, and {who[0]}, from whose folder the run goes on, one of "
            f"{peers[0]['checkpoint']} (-1: none); make that host the first (torchrun --node-rank "
            "0, or the first --local-addr in the order of text), copy the folder, or give "
            "another --run-dir"
        )
    return None
