"""Serves the live view: one page and one stream of changes, read-only.

Who may look: on a loopback address, a browser that asks for that very address (a page of another name that points
here is refused); on any other address, or where a token is set, a browser that shows the token.
"""

from __future__ import annotations

import gzip
import hmac
import ipaddress
import secrets
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from tramfl.hosts import is_loopback
from tramfl.notation import BadInput
from tramfl.reporting.dashboard.feed import Feed
from tramfl.reporting.dashboard.page import page
from tramfl.reporting.dashboard.source import Source

LOOPBACK = "127.0.0.1"
PATIENCE_SECONDS = 15.0
"""How long a watcher waits for news before the server answers that there is none."""
REQUEST_SECONDS = 10.0
"""A client that has not sent a whole request after this long is disconnected, however it trickles."""
MOST_CONNECTIONS = 64
SHORTEST_TOKEN = 8
SMALL = 2048
"""Bytes below which packing is not worth it."""

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Dashboard:
    """The live view of one source at one address."""

    def __init__(self, source: Source, host: str = LOOPBACK, port: int = 0, token: str | None = None) -> None:
        if token is not None and len(token) < SHORTEST_TOKEN:
            raise BadInput(f"A token needs at least {SHORTEST_TOKEN} characters; leave --token-file out to get one.")
        self.token = token if token is not None or is_loopback(host) else secrets.token_urlsafe(16)
        self._host = host
        self._feed = Feed(source)
        self._server = _listen(host, port, self._feed, self.token)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """What to open in a browser."""
        address = str(self._server.server_address[0])
        host = socket.gethostname() if ipaddress.ip_address(address).is_unspecified else self._host
        shown = f"[{host}]" if ":" in host else host
        token = f"?token={quote(self.token, safe='')}" if self.token else ""
        return f"http://{shown}:{self.port}/{token}"

    def serve(self) -> None:
        """Answer until `stop`, or until an interrupt."""
        try:
            self._server.serve_forever(poll_interval=0.2)
        finally:
            self.close()

    def stop(self) -> None:
        """Have `serve`, in another thread, return."""
        self._server.shutdown()

    def close(self) -> None:
        """Let go of the address, and of those who wait for news."""
        self._feed.closing.set()
        self._server.server_close()


def serve(
    source: Source,
    host: str = LOOPBACK,
    port: int = 0,
    token: str | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve a source until an interrupt; `announce` gets the address."""
    dashboard = Dashboard(source, host, port, token)
    try:
        announce(dashboard.url)
        dashboard.serve()
    except KeyboardInterrupt:
        pass
    finally:
        dashboard.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS
    block_on_close = False

    def __init__(self, family: socket.AddressFamily, address: Any, feed: Feed, token: str | None) -> None:
        self.address_family = family
        self.feed, self.token = feed, token
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._asking: dict[socket.socket, float] = {}
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's asks the name service for our name

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def awaits_request(self, connection: socket.socket) -> None:
        """A client is connected, and its next request has a deadline."""
        self._asking[connection] = time.monotonic() + REQUEST_SECONDS

    def has_request(self, connection: socket.socket) -> None:
        """The request has come whole, or the connection is over."""
        self._asking.pop(connection, None)

    def service_actions(self) -> None:
        """Called a few times a second: disconnect clients that are past their deadline."""
        now = time.monotonic()
        for connection in [c for c, deadline in list(self._asking.items()) if deadline < now]:
            self.has_request(connection)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # its thread reads the end

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A watcher that leaves in the middle of an answer is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def _listen(host: str, port: int, feed: Feed, token: str | None) -> _Server:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise BadInput(f"--host {host}: no such address here; leave it out for this machine alone.") from None
    try:
        return _Server(family, address, feed, token)
    except PermissionError:
        raise BadInput(f"--port {port} is not allowed to you; give one above 1023, or leave it out.") from None
    except OSError as error:
        raise BadInput(
            f"{host}, port {port} cannot be listened on: {error.strerror}; leave --port out for a free one."
        ) from None


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 2 * PATIENCE_SECONDS
    """Seconds within which a client must take an answer."""

    def handle_one_request(self) -> None:
        """Read and answer one request, which must come whole within its deadline."""
        self.server.awaits_request(self.connection)
        try:
            super().handle_one_request()
        finally:
            self.server.has_request(self.connection)

    def parse_request(self) -> bool:
        """The first line is here: read the headers."""
        whole = super().parse_request()
        self.server.has_request(self.connection)
        return whole

    def do_GET(self) -> None:
        """The page, or what has changed."""
        if self.server.feed.closing.is_set():  # a connection from before the end
            self.close_connection = True
            return
        path, _, query = self.path.partition("?")
        asked = {key: values[-1] for key, values in parse_qs(query).items()}
        if not self._may_look(asked.get("token", "")):
            self._refuse(HTTPStatus.FORBIDDEN, self._why_not())
        elif path == "/":
            content, policy = page()
            self._answer(content, "text/html; charset=utf-8", {"Content-Security-Policy": policy})
        elif path == "/changes":
            self._changes(asked)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is one page here, at /.")

    def _changes(self, asked: dict[str, str]) -> None:
        try:
            after, version = int(asked.get("after", "0")), int(asked.get("version", "-1"))
        except ValueError:
            after = -1
        if after < 0:
            self._refuse(HTTPStatus.BAD_REQUEST, "after and version are whole numbers.")
            return
        content = self.server.feed.changes(asked.get("run", ""), after, version, PATIENCE_SECONDS)
        self._answer(content, "application/json")

    def _may_look(self, shown: str) -> bool:
        if self.server.token is not None:
            shown = shown or self.headers.get("Authorization", "").removeprefix("Bearer ")
            return hmac.compare_digest(shown.encode("utf-8", "replace"), self.server.token.encode())
        # Without a token the name must be ours, or any web page could have its own name point here and read along.
        try:
            return is_loopback(urlsplit(f"//{self.headers.get('Host', '')}").hostname or "")
        except ValueError:
            return False

    def _why_not(self) -> str:
        if self.server.token is not None:
            return "This page needs the token: open the whole address that tramfl watch printed."
        return "This page answers only to the address that tramfl watch printed."

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._answer(f"{why}\n".encode(), "text/plain; charset=utf-8", status=status)

    def _answer(
        self, content: bytes, kind: str, headers: dict[str, str] | None = None, status: HTTPStatus = HTTPStatus.OK
    ) -> None:
        more = HEADERS | (headers or {})
        if len(content) > SMALL and "gzip" in self.headers.get("Accept-Encoding", ""):
            content, more = gzip.compress(content, 3, mtime=0), more | {"Content-Encoding": "gzip"}
        self.send_response(status)
        for name, value in (more | {"Content-Type": kind, "Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _only_get(self) -> None:
        self.close_connection = True  # whatever body follows is not read
        self._answer(
            b"This page can only be read.\n",
            "text/plain; charset=utf-8",
            {"Allow": "GET", "Connection": "close"},
            HTTPStatus.METHOD_NOT_ALLOWED,
        )

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _only_get

    def version_string(self) -> str:
        """Nothing that helps an attacker."""
        return "tramfl"

    def log_message(self, format: str, *args: object) -> None:
        """Requests are nobody's news."""
