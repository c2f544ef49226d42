"""Show one page to the browsers of this machine, and nothing else to anybody.

    bytes of a page ──> PageServer ──> http://127.0.0.1:PORT/TOKEN/

Only loopback is listened on. Programs of other users of the machine reach that too, so the path is a secret; and a web
page whose name was made to mean 127.0.0.1 does too, so the name the browser asks for must be one of loopback.
Whatever else is asked for is not found, and no file is ever looked for by the path of a request.
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

# Any port: through `ssh -L 8000:127.0.0.1:PORT` the browser names the port at its own end.
_LOOPBACK_NAME = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_PATIENCE_S = 20.0  # with a client that says or takes nothing
_PIECE = 1 << 18  # bytes handed over within one patience: a slow line needs several for a large page
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # The page may open Perfetto and talk to it; who opened the page may not talk to the page.
    "Cross-Origin-Opener-Policy": "same-origin-allow-popups",
    "Cross-Origin-Resource-Policy": "same-origin",
    # A page of ours says more in its head; this also holds for one that came with a folder from elsewhere.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


class PageServer(ThreadingTCPServer):
    """Listens from the moment it is made; `serve_forever` answers. `page` is asked for each request."""

    daemon_threads = True  # a client that hangs does not keep the command from ending
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
        """A client that went away is no news."""
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
        """Whatever is wrong with a request, the answer is the same, and says nothing."""
        self.close_connection = True
        self._send_head(HTTPStatus.NOT_FOUND, {}, 0)

    def _send_head(self, status: HTTPStatus, headers: dict[str, str], n_bytes: int) -> None:
        self.send_response_only(status)
        for name, value in (headers | {"Content-Length": str(n_bytes)} | _HEADERS).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal belongs to the user."""
