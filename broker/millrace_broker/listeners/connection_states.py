"""States of a connection, with limits on time and request size."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from millrace.errors import MessageTooLargeError
from millrace.kafka_protocol.calls.table import ApiKey
from millrace.protocol import frames
from millrace_broker.listeners.shared import RECEPTION_TIMEOUT_S
from millrace_broker.listeners.wire_calls import WireCall


class State(Enum):
    """State of a connection."""

    GREETING = auto()
    IDLE = auto()
    HEAD = auto()
    RECEIVING = auto()
    SERVING = auto()
    SENDING = auto()
    MUTED = auto()
    REFUSED = auto()


READY: Final = (State.GREETING, State.IDLE, State.HEAD)
"""States in which a request head comes next."""
LIMITS_S: Final = {
    State.GREETING: 10.0,
    State.HEAD: RECEPTION_TIMEOUT_S,
    State.RECEIVING: RECEPTION_TIMEOUT_S,  # without any byte of the request
    State.SENDING: 60.0,  # without any byte taken by the client
    State.REFUSED: 2.0,  # input is discarded meanwhile, so that the client reads the reason
}
"""Seconds that a connection may stay in a state. Handlers have their own deadlines; the configuration limits IDLE."""


SASL_KEYS: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
SASL_BYTES_MAX: Final = 128 * 1024
"""Largest request before and during authentication. Tickets of Kerberos and tokens of OAuth have at most 64 KiB.

No budget counts these bytes. Kafka's default (``sasl.server.max.receive.size``) is four times as large.
"""
AUTHENTICATION_S: Final = 10.0


class Request(NamedTuple):
    """Request whose head has been read."""

    call: WireCall
    head: frames.Head


def check_size(head: frames.Head, size_max: int, *, is_early: bool) -> None:
    """Raise ``MessageTooLargeError`` for a request above ``size_max``, or above ``SASL_BYTES_MAX`` if it is early.

    A request is early before and during authentication.
    """
    size_bytes, limit = frames.HEAD_BYTES - 4 + head.rest_bytes, "socket.request.max.bytes"
    if is_early:
        size_max, limit = min(size_max, SASL_BYTES_MAX), "before and during authentication"
    if size_bytes > size_max:
        raise MessageTooLargeError(f"a request of {size_bytes} bytes is larger than max {size_max} ({limit})")
