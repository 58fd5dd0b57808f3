"""The rank of this process in torchrun's world, read from its environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sampleforge.config import ConfigError

_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """The place of this process among the ranks: rank ``rank`` of ``size``, and number
    ``local_rank`` of the ``local_size`` ranks on this host.

    The ranks meet at a store at ``host``:``port``. ``has_store``: the launcher keeps the store;
    otherwise rank 0 creates it. ``attempt``: number of times that the launcher has restarted the
    ranks after a failure; ``max_attempts``: its limit.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    port: int
    has_store: bool = False
    attempt: int = 0
    max_attempts: int = 0

    @property
    def store(self) -> str:
        return f"{self.host}:{self.port} (MASTER_ADDR:MASTER_PORT)"

    @classmethod
    def of_environment(cls, variables: Mapping[str, str] = os.environ) -> World | None:
        """Return the world of this process, or None if it was not started by a launcher of ranks.
        Raises ConfigError if the variables are incomplete or contradict each other."""
        if "RANK" not in variables and "WORLD_SIZE" not in variables:
            return None
        defaults = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        given = {**defaults, **variables}
        missing = [name for name in (*_NUMBERS, "MASTER_ADDR") if not given.get(name)]
        if missing:
            raise ConfigError(
                f"RANK or WORLD_SIZE is set, as torchrun sets them, but {', '.join(missing)} is "
                "not; start all ranks with torchrun, or unset them for --num-ranks on one machine"
            )
        rank, size, local_rank, local_size, port = (_number(n, given[n]) for n in _NUMBERS)
        if not (rank < size and local_rank < local_size <= size and 0 < port < 65536):
            values = ", ".join(f"{name}={given[name]}" for name in _NUMBERS)
            raise ConfigError(f"{values} contradict each other; start all ranks with torchrun")
        return cls(
            rank,
            size,
            local_rank,
            local_size,
            given["MASTER_ADDR"],
            port,
            has_store=given.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=_number("attempt", given.get("TORCHELASTIC_RESTART_COUNT", "0")),
            max_attempts=_number("attempts", given.get("TORCHELASTIC_MAX_RESTARTS", "0")),
        )


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{name} is {text!r}, but must be a number, as torchrun sets it")
    return int(text)
