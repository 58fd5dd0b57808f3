"""The records of a .wandb file, which an offline run of Weights & Biases writes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7
WHOLE, LAST = 1, 4
"""Types of a chunk that end a record, in the log format of LevelDB."""


def records(path: Path) -> list[Any]:
    """All records, in order."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # made at run time, unknown to the type checker
    data, at, found, part = path.read_bytes(), HEADER, [], b""
    while at + HEADER <= len(data):
        if at % BLOCK > BLOCK - HEADER:  # no room for a chunk at the end of a block
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0:
            break
        part += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (WHOLE, LAST):
            found.append(messages.Record.FromString(part))
            part = b""
    return found


def history(path: Path) -> list[dict[str, Any]]:
    """What was logged, without wandb's own entries."""
    rows = [each.history.item for each in records(path) if each.HasField("history")]
    named = [{item.key or "/".join(item.nested_key): item.value_json for item in r} for r in rows]
    return [{k: json.loads(v) for k, v in row.items() if k[0] != "_"} for row in named]
