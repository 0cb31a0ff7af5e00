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

from millrace.config.security_options import SslOptions
from millrace.errors import InvalidRequestError, MillraceError, SslAuthenticationError

GRPC_ALPN: Final = "h2"
"""Protocol that a listener for gRPC chooses in the handshake. Listeners for Kafka's framing choose none."""
NEEDS_TLS: Final = "this is a listener with TLS: set security.protocol=SSL or SASL_SSL"
"""Message to a client without TLS."""

_EXPIRED: Final = 10
_REVOKED: Final = 23
_WITHOUT_LIST: Final = 3
_OF_ANOTHER_HOST: Final = (62, 64)
"""Codes of OpenSSL (X509_V_ERR)."""
_ALERTS: Final = {
    "ALERT_CERTIFICATE_REQUIRED": "there is none",
    "ALERT_CERTIFICATE_EXPIRED": "it has expired",
    "ALERT_CERTIFICATE_REVOKED": "it is revoked",
    "ALERT_UNKNOWN_CA": "the broker does not know its authority",
    "ALERT_BAD_CERTIFICATE": "it is malformed, or not for clients",
    "ALERT_UNSUPPORTED_CERTIFICATE": "it is not for clients",
    "ALERT_CERTIFICATE_UNKNOWN": "it cannot be verified",
    "ALERT_ACCESS_DENIED": "access is denied",
}
"""Alerts of TLS by which a broker refuses a client's certificate (RFC 8446 section 6.2)."""


class TlsSocket(ssl.SSLSocket):
    """Client socket that raises ``BlockingIOError`` as a plain socket does."""

    def send(self, data: Any, flags: int = 0) -> int:
        """Send at most one TLS record. Raises ``BlockingIOError``, ``OSError``."""
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def sendmsg(self, buffers: Any, *_: Any) -> int:  # type: ignore[override]  # a method that raises
        """Send at most one TLS record of the first buffer. Raises ``BlockingIOError``, ``OSError``."""
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


def tls_socket(
    sock: socket.socket, context: ssl.SSLContext, host: str, port: int, deadline: float, stores: SslOptions
) -> ssl.SSLSocket:
    """Make the handshake until ``deadline`` (monotonic), and return the socket with TLS.

    ``stores`` are the options of ``context``, which errors name. Raises ``SslAuthenticationError`` if one side refuses
    the other, ``InvalidRequestError`` at a listener for gRPC, and ``OSError`` if the handshake breaks.
    """
    secured = _handshake(sock, context, host, port, deadline, stores)
    if secured.selected_alpn_protocol() == GRPC_ALPN:
        secured.close()
        raise InvalidRequestError(f"{host}:{port} is a listener for gRPC")
    return secured


def find_refusal(
    context: ssl.SSLContext, host: str, port: int, timeout_s: float, stores: SslOptions
) -> MillraceError | None:
    """Return why one side refuses the other in a handshake at a listener for gRPC.

    The gRPC library does not report the reason. Return None if no side refuses, or if the broker does not answer.
    """
    try:
        # One connection may end because the broker stops. The next one is then refused by the system.
        is_closed = all(_is_closed_after_handshake(context, host, port, timeout_s, stores) for _ in range(2))
    except SslAuthenticationError as error:
        return error
    except OSError:
        return None
    if not is_closed:
        return None
    return SslAuthenticationError(
        f"the broker at {host}:{port} closes connections after the handshake of TLS: it refuses this client's "
        f"certificate. {_check_of_own(stores)}"
    )


def wants_tls(host: str, port: int, timeout_s: float) -> bool:
    """Return whether a listener for gRPC has TLS. It closes connections without TLS, and gives no reason."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent to the server
    context.set_alpn_protocols([GRPC_ALPN])
    try:
        with socket.create_connection((host, port), timeout_s) as sock, context.wrap_socket(sock):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # it wants a certificate
    except OSError:
        return False


def _is_closed_after_handshake(
    context: ssl.SSLContext, host: str, port: int, timeout_s: float, stores: SslOptions
) -> bool:
    """Return whether the broker ends a connection before its first message, which it sends by itself.

    With TLS 1.3 a broker sees the client's certificate after the client's handshake. gRPC's library sends no alert.
    """
    deadline = time.monotonic() + timeout_s
    with (
        socket.create_connection((host, port), timeout_s) as sock,
        _handshake(sock, context, host, port, deadline, stores) as secured,
    ):
        secured.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            return not secured.recv(1)
        except (ssl.SSLEOFError, ConnectionResetError):
            return True
        except ssl.SSLError as error:
            raise refusal_of(error, host, port, stores) from None


def _handshake(
    sock: socket.socket, context: ssl.SSLContext, host: str, port: int, deadline: float, stores: SslOptions
) -> ssl.SSLSocket:
    sock.settimeout(max(deadline - time.monotonic(), 0.001))
    secured = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        secured.do_handshake()
    except ssl.SSLError as error:
        secured.close()
        raise refusal_of(error, host, port, stores) from None
    except BaseException:
        secured.close()
        raise
    return secured


def refusal_of(error: ssl.SSLError, host: str, port: int, stores: SslOptions) -> MillraceError | OSError:
    """Return the error for the user: a refusal, or ``ConnectionResetError`` if the connection only ended."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return SslAuthenticationError(
            f"the certificate of the broker at {host}:{port} is refused: {error.verify_message.rstrip('.')}. "
            f"{_remedy_of(error.verify_code, host, stores)}"
        )
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)):
        return ConnectionResetError(
            "the connection was closed in the TLS handshake: is this a listener with security.protocol SSL?"
        )
    reason = error.reason or str(error)
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return SslAuthenticationError(
            f"{host}:{port} is no listener with TLS: set security.protocol=PLAINTEXT, or the address of one"
        )
    for alert, problem in _ALERTS.items():
        if reason.endswith(alert):
            return SslAuthenticationError(
                f"the broker at {host}:{port} refuses this client's certificate: {problem}. {_check_of_own(stores)}"
            )
    return SslAuthenticationError(
        f"the broker at {host}:{port} and this client do not agree on TLS: {reason}. Check ssl.enabled.protocols and "
        "ssl.cipher.suites. If the broker wants a certificate of the client, set ssl.keystore.location"
    )


def _check_of_own(stores: SslOptions) -> str:
    if not (stores.ssl_keystore_location or stores.ssl_keystore_key):
        return "It wants one: set ssl.keystore.location"
    return f"Check ssl.keystore.location={stores.ssl_keystore_location or '(ssl.keystore.certificate.chain)'}"


def _remedy_of(verify_code: int, host: str, stores: SslOptions) -> str:
    if verify_code == _EXPIRED:
        return "Renew ssl.keystore.location of the broker, and check the clock of this machine"
    if verify_code in _OF_ANOTHER_HOST:
        return f"It must name {host}, the host of bootstrap.servers or of the broker's advertised.listeners"
    if verify_code == _REVOKED:
        return f"ssl.crl.location={stores.ssl_crl_location} has it: give the broker another one"
    if verify_code == _WITHOUT_LIST:
        return f"Add the revocation list of each of its authorities to ssl.crl.location={stores.ssl_crl_location}"
    trusted = stores.ssl_truststore_location
    if trusted:
        return f"Check that ssl.truststore.location={trusted} has its authority"
    return "Set ssl.truststore.location to its authority"
