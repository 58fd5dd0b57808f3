"""Folders of runs for the web page, and a server of them in a thread."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sampleforge.tools.serve.server import Server


def write_run(folder: Path, reports: int = 20, *, scale: float = 1.0, **more: Any) -> Path:
    """A folder as a run leaves it, with so many reports; ``more``: other scalars of each."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("algo: appo\nenv: CartPole-v1\nseed: 3\n")
    (folder / ".lock").write_text("99999999\n")
    (folder / "log.txt").write_text("2026-01-01 00:00:00 session          info    begins\n")
    (folder / "metrics.jsonl").write_text("".join(line(i, scale, **more) for i in range(reports)))
    return folder


def of_policies(**policies: Mapping[str, float]) -> dict[str, Any]:
    """The scalars of the policies of a report, with those that every policy has."""
    return {
        f"{policy}/{name}": value
        for policy, own in policies.items()
        for name, value in {"episodes": 3.0, "updates": 2.0, **own}.items()
    }


def line(index: int, scale: float = 1.0, **more: Any) -> str:
    """A line of metrics.jsonl: report ``index``, with a return that grows."""
    report = {
        "env_steps": 100 * (index + 1),
        "wall_s": 5.0 * (index + 1),
        "loss": 1.0 / (index + 1),
    }
    return json.dumps({**report, "return_mean": scale * index, **more}) + "\n"


def tree_hash(root: Path) -> str:
    """A checksum of everything below a folder: names, kinds, times, links and contents."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        for name in sorted([*folders, *files]):
            path = Path(folder, name)
            status = path.lstat()
            digest.update(os.fsencode(path) + f"{status.st_mode} {status.st_mtime_ns}".encode())
            if path.is_symlink():
                digest.update(os.fsencode(os.readlink(path)))
            elif path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()


@contextmanager
def served(root: Path) -> Iterator[Server]:
    """A running server of the runs below a folder, at a free port."""
    with Server(root, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    server: Server, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a request; ``Host`` may be replaced."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=names)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def ask_json(server: Server, path: str) -> Any:
    """The values of an answer, which must be a good one."""
    status, _, body = ask(server, path)
    assert status == 200, body
    return json.loads(body)
