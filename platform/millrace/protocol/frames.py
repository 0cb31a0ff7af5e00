"""Frames over TCP: gRPC's messages with a short head (docs/design/0015).

All numbers are big-endian. A connection begins with a *greeting* from either side::

    greeting = magic (9 bytes) version (uint16)

The client's ``HelloRequest``, without a name, and the broker's ``HelloResponse`` follow as frames. Then calls follow,
one at a time::

    request  = length (uint32) deadline in ms (uint32, 0: none) length of the name (uint8) name (ASCII) message
    response = length (uint32) kind (uint8) error (int16) message, or the error's text in UTF-8

A length counts the bytes after it. The name is the call's in the service ``Broker``. Errors are numbered as in
``millrace.errors``; 0 is success. With the kind ``GOODBYE`` the broker announces that it will answer no further
request on this connection. It has not started any unanswered request, so the client may send such a request
elsewhere.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from millrace.errors import InvalidRequestError, UnsupportedVersionError

MAGIC: Final = b"\x89millrace"
"""First bytes of a connection on either side; no text, HTTP/2 or TLS connection begins with them."""
VERSION: Final = 1

_GREETING: Final = Struct(">9sH")
_REQUEST: Final = Struct(">IIB")
_RESPONSE: Final = Struct(">IBh")

GREETING_BYTES: Final = _GREETING.size
REQUEST_HEAD_BYTES: Final = _REQUEST.size
"""Fixed-length part of a request's head; the name follows."""
RESPONSE_HEAD_BYTES: Final = _RESPONSE.size
_LENGTH_BYTES: Final = 4
_LENGTH_MAX: Final = 2**32 - 1
_DEADLINE_MS_MAX: Final = 2**32 - 1
_NAME_BYTES_MAX: Final = 255


class Kind(IntEnum):
    """Kind of a frame from the broker."""

    ANSWER = 0
    GOODBYE = 1


class RequestHead(NamedTuple):
    """The fixed part of a request's head: sizes in bytes, the time left in ms (0: not limited)."""

    deadline_ms: int
    name_bytes: int
    message_bytes: int


class ResponseHead(NamedTuple):
    """A response's head: its kind, the number of its error (0: none), and the size of the body in bytes."""

    kind: Kind
    error: int
    body_bytes: int


def greeting() -> bytes:
    """Return the greeting that both sides send first."""
    return _GREETING.pack(MAGIC, VERSION)


def check_greeting(data: bytes | bytearray | memoryview) -> None:
    """Check the other side's greeting, of ``GREETING_BYTES``.

    Raises ``InvalidRequestError`` for another protocol, ``UnsupportedVersionError``.
    """
    magic, version = _GREETING.unpack_from(data)
    if magic != MAGIC:
        raise InvalidRequestError(
            f"frames of millrace begin with {MAGIC!r}, not with {magic!r}: this is another protocol "
            "(gRPC has a port of its own)"
        )
    if version != VERSION:
        raise UnsupportedVersionError(f"frames are of version {version} there and {VERSION} here: update the older one")


def request_head(name: bytes, message_bytes: int, deadline_ms: int = 0) -> bytes:
    """Write the head of a request. A deadline beyond the field's range becomes its maximum.

    Raises ``ValueError`` for a name or a message that is too long for any frame.
    """
    rest_bytes = REQUEST_HEAD_BYTES - _LENGTH_BYTES + len(name) + message_bytes
    if len(name) > _NAME_BYTES_MAX or rest_bytes > _LENGTH_MAX:
        raise ValueError(f"a name of {len(name)} bytes and a message of {message_bytes} bytes do not fit into a frame")
    return _REQUEST.pack(rest_bytes, min(max(deadline_ms, 0), _DEADLINE_MS_MAX), len(name)) + name


def read_request_head(data: bytes | bytearray | memoryview, position: int = 0) -> RequestHead:
    """Read the fixed part of a request's head. Raises ``InvalidRequestError`` for an impossible length."""
    length, deadline_ms, name_bytes = _REQUEST.unpack_from(data, position)
    message_bytes = length - (REQUEST_HEAD_BYTES - _LENGTH_BYTES) - name_bytes
    if message_bytes < 0:
        raise InvalidRequestError(f"a request of {length} bytes cannot hold a name of {name_bytes} bytes")
    return RequestHead(deadline_ms, name_bytes, message_bytes)


def response_head(body_bytes: int, error: int = 0, kind: Kind = Kind.ANSWER) -> bytes:
    """Write the head of a response or of an error's text."""
    return _RESPONSE.pack(RESPONSE_HEAD_BYTES - _LENGTH_BYTES + body_bytes, kind, error)


def read_response_head(data: bytes | bytearray | memoryview, position: int = 0) -> ResponseHead:
    """Read a response's head. Raises ``InvalidRequestError`` if it is invalid."""
    length, kind, error = _RESPONSE.unpack_from(data, position)
    body_bytes = length - (RESPONSE_HEAD_BYTES - _LENGTH_BYTES)
    if body_bytes < 0 or kind > Kind.GOODBYE:
        raise InvalidRequestError(f"a response of {length} bytes of kind {kind} is no frame of millrace's")
    return ResponseHead(Kind.GOODBYE if kind else Kind.ANSWER, error, body_bytes)
