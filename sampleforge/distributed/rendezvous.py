"""How ranks that share nothing but the address of a store find each other, once per start.

The store may outlive the ranks (torchrun keeps it over restarts, during which hosts come and go):
it may hold what ranks of earlier rounds have written. Therefore every rank but rank 0 writes a
nonce under its number, rank 0 answers each nonce with the round's token, and all else is written
under that token.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from sampleforge.config import ConfigError
from sampleforge.distributed.group import RankLost
from sampleforge.distributed.torch_group import Backend, ProcessGroup
from sampleforge.runtime.torchrun import World

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

POLL = 0.05
LAST_WORDS = 10.0
"""Seconds that a rank waits for the others' last words before it hangs up."""


class StartupRendezvous:
    """The ranks of ``world`` meet: `lead` on rank 0, `follow` on all others. Then ``token`` names
    this round, and `join` forms their group.

    ``patience``: seconds that all have to come. Raises ConfigError if the store cannot be made or
    reached.
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
            )
        except RuntimeError as error:
            if "EADDRINUSE" in str(error):
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
        """Rank 0: wait for all, tell them ``message`` (plain values); returns what every rank has
        said ``about`` itself, in rank order. Raises RankLost if one does not come, and what
        `check_company` does."""
        assert self.world.rank == 0
        self.token = secrets.token_hex(8)
        found = {0: about}
        give_up_at = monotonic() + self._patience.total_seconds()
        answered: set[str] = set()
        while len(found) < self.world.size:
            for rank in set(range(self.world.size)) - found.keys():
                self._answer(rank, answered, found)
            if monotonic() > give_up_at:
                missing = ", ".join(str(r) for r in range(self.world.size) if r not in found)
                raise RankLost(
                    f"of {self.world.size} ranks, rank {missing} did not come to {self.world.store}"
                    f" within {self._patience.total_seconds():g} s"
                )
            sleep(POLL if len(found) < self.world.size else 0.0)
        said = [found[rank] for rank in range(self.world.size)]
        problem = peer_mismatch(said)
        self._store.set(f"{self.token}/start", json.dumps({"problem": problem, "start": message}))
        if problem:
            sleep(1.0)  # the store may be ours: the others read it
            raise ConfigError(problem)
        return said

    def _answer(self, rank: int, answered: set[str], found: dict[int, dict[str, Any]]) -> None:
        """Give the token to whoever says to be this rank; it is found when it has taken it."""
        key = f"hello/{rank}"
        if not self._store.check([key]):
            return
        nonce = self._store.get(key).decode()
        if nonce not in answered:
            self._store.set(f"token/{nonce}", self.token)
            answered.add(nonce)
        taken = f"{self.token}/about/{rank}"
        if self._store.check([taken]):
            found[rank] = json.loads(self._store.get(taken))

    def follow(self, about: dict[str, Any]) -> Any:
        """Another rank: say what it is ``about``; returns rank 0's message. Raises RankLost if rank
        0 does not come, and ConfigError for what rank 0 found wrong."""
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
        """A connection of its own to the store, in which everything is of this round."""
        return PrefixStore(self.token, self._open(is_master=False))

    def shutdown_barrier(self) -> None:
        """This rank has done its last update; it hangs up as soon as all have, and not before:
        what it has sent might still be on the way."""
        self._store.set(f"{self.token}/ended/{self.world.rank}", "")

    def wait_for_shutdown_barrier(self) -> None:
        """Until all ranks have said theirs, or for `LAST_WORDS`: one that has died says none."""
        keys = [f"{self.token}/ended/{rank}" for rank in range(self.world.size)]
        limit = timedelta(seconds=LAST_WORDS)
        try:
            self._store.wait(keys, limit)
            self._store.set(f"{self.token}/left/{self.world.rank}", "")
            if self.world.rank == 0 and not self.world.has_store:  # they ask our process
                others = [f"{self.token}/left/{rank}" for rank in range(1, self.world.size)]
                self._store.wait(others, limit)
        except dist.DistError:
            return


@dataclass(frozen=True)
class WorldRendezvous:
    """Join the group of a `StartupRendezvous`; ``device`` is the one that this rank learns on."""

    rendezvous: StartupRendezvous
    backend: Backend
    timeout: float
    device: str

    @property
    def rank(self) -> int:
        return self.rendezvous.world.rank

    @property
    def size(self) -> int:
        return self.rendezvous.world.size

    def join(self, generation: int) -> ProcessGroup:
        """Form the group. Raises RankLost if a rank does not come."""
        return ProcessGroup(
            PrefixStore(f"generation {generation}", self.rendezvous.another_store()),
            self.rank,
            self.size,
            backend=self.backend,
            timeout=self.timeout,
            address=self.rendezvous.address,
            device=torch.device(self.device),
        )


def own_address(world: World) -> str:
    """The address that this host is reached at by whoever can reach the store: that of the
    interface towards it, or of GLOO_SOCKET_IFNAME. Raises ConfigError if there is none."""
    asked = os.environ.get("GLOO_SOCKET_IFNAME")
    if asked:
        there = psutil.net_if_addrs()
        own = [a.address for a in there.get(asked, []) if a.family == socket.AF_INET]
        if not own:
            raise ConfigError(
                f"GLOO_SOCKET_IFNAME is {asked!r}, but there is no such interface with an IPv4 "
                f"address here; there are: {', '.join(there)}"
            )
        return own[0]
    try:
        found = socket.getaddrinfo(world.host, world.port, type=socket.SOCK_DGRAM)
        family, kind, _, _, place = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # of a datagram socket: it chooses a route and sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"MASTER_ADDR {world.host!r} cannot be reached from here: {error.strerror}; give an "
            "address of the host of rank 0 (torchrun --master-addr, or --rdzv-endpoint with "
            "--local-addr)"
        ) from error


def peer_mismatch(said: list[dict[str, Any]]) -> str | None:
    """What is wrong with a company of ranks that say so ``about`` themselves, if anything."""
    who = [f"rank {rank} ({about['host']})" for rank, about in enumerate(said)]
    local = [ipaddress.ip_address(about["address"]).is_loopback for about in said]
    if any(local) and not all(local):
        at = local.index(True)
        return (
            f"{who[at]} can be reached at {said[at]['address']} only, which no other host can; "
            "give torchrun an address of the network (--master-addr or --local-addr), or set "
            "GLOO_SOCKET_IFNAME there"
        )
    for name, remedy in {
        "version": "install the same version of SampleForge everywhere",
        "backend": "give all ranks a GPU of their own, or all --device cpu",
    }.items():
        for rank, about in enumerate(said):
            if about[name] != said[0][name]:
                return (
                    f"{who[0]} has {name} {said[0][name]}, but {who[rank]} has {about[name]}; "
                    f"{remedy}"
                )
    furthest = max(range(len(said)), key=lambda rank: (said[rank]["checkpoint"], -rank))
    if said[furthest]["checkpoint"] > said[0]["checkpoint"]:
        return (
            f"{who[furthest]} has a checkpoint of {said[furthest]['checkpoint']} env steps in "
            f"its --run-dir, and {who[0]}, from whose folder the run goes on, one of "
            f"{said[0]['checkpoint']} (-1: none); make that host the first (torchrun --node-rank "
            "0, or the first --local-addr in the order of text), copy the folder, or give "
            "another --run-dir"
        )
    return None
