"""What torchrun, or whatever sets the same environment variables, says of this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sampleforge.config import ConfigError

_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """This process is rank ``rank`` of ``size`` processes, the ``local_rank``-th of ``local_size``
    on this host. A store for all to meet at is, or shall be made by rank 0, at ``host``:``port``.

    ``has_store``: the launcher keeps that store. ``attempt``: how often the launcher has started
    the ranks again after a failure, and ``max_attempts`` how often it may.
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
        """The world of this process, or None if it was started by itself. Raises ConfigError if
        the variables are incomplete or contradict each other."""
        if "RANK" not in variables and "WORLD_SIZE" not in variables:
            return None
        defaults = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        found = {**defaults, **variables}
        missing = [name for name in (*_NUMBERS, "MASTER_ADDR") if not found.get(name)]
        if missing:
            raise ConfigError(
                f"RANK or WORLD_SIZE is set, as torchrun sets them, but {', '.join(missing)} is "
                "not; start all ranks with torchrun, or unset them for --num-ranks on one machine"
            )
        rank, size, local_rank, local_size, port = (_number(n, found[n]) for n in _NUMBERS)
        if not (rank < size and local_rank < local_size <= size and 0 < port < 65536):
            said = ", ".join(f"{name}={found[name]}" for name in _NUMBERS)
            raise ConfigError(f"{said} contradict each other; start all ranks with torchrun")
        return cls(
            rank,
            size,
            local_rank,
            local_size,
            found["MASTER_ADDR"],
            port,
            has_store=found.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=_number("attempt", found.get("TORCHELASTIC_RESTART_COUNT", "0")),
            max_attempts=_number("attempts", found.get("TORCHELASTIC_MAX_RESTARTS", "0")),
        )


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{name} is {text!r}, but must be a number, as torchrun sets it")
    return int(text)
