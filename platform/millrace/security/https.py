"""HTTP server of metrics, with TLS and users.

Its certificates change with their files.

Invariants

- A handshake runs in the thread of its connection, and a silent peer is disconnected after ``IDLE_S``. No client keeps
  others from being served. Of more than ``CONNECTIONS_MAX`` connections, the oldest end.
- With users, no request is served before its password is checked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from millrace.security.reloading import Reloading

_logger: Final = logging.getLogger(__name__)

IDLE_S: Final = 10.0
CONNECTIONS_MAX: Final = 100
"""Largest number of connections at a time, each of which has a thread."""

App = Callable[[dict[str, Any], Callable[..., Any]], Any]
"""An application by WSGI (PEP 3333)."""


class HttpServer(ThreadingMixIn, WSGIServer):
    """Server of one application at one address, in threads of its own."""

    daemon_threads = True

    def __init__(
        self,
        host: str,
        port: int,
        app: App,
        *,
        tls: Reloading[ssl.SSLContext] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        """Listen, and start to serve. Raises ``OSError``.

        ``users`` are names with passwords, for HTTP's basic authentication; None lets everybody in.
        """
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        self._tls: Final = tls
        self._lock: Final = threading.Lock()
        self._open: Final[dict[socket.socket, None]] = {}
        """Open connections, the oldest first."""
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]  # the host and the port of either family
        self.set_app(app if users is None else _authenticated(app, users))
        self._thread: Final = threading.Thread(target=self.serve_forever, name="millrace-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait for the thread."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Its handshake follows in its own thread."""
        connection, address = super().get_request()
        connection.settimeout(IDLE_S)
        if self._tls is None:
            return connection, address
        try:
            context = self._tls.current()
            return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address
        except OSError:
            connection.close()
            raise  # the server ignores it, as a connection that the client has closed

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own. End the oldest one if there are too many."""
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > CONNECTIONS_MAX else None
            if oldest is not None:
                del self._open[oldest]
        if oldest is not None:
            with suppress(OSError):  # it may end by itself at this moment
                socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # its thread, which waits for bytes, then closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Complete the handshake, and serve the request."""
        if isinstance(request, ssl.SSLSocket):
            request.do_handshake()
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a connection that failed, such as a handshake of a client without a certificate."""
        _logger.debug("a request of metrics from %s failed", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, *_: Any) -> None:
        """Log no requests, because there is one in every few seconds."""


def _authenticated(app: App, users: Mapping[str, str]) -> App:
    digests = {name: _digest(password) for name, password in users.items()}
    nobody = _digest("")

    def checked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        name, password = _credentials(environ.get("HTTP_AUTHORIZATION", ""))
        is_right = hmac.compare_digest(_digest(password), digests.get(name, nobody))
        if name in digests and is_right:
            return app(environ, start_response)
        start_response("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="millrace"')])
        return [b"metrics need a user and a password (HTTP basic authentication)\n"]

    return checked


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


def _credentials(header: str) -> tuple[str, str]:
    """Return user and password of HTTP's basic authentication (RFC 7617); empty texts if there are none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return name, password
