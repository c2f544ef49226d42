"""Serve one page to browsers on this machine, and nothing else to anyone.

    bytes of a page ──> PageServer ──> http://127.0.0.1:PORT/TOKEN/

The server listens on loopback only. Other users of the machine can reach that too, so the path is a secret token. A web
page can reach it by DNS rebinding, so the Host header must be a loopback name.
Every other request gets 404, and the path of a request is never used to open a file.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

__all__ = ["PageServer"]

# Any port: through `ssh -L 8000:127.0.0.1:PORT` the Host header has the port of the browser's side.
_LOOPBACK_NAME = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_PATIENCE_S = 20.0  # with a client that neither sends nor receives
_PIECE = (
    1 << 18
)  # bytes per write, each with its own timeout: a slow connection needs several for a large page
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # The page may open Perfetto and send messages to it; a page that opened this one may not.
    "Cross-Origin-Opener-Policy": "same-origin-allow-popups",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Our own pages have a stricter policy in their <head>; this one also covers a page from someone else's folder.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


class PageServer(ThreadingTCPServer):
    """Listens as soon as it is created; `serve_forever` answers. `page` is called for each request."""

    daemon_threads = True  # a client that hangs does not keep the command from exiting
    request_queue_size = 64

    def __init__(self, page: Callable[[], bytes]) -> None:
        self.page = page
        self.path = f"/{secrets.token_urlsafe(16)}/"
        super().__init__(("127.0.0.1", 0), _OnePage)

    @property
    def port(self) -> int:
        return self.server_address[1]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnected."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _OnePage(BaseHTTPRequestHandler):
    """One request on one connection."""

    server: PageServer
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        self._answer(is_whole=True)

    def do_HEAD(self) -> None:
        self._answer(is_whole=False)

    def _answer(self, is_whole: bool) -> None:
        if not self._is_asked_for():
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        page = self.server.page()
        self._send_head(HTTPStatus.OK, {"Content-Type": "text/html; charset=utf-8"}, len(page))
        if is_whole:
            view = memoryview(page)
            for start in range(0, len(page), _PIECE):
                self.wfile.write(view[start : start + _PIECE])

    def _is_asked_for(self) -> bool:
        names = self.headers.get_all("Host") or []
        is_here = len(names) == 1 and _LOOPBACK_NAME.fullmatch(names[0].strip()) is not None
        asked = self.path.encode("utf-8", "surrogateescape")
        return is_here and secrets.compare_digest(asked, self.server.path.encode())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer every wrong request with the same empty 404."""
        self.close_connection = True
        self._send_head(HTTPStatus.NOT_FOUND, {}, 0)

    def _send_head(self, status: HTTPStatus, headers: dict[str, str], n_bytes: int) -> None:
        self.send_response_only(status)
        for name, value in (headers | {"Content-Length": str(n_bytes)} | _HEADERS).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal belongs to the user."""
