"""Single calls of Kafka's protocol, for rare calls of administrators.

millrace's own protocol has no such calls.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from typing import Final, TypeVar

from millrace.clients.transport.calls import not_reached
from millrace.clients.transport.client_tls import credentials_of, tls_of
from millrace.clients.transport.frame_socket import authenticate, exactly
from millrace.clients.transport.tls_socket import refusal_of, tls_socket
from millrace.config.client import ClientConfig
from millrace.errors import BrokerUnavailableError, InvalidRequestError, MillraceError
from millrace.kafka_protocol.data.request_header import RequestHeader
from millrace.kafka_protocol.lookup import request_header_version, response_header_version
from millrace.kafka_protocol.message import Message
from millrace.kafka_protocol.wire import WireError

_LENGTH: Final = struct.Struct(">i")
_CORRELATION_BYTES: Final = 4
_RESPONSE_BYTES_MAX: Final = 64 * 2**20

R = TypeVar("R", bound=Message)


def call_once(config: ClientConfig, request: Message, response: type[R]) -> R:
    """Make one call to the first broker that answers, on a connection of its own.

    Raises ``BrokerUnavailableError``, ``InvalidRequestError``, ``SaslAuthenticationError``, ``SslAuthenticationError``.
    """
    failure: MillraceError = BrokerUnavailableError("bootstrap.servers is empty")
    for address in config.addresses:
        host, _, port = address.rpartition(":")
        try:
            return _call_at(config, host.removeprefix("[").removesuffix("]"), int(port), request, response)
        except ssl.SSLError as error:
            refusal = refusal_of(error, host, int(port), config)
            failure = refusal if isinstance(refusal, MillraceError) else not_reached(address, str(refusal))
        except OSError as error:
            failure = not_reached(address, str(error))
    raise failure


def _call_at(config: ClientConfig, host: str, port: int, request: Message, response: type[R]) -> R:
    tls, credentials, version = tls_of(config), credentials_of(config), request.VERSION_MAX
    deadline = time.monotonic() + config.request_timeout_ms / 1000
    header = RequestHeader(
        request_api_key=request.API_KEY, request_api_version=version, correlation_id=0, client_id=config.client_id
    )
    data = header.encode(request_header_version(request.API_KEY, version)) + request.encode(version)
    sock = socket.create_connection((host, port), config.socket_connection_setup_timeout_ms / 1000)
    try:
        if tls is not None:
            sock = tls_socket(sock, tls.current().context, host, port, deadline, config)
        if credentials is not None:
            authenticate(sock, credentials, host, config.client_id, deadline)
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        sock.sendall(_LENGTH.pack(len(data)) + data)
        (size_bytes,) = _LENGTH.unpack(exactly(sock, _LENGTH.size, deadline))
        if not _CORRELATION_BYTES <= size_bytes <= _RESPONSE_BYTES_MAX:
            raise InvalidRequestError(f"{host}:{port} is no listener for Kafka's framing")
        answer = exactly(sock, size_bytes, deadline)
    finally:
        sock.close()
    try:
        start = _CORRELATION_BYTES + response_header_version(request.API_KEY, version)  # there are no tagged fields
        return response.decode_from(memoryview(answer), version, start)[0]
    except (struct.error, WireError) as error:
        raise InvalidRequestError(f"the answer of {host}:{port} cannot be read: {error}") from None
