"""Non-blocking sockets with TLS, which behave as plain ones.

Invariant: what a receive leaves is in the kernel, except after a whole response. OpenSSL takes one record at a time,
and a receive for a response's head has room for the largest record.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from typing import Any, Final

from millrace.errors import InvalidRequestError, MillraceError, SslAuthenticationError

GRPC_ALPN: Final = "h2"
"""Protocol that a listener for gRPC chooses in the handshake. Listeners for Kafka's framing choose none."""


class TlsSocket(ssl.SSLSocket):
    """Client socket that raises ``BlockingIOError`` as a plain socket does."""

    def send(self, data: Any, flags: int = 0) -> int:
        """Send what one record holds. Raises ``BlockingIOError``, ``OSError``."""
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def sendmsg(self, buffers: Any, *_: Any) -> int:  # type: ignore[override]  # a method that raises
        """Send what one record holds of the first buffer. Raises ``BlockingIOError``, ``OSError``."""
        return self.send(buffers[0])

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Receive at most one record. Raises ``BlockingIOError``, ``OSError``."""
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive at most one record. Raises ``BlockingIOError``, ``OSError``."""
        try:
            return super().recv_into(buffer, nbytes, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def has_nothing_to_read(self, poll: select.poll) -> bool:
        """Return whether neither data nor the end has arrived. Messages of TLS itself are processed."""
        if self.pending():
            return False
        if not poll.poll(0):
            return True
        try:
            self.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # a goodbye, or the end


def tls_socket(sock: socket.socket, context: ssl.SSLContext, host: str, port: int, deadline: float) -> ssl.SSLSocket:
    """Make the handshake until ``deadline`` (monotonic), and return the socket with TLS.

    Raises ``SslAuthenticationError`` if one side refuses the other, ``InvalidRequestError`` at a listener for gRPC, and
    ``OSError`` if the handshake breaks.
    """
    sock.settimeout(max(deadline - time.monotonic(), 0.001))
    secured = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        secured.do_handshake()
    except ssl.SSLError as error:
        secured.close()
        raise refusal_of(error, host, port) from None
    except BaseException:
        secured.close()
        raise
    if secured.selected_alpn_protocol() == GRPC_ALPN:
        secured.close()
        raise InvalidRequestError(f"{host}:{port} is a listener for gRPC")
    return secured


def refusal_of(error: ssl.SSLError, host: str, port: int) -> MillraceError | OSError:
    """Return the error for the user: a refusal, or ``ConnectionResetError`` if the connection only ended."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return SslAuthenticationError(
            f"the certificate of the broker at {host}:{port} is refused: {error.verify_message}. Check "
            "ssl.truststore.location, and that the certificate names this host"
        )
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)):
        return ConnectionResetError(
            "the connection was closed in the TLS handshake: is this a listener with security.protocol SSL?"
        )
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return SslAuthenticationError(
            f"{host}:{port} is no listener with TLS: set security.protocol=PLAINTEXT, or the address of one"
        )
    return SslAuthenticationError(
        f"the broker at {host}:{port} and this client do not agree on TLS: {error.reason or error}. If the broker "
        "wants a certificate of the client, set ssl.keystore.location"
    )
