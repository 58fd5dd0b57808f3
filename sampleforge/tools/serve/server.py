"""The HTTP server of the page: read-only, for browsers on this machine alone."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sampleforge.runtime.files import to_json
from sampleforge.tools.serve.metrics import SECONDS, STEPS
from sampleforge.tools.serve.runs import Runs
from sampleforge.tools.serve.tree import Refused, read_at

ADDRESS = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
"""Names of this machine that the Host header may have. A page of another site that has its name
resolve to this machine (DNS rebinding) has its own name there."""
PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.svg": ("page.svg", "image/svg+xml"),
}
"""Path -> file of this package and its content type."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
MAX_SMOOTH = 100_000
PART = 1 << 18
"""Bytes of a video that are sent at a time."""
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")

Query = dict[str, list[str]]


class BadRequest(Exception):
    """The request cannot be answered; the message says why."""


@dataclass
class Response:
    """An answer with a body in memory."""

    body: bytes
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK
    headers: dict[str, str] = field(default_factory=dict)


class Server(ThreadingHTTPServer):
    """Serves the runs below ``root`` at ``port`` of the loopback interface (0: any free port).
    Raises OSError if the port cannot be had or ``root`` is no folder."""

    daemon_threads = True

    def __init__(self, root: Path, port: int) -> None:
        self.runs = Runs(root)
        super().__init__((ADDRESS, port), Handler)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a browser has closed the connection."""


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; refuses everything else."""

    server: Server
    timeout = 30

    def version_string(self) -> str:
        return "sampleforge"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        try:
            self._check()
            url = urlsplit(self.path)
            query = parse_qs(url.query, keep_blank_values=True, max_num_fields=2000)
            if url.path == "/file":
                self._send_video(query)
                return
            self._send(self._response(url.path, query))
        except BadRequest as error:
            self._refuse(HTTPStatus.FORBIDDEN, str(error))
        except (Refused, FileNotFoundError, NotADirectoryError) as error:
            self._refuse(HTTPStatus.NOT_FOUND, str(error))
        except ValueError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except ConnectionError:
            raise
        except OSError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, error.strerror or "cannot be read")

    do_HEAD = do_GET

    def _only_get(self) -> None:
        self._refuse(
            HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD: nothing can be changed here"
        )

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _only_get

    def _check(self) -> None:
        """Raise BadRequest for a request that another site may have caused."""
        hosts = self.headers.get_all("Host") or []
        name = re.sub(r":\d+$", "", hosts[0].strip().lower()) if len(hosts) == 1 else ""
        if name not in NAMES:
            raise BadRequest(f"the Host header must be one of {', '.join(NAMES)}")
        site = self.headers.get("Sec-Fetch-Site", "none")
        opens_page = self.headers.get("Sec-Fetch-Mode") == "navigate" and self.path == "/"
        if site not in ("none", "same-origin") and not opens_page:
            raise BadRequest("other sites may not ask")

    def _response(self, path: str, query: Query) -> Response:
        if path in PAGE:
            name, content_type = PAGE[path]
            return Response(_page_file(name), content_type)
        if path not in ROUTES:
            raise Refused(f"there is no {path}")
        values = ROUTES[path](self.server.runs, query)
        return Response(to_json(values).encode())

    def _send(self, response: Response) -> None:
        tag = f'"{hashlib.sha256(response.body).hexdigest()[:32]}"'
        if self.headers.get("If-None-Match") == tag:
            response = Response(b"", response.content_type, HTTPStatus.NOT_MODIFIED)
        self._begin(response.status, response.content_type, len(response.body), {"ETag": tag})
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def _begin(
        self, status: HTTPStatus, content_type: str, length: int, headers: dict[str, str]
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length))
        for name, value in {**HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        headers = {"Allow": "GET, HEAD"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        body = to_json({"error": why.encode("utf-8", "replace").decode()}).encode()
        self._begin(status, "application/json", len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_video(self, query: Query) -> None:
        """Send a video, or the part of it that a Range header asks for."""
        runs = self.server.runs
        place, name, content_type = runs.video(_one(query, "run"), _one(query, "video"))
        with runs.tree.open(place, name) as handle:
            size = os.fstat(handle).st_size
            begin, end = self._range(size)
            part = {"Accept-Ranges": "bytes"}
            status = HTTPStatus.OK
            if (begin, end) != (0, size):
                status = HTTPStatus.PARTIAL_CONTENT
                part["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
            self._begin(status, content_type, end - begin, part)
            while begin < end and self.command != "HEAD":
                data = read_at(handle, begin, min(PART, end - begin))
                if not data:
                    break
                self.wfile.write(data)
                begin += len(data)

    def _range(self, size: int) -> tuple[int, int]:
        """Return the first byte that is asked for, and the one after the last."""
        found = _RANGE.fullmatch(self.headers.get("Range", "").strip())
        if not found or found[1] == found[2] == "":
            return 0, size
        if not found[1]:
            return max(0, size - int(found[2])), size
        begin, end = int(found[1]), int(found[2]) + 1 if found[2] else size
        return (begin, min(end, size)) if begin < min(end, size) else (0, size)


@cache
def _page_file(name: str) -> bytes:
    return resources.files("sampleforge.tools.serve").joinpath(name).read_bytes()


def _one(query: Query, name: str, default: str | None = None) -> str:
    """Return the value of a parameter. Raises ValueError if it is missing."""
    values = query.get(name)
    if values:
        return values[0]
    if default is None:
        raise ValueError(f"there is no {name} in the request")
    return default


def _whole(query: Query, name: str, default: int, low: int, high: int) -> int:
    """Return a parameter that is a whole number of a range. Raises ValueError."""
    text = _one(query, name, str(default))
    if not re.fullmatch(r"-?\d{1,15}", text):
        raise ValueError(f"{name} must be a whole number")
    return min(high, max(low, int(text)))


def _curves(runs: Runs, query: Query) -> dict[str, Any]:
    x = _one(query, "x", STEPS)
    if x not in (STEPS, SECONDS):
        raise ValueError(f"x must be {STEPS} or {SECONDS}")
    wanted = query.get("run", [])
    known = [*query.get("have", []), *[""] * len(wanted)]
    return runs.curves(
        list(zip(wanted, known, strict=False)),
        _one(query, "metric"),
        x,
        _whole(query, "smooth", 1, 1, MAX_SMOOTH),
        _whole(query, "of", 0, 0, 1 << 20),
    )


def _of_run(method: Callable[..., dict[str, Any]], runs: Runs, query: Query) -> dict[str, Any]:
    return method(runs, _one(query, "run"))


def _log(runs: Runs, query: Query) -> dict[str, Any]:
    return runs.log(_one(query, "run"), _whole(query, "from", -1, -1, 1 << 60))


ROUTES: dict[str, Callable[[Runs, Query], dict[str, Any]]] = {
    "/api/runs": lambda runs, query: runs.listing(),
    "/api/curves": _curves,
    "/api/run": partial(_of_run, Runs.details),
    "/api/log": _log,
    "/api/lineage": partial(_of_run, Runs.lineage),
}
"""Path -> function that returns the values which are sent as JSON."""
