"""Transport of a connection with TLS, Kafka's ``SslTransportLayer``.

The class stands between the socket's transport and the protocol of the calls. The protocol sees an
``asyncio.Transport`` of the decrypted bytes. This class replaces asyncio's own TLS. That TLS sends no alert when a
handshake fails, keeps one context for a listener's whole life, and limits no handshakes.

Invariants

- The protocol's ``connection_made`` is called once, after the handshake.
- A failed handshake ends with the alert that tells the client the reason. A certificate without a principal fails after
  the handshake, when OpenSSL sends no alert for the caller. The connection is then closed, as in Kafka.
- Received bytes are decrypted only as far as the protocol reads. Unread bytes stay in one buffer of OpenSSL, beside the
  bytes that the kernel holds.
- ``pause_writing`` and ``resume_writing`` report whether the kernel has taken the encrypted bytes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

_ALERT: Final = bytes((21, 3, 3, 0, 2, 2, 70))
"""The fatal alert ``protocol_version``. A client without TLS can tell from it what this listener is."""


class TlsOwner(Protocol):
    """Listener of connections with TLS."""

    @property
    def encrypted_buffer(self) -> memoryview:
        """Buffer for encrypted bytes, which connections share, because its bytes are processed at once."""
        ...

    def handshake_began(self, connection: TlsTransport, transport: asyncio.Transport) -> None:
        """Register a connection whose handshake begins over ``transport``, which may have to wait before."""
        ...

    def handshake_ended(self, connection: TlsTransport, failure: Exception | None) -> None:
        """Forget a connection whose handshake has ended. A second call does nothing."""
        ...


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """Server side of TLS on one connection."""

    def __init__(
        self,
        owner: TlsOwner,
        context: ssl.SSLContext,
        make_protocol: Callable[[bytes | None], asyncio.BufferedProtocol],
    ) -> None:
        """``make_protocol`` gets the client's verified certificate (DER), or None."""
        super().__init__()
        self._owner: Final = owner
        self._make_protocol: Final = make_protocol
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._tls: Final = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._protocol: asyncio.BufferedProtocol | None = None
        self._is_paused = False
        self._is_over = False

    # --- as the protocol of the socket's transport ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self._lower = transport
        self._owner.handshake_began(self, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for encrypted bytes."""
        return self._owner.encrypted_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt the received bytes, or continue the handshake."""
        self._incoming.write(self._owner.encrypted_buffer[:nbytes])
        if self._protocol is None:
            self._shake_hands()
        else:
            self._decrypt()

    def eof_received(self) -> bool:
        """Close the connection. A missing close alert of TLS does no harm, because requests have lengths."""
        if self._protocol is None:
            self._fail(ConnectionResetError("the client closed the connection in the handshake"))
        return False

    def pause_writing(self) -> None:
        """Tell the protocol that the kernel takes no more bytes."""
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Tell the protocol that the kernel has all bytes."""
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the protocol, or the owner of an unfinished handshake."""
        self._is_over = True
        if self._protocol is None:
            self._owner.handshake_ended(self, exc or ConnectionResetError("the connection was closed"))
        else:
            self._protocol.connection_lost(exc)

    # --- TLS ------------------------------------------------------------------------------------------------------

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            if not self._outgoing.pending:  # OpenSSL answers bytes that are no TLS at all with nothing
                self._lower.write(_ALERT)
            self._flush()
            self._fail(error)
            return
        self._flush()
        protocol = self._make_protocol(self._tls.getpeercert(binary_form=True))
        self._owner.handshake_ended(self, None)
        self._protocol = protocol
        protocol.connection_made(self)
        self._decrypt()

    def _fail(self, error: Exception) -> None:
        if not self._is_over:
            self._is_over = True
            self._owner.handshake_ended(self, error)
            self._lower.close()

    def _decrypt(self) -> None:
        """Give the protocol all bytes that it reads now."""
        protocol = self._protocol
        assert protocol is not None
        while not self._is_paused and not self._is_over:
            buffer = memoryview(protocol.get_buffer(-1))
            filled, is_at_end = self._fill(buffer)
            if filled:
                protocol.buffer_updated(filled)
            if is_at_end and not self._is_over:
                self.close()
            if filled < len(buffer):
                break
        if self._outgoing.pending:  # such as a new key
            self._flush()

    def _fill(self, buffer: memoryview) -> tuple[int, bool]:
        """Decrypt into the buffer. Return how many bytes it has, and whether the client has closed TLS."""
        filled = 0
        try:
            while filled < len(buffer):
                count: Any = self._tls.read(len(buffer) - filled, buffer[filled:])
                if not count:
                    return filled, True
                filled += count
        except (ssl.SSLWantReadError, ssl.SSLSyscallError):
            return filled, False
        except ssl.SSLError:  # damaged bytes, or the alert of a client that refuses the broker's certificate
            return filled, True
        return filled, False

    def _flush(self) -> None:
        if self._outgoing.pending and not self._lower.is_closing():
            self._lower.write(self._outgoing.read())

    # --- as the transport of the protocol -------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._is_over or not len(data):
            return
        view = memoryview(data)
        while len(view):  # one record at a time
            view = view[self._tls.write(view) :]
        self._flush()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See ``asyncio.WriteTransport``. The limits are those of encrypted bytes."""
        self._lower.set_write_buffer_limits(high, low)

    def can_write_eof(self) -> bool:
        """Return False, because TLS has no end in one direction."""
        return False

    def pause_reading(self) -> None:
        """Stop decrypting and receiving."""
        self._is_paused = True
        self._lower.pause_reading()

    def resume_reading(self) -> None:
        """Continue decrypting and receiving."""
        self._is_paused = False
        self._lower.resume_reading()
        # Not at once, because the caller may be about to change its state.
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._is_over:
            self._decrypt()

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or about to be."""
        return self._is_over or self._lower.is_closing()

    def close(self) -> None:
        """Send what is written and the end of TLS, then close."""
        if self._is_over:
            return
        self._is_over = True
        with suppress(ssl.SSLError):  # it wants the client's own end of TLS too, for which nobody waits
            self._tls.unwrap()
        self._flush()
        self._lower.close()

    def abort(self) -> None:
        """Close at once."""
        self._is_over = True
        self._lower.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return a property of the connection; ``ssl_object`` is its TLS."""
        return self._tls if name == "ssl_object" else self._lower.get_extra_info(name, default)
