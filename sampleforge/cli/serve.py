"""The command `sampleforge serve RUNS_DIR`: the runs of a folder in a browser, live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sampleforge.cli.flags import parse
from sampleforge.config import Checked, ConfigError, check_range


@dataclass(frozen=True)
class ServeFlags(Checked):
    runs_dir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUNS_DIR")] = "runs"
    """Folder with run folders, at any depth; or one run folder."""
    port: int = 8420
    """Port on this machine; 0 takes a free one."""


def run(args: Sequence[str]) -> int:
    """Serve until Ctrl-C. Raises ConfigError."""
    text = (
        "Show runs live in a browser: curves, workers, populations, logs, videos. Only this "
        "machine can open the page, and nothing can be changed there."
    )
    flags = parse(ServeFlags, args, "sampleforge serve", text)
    check_range(flags, "port", low=0, high=65_535)
    folder = Path(flags.runs_dir)
    if not folder.is_dir():
        raise ConfigError(
            f"RUNS_DIR {folder}: there is no such folder; give the one that has your run folders, "
            "for example: sampleforge serve runs"
        )
    from sampleforge.tools.serve.server import Server

    try:
        server = Server(folder, flags.port)
    except OSError as error:
        raise ConfigError(
            f"--port {flags.port}: cannot be used ({error.strerror}); give another one, or 0 for "
            "any that is free"
        ) from error
    with server:
        print(f"{folder}: {server.url} (Ctrl-C ends)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0
